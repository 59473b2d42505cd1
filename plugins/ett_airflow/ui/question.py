"""What the API server asks a worker process, and what comes back, one line of JSON each way."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class View(StrEnum):
    """The parts of pages that need a run's event log or its report."""

    REPORT = "report"
    FIGURES = "figures"
    TASK = "task"
    COMPARISON = "comparison"
    HEADLINES = "headlines"


@dataclass(frozen=True, kw_only=True)
class Question:
    """One view of some run folders. `task` names the task of View.TASK."""

    view: View
    folders: tuple[str, ...]
    task: str = ""

    def to_line(self) -> bytes:
        return json.dumps({"view": self.view, "folders": self.folders, "task": self.task}).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Question:
        given = json.loads(line)
        return cls(view=View(given["view"]), folders=tuple(given["folders"]), task=given["task"])


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a worker made of a question.

    Attributes:
        html: a fragment of a page, escaped already.
        facts: plain values beside it.
        live: the figures go on with the time, even if nothing is added to the log.
        problem: why there is no fragment, in words for people; empty if there is one.
        cost_s: seconds of CPU time that it took.
        pending: the work goes on; whoever asks again later finds it done.
    """

    html: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    live: bool = False
    problem: str = ""
    cost_s: float = 0.0
    pending: bool = False

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Answer:
        return cls(**json.loads(line))
