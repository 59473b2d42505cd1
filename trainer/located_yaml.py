"""YAML with the line of every value, so that an error can say where it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Location = tuple[str | int, ...]

# libyaml's where the wheel has it: Airflow parses all specs again and again, and it is ten times as fast.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class SpecProblem:
    """One thing wrong with a file: where it is and what to do about it."""

    file: str
    line: int
    field: str
    message: str

    def __str__(self) -> str:
        where = f" {self.field}:" if self.field else ""
        return f"{self.file}:{self.line}:{where} {self.message}"


class SpecError(ValueError):
    """A spec file that cannot be used; `problems` holds every fault found, not only the first."""

    def __init__(self, problems: Sequence[SpecProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass
class LocatedDocument:
    """A parsed YAML mapping together with the 1-based line of each value."""

    file: str
    data: dict[str, Any]
    lines: dict[Location, int] = field(default_factory=dict)

    def line_of(self, location: Sequence[str | int]) -> int:
        """The line of the value at `location`, or of its nearest ancestor that the file holds."""
        path = tuple(location)
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def problem(self, location: Sequence[str | int], message: str) -> SpecProblem:
        """A fault at `location`, with its file and line."""
        return SpecProblem(self.file, self.line_of(location), dotted(location), message)


def dotted(location: Sequence[str | int]) -> str:
    """`("columns", 3, "min")` as people write it: `columns[3].min`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def load_located(path: Path) -> LocatedDocument:
    """Read one YAML mapping.

    Raises:
        SpecError: the file is missing, unreadable, not UTF-8, not YAML, not a mapping, or repeats a key.
    """
    file = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError([SpecProblem(file, 1, "", f"cannot be read: {error.strerror or error}")]) from error
    except UnicodeDecodeError as error:
        raise SpecError([SpecProblem(file, 1, "", f"is not UTF-8 text (byte {error.start})")]) from error
    try:
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        what = getattr(error, "problem", None) or "unreadable"
        raise SpecError([SpecProblem(file, line, "", f"is not valid YAML: {what}")]) from error
    if not isinstance(node, yaml.MappingNode):
        raise SpecError([SpecProblem(file, 1, "", "must be a mapping of fields, e.g. `version: 1`")])
    return _Builder(file).document(node)


class _Builder:
    """Turns YAML nodes into plain values while noting their lines."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[Location, int] = {}
        self.problems: list[SpecProblem] = []
        self.scalars = yaml.SafeLoader("")

    def document(self, node: yaml.MappingNode) -> LocatedDocument:
        data = self.value(node, ())
        if self.problems:
            raise SpecError(self.problems)
        return LocatedDocument(self.file, data, self.lines)

    def value(self, node: yaml.Node, path: Location) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            return self.scalars.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            message = getattr(error, "problem", None) or str(error)
            self.problems.append(SpecProblem(self.file, node.start_mark.line + 1, dotted(path), str(message)))
            return None

    def mapping(self, node: yaml.MappingNode, path: Location) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            here = (*path, key)
            if key in result:
                first = self.lines[here]
                self.problems.append(
                    SpecProblem(self.file, line, dotted(here), f"is given twice (first on line {first}); keep one")
                )
                continue
            self.lines[here] = line
            result[key] = self.value(value_node, here)
        return result
