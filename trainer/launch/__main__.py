"""Jobs for people at a terminal: `python -m trainer.launch list|describe|logs|cancel|preempt`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime

from trainer.launch.errors import LaunchError
from trainer.launch.job_folder import JobFolder, all_jobs
from trainer.launch.jobs import JobHandle, JobState, JobStatus
from trainer.launch.local import SCHEDULER, LocalLauncher, observe

_CANCEL_PATIENCE_S = 120.0
_COLUMNS = ("NAME", "STATE", "SUBMITTED", "RAN", "CAUSE", "MESSAGE")
_MESSAGE_WIDTH = 60


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit 0, 1 when a job or action failed, 2 for wrong usage."""
    parsed = _parser().parse_args(arguments)
    try:
        return int(parsed.action(parsed) or 0)
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `... | head`
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer.launch", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="all jobs of this machine, oldest first")
    listing.add_argument("--live", action="store_true", help="only those that have not ended")
    listing.set_defaults(action=_list)

    describing = commands.add_parser("describe", help="one job's status as JSON")
    describing.set_defaults(action=_describe)

    reading = commands.add_parser("logs", help="what the ranks wrote")
    reading.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    reading.add_argument("-n", "--last", type=int, help="only the last lines of each rank")
    reading.set_defaults(action=_logs)

    cancelling = commands.add_parser("cancel", help="end jobs and wait until nothing of them is left")
    cancelling.add_argument("--all", action="store_true", help="every job that has not ended, then the warm standby")
    cancelling.set_defaults(action=_cancel)

    preempting = commands.add_parser("preempt", help="let the ranks save and leave, as a scheduler would")
    preempting.set_defaults(action=_preempt)

    for command in (describing, reading, preempting):
        command.add_argument("name", help="the job's name, or a part that only one has")
    cancelling.add_argument("name", nargs="?", help="the job's name, or a part that only one has")
    return parser


def _list(parsed: argparse.Namespace) -> None:
    jobs = [(folder, observe(folder)) for folder in all_jobs()]
    jobs.sort(key=lambda job: job[1].submitted_ns or 0)
    rows = [_row(folder, status) for folder, status in jobs if not (parsed.live and _settled(status))]
    print(table([_COLUMNS, *rows]) if rows else "no jobs")


def _row(folder: JobFolder, status: JobStatus) -> tuple[str, ...]:
    # A job's text is untrusted: it must not drive the terminal.
    message = "".join(c if c.isprintable() else "?" for c in " ".join(status.message.split()))
    if len(message) > _MESSAGE_WIDTH:
        message = message[: _MESSAGE_WIDTH - 1] + "…"
    return (folder.name, status.state, _clock(status.submitted_ns), _ran(status), status.cause or "", message)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns.

    >>> print(table([("NAME", "STATE"), ("a", "running")]))
    NAME  STATE
    a     running
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)


def _clock(wall_ns: int | None) -> str:
    return "" if wall_ns is None else datetime.fromtimestamp(wall_ns / 1e9).strftime("%m-%d %H:%M:%S")


def _ran(status: JobStatus) -> str:
    if status.started_ns is None:
        return ""
    return f"{((status.ended_ns or time.time_ns()) - status.started_ns) / 1e9:.0f}s"


def _describe(parsed: argparse.Namespace) -> None:
    folder = _named(parsed.name)
    shown = {"name": folder.name, "folder": str(folder.root), **observe(folder).to_dict()}
    print(json.dumps(shown, indent=2))


def _logs(parsed: argparse.Namespace) -> None:
    launcher, handle = LocalLauncher(), _handle(_named(parsed.name))
    lines = launcher.follow_logs(handle) if parsed.follow else launcher.logs(handle, last=parsed.last)
    for line in lines:
        print(line, flush=parsed.follow)


def _cancel(parsed: argparse.Namespace) -> int:
    if parsed.all == bool(parsed.name):
        print("error: give either a job's name or --all", file=sys.stderr)
        return 2
    chosen = list(all_jobs()) if parsed.all else [_named(parsed.name)]
    live = [folder for folder in chosen if not _settled(observe(folder))]
    asked = [folder for folder in live if _ask_to_end(folder)]
    left = _await_end(asked)
    for folder in live:
        print(f"{folder.name}: {observe(folder).state}")
    if not live:
        print("nothing to cancel")
    if parsed.all:
        _end_standby()
    return 1 if left or len(asked) < len(live) else 0


def _end_standby() -> None:
    from trainer.launch.warmth import end_standby

    if end_standby(why="`cancel --all`"):
        print("the warm standby: ended")


def _ask_to_end(folder: JobFolder) -> bool:
    """One job that cannot be ended must not keep the others alive."""
    try:
        LocalLauncher().cancel(_handle(folder))
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        return False
    return True


def _settled(status: JobStatus) -> bool:
    """Ended, and nothing of it is left: a LOST job gets its end stamped when it is reaped."""
    return status.terminal and status.ended_ns is not None


def _await_end(folders: Iterable[JobFolder]) -> list[JobFolder]:
    """Those that have not ended within two minutes."""
    give_up = time.monotonic() + _CANCEL_PATIENCE_S
    left = list(folders)
    while left and time.monotonic() < give_up:
        left = [folder for folder in left if not _settled(observe(folder))]
        for folder in left:
            if observe(folder).state is JobState.LOST:  # its supervisor died before it read our request
                _ask_to_end(folder)
        time.sleep(0.1)
    return left


def _preempt(parsed: argparse.Namespace) -> None:
    LocalLauncher().preempt(_handle(_named(parsed.name)))


def _named(text: str) -> JobFolder:
    exact = JobFolder.of(text)
    if exact.exists:
        return exact
    matches = [folder for folder in all_jobs() if text in folder.name]
    if len(matches) != 1:
        which = ", ".join(folder.name for folder in matches) or "none"
        raise LaunchError(f"{text!r} must name one job; it matches: {which}. `list` shows all")
    return matches[0]


def _handle(folder: JobFolder) -> JobHandle:
    return JobHandle(SCHEDULER, folder.name, folder.registration().request.run_folder.url)


if __name__ == "__main__":
    sys.exit(main())
