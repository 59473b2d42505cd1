"""A Dockerfile as data: its stages, each a list of instructions in order."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True)
class Instruction:
    """`name` in capitals, and all that stands behind it, lines joined."""

    name: str
    text: str

    def words(self) -> list[str]:
        """Its arguments: of a JSON array, or split as a shell does."""
        return list(json.loads(self.text)) if self.text.startswith("[") else shlex.split(self.text)


@dataclass
class Stage:
    """`FROM parent AS name` and what follows."""

    name: str
    parent: str
    instructions: list[Instruction] = field(default_factory=list)


def stages(path: Path) -> dict[str, Stage]:
    """The stages of a Dockerfile by name, in the file's order."""
    found: dict[str, Stage] = {}
    for instruction in _instructions(path.read_text(encoding="utf-8")):
        if instruction.name == "FROM":
            parent, _, name = instruction.text.partition(" AS ")
            found[name] = Stage(name, parent)
        else:
            next(reversed(found.values())).instructions.append(instruction)
    return found


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """`$NAME` and `${NAME}` replaced, unknown ones by nothing, as the builder does outside RUN."""
    return _VARIABLE.sub(lambda match: variables.get(match[1] or match[2], ""), text)


def assignments(text: str) -> dict[str, str]:
    """`A=1 B="2 3"` of ENV and ARG."""
    pairs = (word.partition("=") for word in shlex.split(text))
    return {name: value for name, separator, value in pairs if separator}


def _instructions(text: str) -> Iterator[Instruction]:
    joined = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#") or not line.strip():
            continue
        joined += line.strip()
        if joined.endswith("\\"):
            joined = joined[:-1]
            continue
        name, _, rest = joined.partition(" ")
        yield Instruction(name.upper(), rest.strip())
        joined = ""
