"""The marker of a preempted attempt: for schedulers that hide exit codes, and for people who ask what it has cost."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from trainer.atomic_file import replace_text
from trainer.run_folder import RunFolder

FILE_NAME = "preempted.json"
FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class PreemptedMarker:
    """How the newest attempt left after a warning. The next attempt removes it when it begins.

    Attributes:
        step, cursor: how far the attempt had trained; None if it left in startup.
        saved: whether a checkpoint holds all of that.
        reason: why not; empty if it does.
        noticed_unix_ns: when the first rank was warned, as far as the writer knows.
    """

    attempt: int
    step: int | None
    cursor: int | None
    saved: bool
    reason: str
    noticed_unix_ns: int | None
    left_unix_ns: int

    def write(self, run_folder: RunFolder) -> None:
        """Take the place of any other.

        Raises:
            OSError: disk full, no permission, ...
        """
        replace_text(_path(run_folder), json.dumps({"version": FORMAT_VERSION, **asdict(self)}, indent=1))

    def write_if_first(self, run_folder: RunFolder) -> None:
        """Unless another rank of this attempt has left one, which had more time to know.

        Raises:
            OSError: as `write`.
        """
        found = PreemptedMarker.read(run_folder)
        if found is None or found.attempt != self.attempt:
            self.write(run_folder)

    @classmethod
    def read(cls, run_folder: RunFolder) -> PreemptedMarker | None:
        """The marker; None if there is none, or none that this release reads."""
        try:
            content = json.loads(_path(run_folder).read_text())
            if content.pop("version") != FORMAT_VERSION:
                return None
            known = {field.name for field in fields(cls)}
            return cls(**{name: value for name, value in content.items() if name in known})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    @staticmethod
    def remove(run_folder: RunFolder) -> None:
        """A new attempt begins. What an earlier one has left half written goes too."""
        for left in [_path(run_folder), *run_folder.root.glob(f".{FILE_NAME}.*.writing")]:
            left.unlink(missing_ok=True)


def _path(run_folder: RunFolder) -> Path:
    return run_folder.root / FILE_NAME
