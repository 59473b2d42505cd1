"""What has expired: the rules of the spec's `retention`, free of side effects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

from ett_airflow.anchors import Anchor
from ett_airflow.housekeeping_facts import (
    TRASH,
    Expired,
    JobFacts,
    Kept,
    Kind,
    Plan,
    RefreshFacts,
    RunFacts,
    Stored,
)

QUIET_DAYS = 1.0
"""Nothing of a run is touched for this long after its last write, whatever else says that it has ended."""

SCARCE = 1
"""Compile archives that stay whatever their age: without one the next run compiles everything."""


def plan(facts: RefreshFacts) -> Plan:
    """Everything of a refresh that has expired, and the anchors and snapshots that stay, each with its reason."""
    needed = needed_anchors(facts)
    expired: list[Expired] = []
    kept: list[Kept] = []
    for run in facts.runs:
        reason = _untouchable(run, facts)
        if reason:
            kept.append(Kept(kind=Kind.RUN, path=run.folder.root, why=reason))
            continue
        if run.anchor and run.folder.run in needed:
            kept.append(Kept(kind=Kind.ANCHOR, path=run.anchor.path, why=needed[run.folder.run]))
        expired += _of_run(run, facts, needed)
    gone = {item.run for item in expired if item.kind is Kind.RUN}
    snapshots, kept_snapshots = _of_snapshots(facts)
    expired += [*snapshots, *_of_archives(facts), *_of_jobs(facts, gone), *_of_airflow_logs(facts)]
    expired += leftovers(facts.spec.name, facts.leftovers, facts.now_s)
    return Plan(refresh=facts.spec.name, expired=expired, kept=[*kept, *kept_snapshots])


def needed_anchors(facts: RefreshFacts) -> dict[str, str]:
    """Run -> why its anchor stays: the newest ones, the live one, and whatever a day or a run yet to train needs."""
    anchors = [anchor for run in facts.runs if not run.is_trial and (anchor := run.as_anchor) is not None]
    daily = sorted(anchors, key=lambda anchor: (anchor.window.end, not anchor.stale, anchor.decided_unix_ns))
    fitting = [anchor for anchor in daily if anchor.fits(facts.spec)]
    count = facts.spec.retention.anchors
    newest = [*daily[-count:], *fitting[-count:]]
    needed = {anchor.run: f"one of the newest {count} (retention.anchors)" for anchor in newest}
    for day in _untrained(facts.landed, [anchor for anchor in daily if not anchor.stale]):
        before = [anchor for anchor in fitting if anchor.window.end <= day]
        if before:
            needed[before[-1].run] = f"day {day}, not trained yet or stale, would start from it"
    for run in facts.runs:
        if run.spec is not None and run.spec.run.warm_start and (run.active or run.anchor is None):
            needed[run.spec.run.warm_start.run] = f"run {run.folder.run}, which has not finished, started from it"
    if facts.snapshots.live:
        needed[facts.snapshots.live[-1]] = "the live snapshot was made from it"
    return needed


def _untrained(landed: Sequence[date], anchors: Sequence[Anchor]) -> list[date]:
    """Landed days that no anchor covers, from the first trained day on: nobody trains what lies before it."""
    if not anchors:
        return []
    first = min(anchor.window.start for anchor in anchors)
    return [
        day
        for day in landed
        if day >= first and not any(anchor.window.start <= day < anchor.window.end for anchor in anchors)
    ]


def _untouchable(run: RunFacts, facts: RefreshFacts) -> str:
    if run.active:
        return f"active: {run.active}"
    if run.stored.age_days(facts.now_s) < QUIET_DAYS:
        return "written to within the last day"
    return f"cannot be read, so it is left alone: {run.unreadable}" if run.unreadable else ""


def _of_run(run: RunFacts, facts: RefreshFacts, needed: dict[str, str]) -> Iterator[Expired]:
    retention, age = facts.spec.retention, run.stored.age_days(facts.now_s)
    root = run.folder.root
    trash = root.parent / TRASH

    def expired(kind: Kind, stored: Stored, why: str) -> Expired:
        return Expired(
            kind=kind,
            refresh=facts.spec.name,
            run=run.folder.run,
            path=stored.path,
            why=why,
            bytes=stored.bytes,
            trash=_trash_of(stored.path, run, trash),
        )

    if age >= retention.run_days and not (run.anchor and run.folder.run in needed):
        why = f"last written {age:.0f} days ago (retention.run_days {retention.run_days:g})"
        for kind, stored in ((Kind.CHECKPOINTS, run.checkpoints), (Kind.ANCHOR, run.anchor)):
            if stored and not _is_inside(stored.path, root):
                yield expired(kind, stored, f"its run folder goes: {why}")
        yield expired(Kind.RUN, run.stored, why)
        return
    if run.checkpoints and run.anchor:
        yield expired(Kind.CHECKPOINTS, run.checkpoints, "its anchor is complete: nothing resumes from them")
    elif run.checkpoints and age >= retention.checkpoint_days:
        why = f"not resumed for {age:.0f} days (retention.checkpoint_days {retention.checkpoint_days:g})"
        yield expired(Kind.CHECKPOINTS, run.checkpoints, why)
    if run.anchor and run.folder.run not in needed and (why := _anchor_expired(run, facts, age)):
        yield expired(Kind.ANCHOR, run.anchor, why)
    if run.logs and age >= retention.log_days:
        yield expired(Kind.LOGS, run.logs, f"{age:.0f} days old (retention.log_days {retention.log_days:g})")


def _anchor_expired(run: RunFacts, facts: RefreshFacts, age: float) -> str:
    """Why an anchor that no chain needs may go; empty while it is still to be published, or a trial is young."""
    if run.is_trial:
        days = facts.spec.retention.snapshot_days
        return f"a trial's, {age:.0f} days old (retention.snapshot_days {days:g})" if age >= days else ""
    versions = {Path(str(version.path)).name for version in facts.snapshots.versions}
    if run.folder.run not in versions and run.folder.run not in facts.snapshots.live:
        return ""
    return f"no chain needs it (retention.anchors {facts.spec.retention.anchors}), and it is published"


def _of_snapshots(facts: RefreshFacts) -> tuple[list[Expired], list[Kept]]:
    """Never the live one, nor the K that were live before it."""
    snapshots, retention = facts.snapshots, facts.spec.retention
    if snapshots.unreadable:
        return [], [Kept(kind=Kind.SNAPSHOT, path=Path(facts.spec.name), why=snapshots.unreadable)]
    distinct = list(dict.fromkeys(reversed(snapshots.live)))
    reasons = dict.fromkeys(distinct[1 : retention.snapshots + 1], "was live before (retention.snapshots)")
    reasons |= dict.fromkeys(distinct[:1], "is live")
    reasons |= {run.folder.run: f"its run is active: {run.active}" for run in facts.runs if run.active}
    expired, kept = [], []
    for version in snapshots.versions:
        name, age = Path(str(version.path)).name, version.age_days(facts.now_s)
        young = "" if age >= retention.snapshot_days else f"{age:.0f} days old (retention.snapshot_days)"
        why = reasons.get(name) or young
        if why:
            kept.append(Kept(kind=Kind.SNAPSHOT, path=version.path, why=why))
            continue
        told = f"neither live nor one of the {retention.snapshots} live before, {age:.0f} days old"
        trash = Path(str(version.path)).parents[1] / TRASH
        expired.append(
            Expired(
                kind=Kind.SNAPSHOT,
                refresh=facts.spec.name,
                run=name,
                path=version.path,
                why=told,
                bytes=version.bytes,
                trash=trash,
            )
        )
    return expired, kept


def _of_archives(facts: RefreshFacts) -> Iterator[Expired]:
    """The least recently used first, by age and then by the size of all; the newest stays."""
    retention = facts.spec.retention
    used = sorted(facts.archives, key=lambda archive: archive.written_s, reverse=True)
    budget = retention.compile_cache_gb * 1e9
    spent = 0.0
    for number, archive in enumerate(used):
        age = archive.age_days(facts.now_s)
        spent += archive.bytes
        if number < SCARCE or (age < retention.compile_cache_days and spent <= budget):
            continue
        old = f"not used for {age:.0f} days (retention.compile_cache_days {retention.compile_cache_days:g})"
        large = f"the least recently used beyond {retention.compile_cache_gb:g} GB (retention.compile_cache_gb)"
        path = Path(str(archive.path))
        yield Expired(
            kind=Kind.COMPILE_ARCHIVE,
            refresh=facts.spec.name,
            path=path,
            bytes=archive.bytes,
            why=old if age >= retention.compile_cache_days else large,
            trash=path.parents[1] / TRASH,
            beside=[path.with_suffix(".json")],
        )


def _of_jobs(facts: RefreshFacts, gone: set[str]) -> Iterator[Expired]:
    """A job's records stay as long as its run folder: by them a cleared task knows what has been done."""
    days = facts.spec.retention.log_days
    active = {run.folder.run for run in facts.runs if run.active}
    for job in facts.jobs:
        age = job.stored.age_days(facts.now_s)
        if not job.ended or job.run in active or age < QUIET_DAYS:
            continue
        if job.orphan or job.run in gone:
            why = "its run folder is gone" if job.orphan else "its run folder goes"
            yield _job(facts, job, Kind.JOB, [job.stored], why)
        elif job.scratch and age >= days:
            why = f"ended {age:.0f} days ago (retention.log_days {days:g})"
            yield _job(facts, job, Kind.JOB_SCRATCH, job.scratch, why)


def _job(facts: RefreshFacts, job: JobFacts, kind: Kind, parts: Sequence[Stored], why: str) -> Expired:
    first, *rest = parts
    return Expired(
        kind=kind,
        refresh=facts.spec.name,
        run=job.run,
        path=first.path,
        why=why,
        bytes=sum(part.bytes for part in parts),
        trash=Path(str(job.stored.path)).parent / TRASH,
        beside=[part.path for part in rest],
    )


def _of_airflow_logs(facts: RefreshFacts) -> Iterator[Expired]:
    days = facts.spec.retention.log_days
    for logs in facts.airflow_logs:
        age = logs.age_days(facts.now_s)
        if age >= max(days, QUIET_DAYS):
            path = Path(str(logs.path))
            yield Expired(
                kind=Kind.AIRFLOW_LOGS,
                refresh=facts.spec.name,
                path=path,
                bytes=logs.bytes,
                trash=path.parent / TRASH,
                why=f"last written {age:.0f} days ago (retention.log_days {days:g})",
            )


def leftovers(refresh: str, left: Sequence[Stored], now_s: float) -> Iterator[Expired]:
    """What is in a trash folder goes at once; what was put aside under another name after a day."""
    for stored in left:
        path = Path(str(stored.path))
        if path.parent.name != TRASH and stored.age_days(now_s) < QUIET_DAYS:
            continue
        yield Expired(
            kind=Kind.LEFTOVER,
            refresh=refresh,
            path=path,
            bytes=stored.bytes,
            why="left by what was interrupted, or put aside",
            trash=path.parent if path.parent.name == TRASH else path.parent / TRASH,
        )


def _is_inside(path: object, root: Path) -> bool:
    return isinstance(path, Path) and path.is_relative_to(root)


def _trash_of(path: object, run: RunFacts, trash: Path) -> Path:
    """Beside the run folders; for a place of its own (`checkpoint.root`) beside the runs there."""
    if isinstance(path, Path) and not path.is_relative_to(run.folder.root):
        return path.parents[1] / TRASH
    return trash
