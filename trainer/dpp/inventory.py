"""What has landed of a window: each day's folder, marker, files and the rows that earlier days lead us to expect."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from statistics import median

from trainer.dpp.errors import LandingError
from trainer.dpp.footers import FileFacts, read_facts
from trainer.dpp.partitions import LandedFile, LandingMarker, day_folder, marker_path, present_days
from trainer.spec import Window

_TRAILING_DAYS = 28
_FEWEST_FOR_MEDIAN = 3


@dataclass(frozen=True)
class PartitionFacts:
    """One day of the window. `usual_rows` is the median of the days before it, None where there are too few."""

    day: date
    folder: str
    marker: LandingMarker | None
    files: tuple[FileFacts, ...]
    usual_rows: float | None
    problem: str | None = None

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def readable(self) -> bool:
        return self.problem is None and all(file.problem is None for file in self.files)

    @property
    def found(self) -> tuple[LandedFile, ...]:
        """The files as a marker would list them."""
        return tuple(LandedFile(Path(file.path).name, file.size, file.rows) for file in self.files)


def take_inventory(root: Path, window: Window) -> list[PartitionFacts]:
    """Every day of the window, landed or not, with the footers of its files."""
    earlier = [day for day in present_days(root) if day < window.start][-2 * _TRAILING_DAYS :]
    usual: list[int] = [rows for day in earlier if (rows := _landed_rows(root, day))]
    partitions = []
    for number in range(window.days):
        day = window.start + timedelta(days=number)
        trailing = usual[-_TRAILING_DAYS:]
        expected = float(median(trailing)) if len(trailing) >= _FEWEST_FOR_MEDIAN else None
        partitions.append(_partition(root, day, expected))
        if rows := _landed_rows(root, day):
            usual.append(rows)
    return partitions


def _partition(root: Path, day: date, usual_rows: float | None) -> PartitionFacts:
    folder = day_folder(root, day)
    marker, problem = None, None
    try:
        marker = LandingMarker.load(marker_path(root, day))
    except FileNotFoundError:
        pass
    except (LandingError, OSError) as error:
        problem = str(error)
    return PartitionFacts(
        day=day,
        folder=str(folder),
        marker=marker,
        files=tuple(read_facts(path, day) for path in _data_files(folder)),
        usual_rows=usual_rows,
        problem=problem,
    )


def _data_files(folder: Path) -> list[Path]:
    """Hidden names are files that are still being written."""
    return sorted(path for path in folder.glob("*.parquet") if not path.name.startswith((".", "_")))


def _landed_rows(root: Path, day: date) -> int:
    try:
        return LandingMarker.load(marker_path(root, day)).rows
    except (LandingError, OSError):
        return 0
