"""The ranks' logs on disk: found, merged, tailed, kept."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from trainer.launch.job_folder import JobFolder
from trainer.launch.jobs import JobRequest

_COMBINED = "combined.log"
_TAIL_BYTES = 1 << 16
_POLL_S = 0.2


def rank_log(folder: JobFolder, rank: int, name: str) -> Path | None:
    """TorchX's `<logs>/<session>/<app>/<role>/<rank>/<name>`, if the rank has started."""
    return next(folder.logs_dir.glob(f"*/*/*/{rank}/{name}"), None)


def combined_logs(folder: JobFolder) -> dict[int, Path]:
    """Every started rank's log."""
    return dict(sorted((int(path.parent.name), path) for path in folder.logs_dir.glob(f"*/*/*/*/{_COMBINED}")))


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines that are not empty, without reading a long file whole."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]


def merged(folder: JobFolder, last: int | None) -> Iterator[str]:
    """Lines so far, rank by rank."""
    for rank, path in combined_logs(folder).items():
        if last is not None:
            yield from (f"[{rank}] {line}" for line in last_lines(path, last))
            continue
        with path.open(errors="replace") as file:
            yield from (f"[{rank}] {line.rstrip()}" for line in file)


def appended(folder: JobFolder, position: Mapping[int, int], limit: int) -> tuple[list[str], dict[int, int]]:
    """Whole lines written since `position` (bytes read of each rank's log), rank by rank, and the position after them.

    Of a rank that wrote more than `limit` bytes since then only the last are given, behind a line that says so.
    """
    lines, after = [], dict(position)
    for rank, path in combined_logs(folder).items():
        with path.open("rb") as file:
            size, start = file.seek(0, 2), position.get(rank, 0)
            start = 0 if start > size else start
            skipped = max(0, size - start - limit)
            file.seek(start + skipped)
            content = file.read(limit)
        if skipped:
            lines.append(f"[{rank}] ... {skipped:,} bytes left out, see {path}")
        complete = content[: content.rfind(b"\n") + 1]
        after[rank] = start + skipped + len(complete)
        lines += [f"[{rank}] {line.decode(errors='replace').rstrip()}" for line in complete.split(b"\n")[:-1]]
    return lines, after


def followed(folder: JobFolder, ended: Callable[[], bool]) -> Iterator[str]:
    """Lines of all ranks as they come, until the job has ended and its logs are read."""
    tails: dict[int, _Tail] = {}
    while True:
        last_round = ended()
        for rank, path in combined_logs(folder).items():
            tail = tails.setdefault(rank, _Tail(path))
            yield from (f"[{rank}] {line}" for line in tail.new_lines())
        if last_round:
            for rank, tail in tails.items():
                yield from (f"[{rank}] {line}" for line in tail.rest())
            return
        time.sleep(_POLL_S)


class _Tail:
    """Whole lines appended to a file since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._partial = b""

    def new_lines(self) -> list[str]:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            content = self._partial + file.read()
            self._offset = file.tell()
        *lines, self._partial = content.split(b"\n")
        return [line.decode(errors="replace").rstrip() for line in lines]

    def rest(self) -> list[str]:
        partial, self._partial = self._partial, b""
        return [partial.decode(errors="replace").rstrip()] if partial else []


def keep_logs(folder: JobFolder, request: JobRequest) -> None:
    """Copy the logs into the run folder, where they outlive this machine: `logs/<task>-a<attempt>/rank-N.log`."""
    kept = request.run_folder.logs_dir / f"{request.key.task}-a{request.key.attempt}"
    kept.mkdir(parents=True, exist_ok=True)
    for rank, path in combined_logs(folder).items():
        shutil.copyfile(path, kept / f"rank-{rank}.log")
    if folder.supervisor_log.exists():
        shutil.copyfile(folder.supervisor_log, kept / "supervisor.log")
