"""Event text is written by others: whatever it holds, it becomes one printable, bounded piece of text."""

from __future__ import annotations

import dataclasses
import unicodedata
from typing import Any, TypeVar

from ett_reports.report import Segment

T = TypeVar("T")

LONGEST = 600
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(text: str, longest: int = LONGEST) -> str:
    """Control, bidirectional, surrogate and unassigned characters become visible escapes; the rest is cut at `longest`.

    Line breaks and tabs become spaces: a message is one cell of a table. Escaping for HTML is the template's work.
    """
    kept = "".join(_visible(character) for character in text[:longest])
    return kept if len(text) <= longest else f"{kept}… (+{len(text) - longest} characters)"


def printable_tree(value: T) -> T:
    """The same report, with every free text in it made printable. Enums and numbers are left alone."""
    return _tree(value)


def _tree(value: Any) -> Any:
    if type(value) is str:
        return printable(value)
    if isinstance(value, Segment):
        return value  # holds no text, and there may be very many
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        before = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        after = {name: _tree(item) for name, item in before.items()}
        changed = {name: item for name, item in after.items() if item is not before[name]}
        return dataclasses.replace(value, **changed) if changed else value
    if isinstance(value, dict):
        return {_tree(key): _tree(item) for key, item in value.items()}
    if isinstance(value, tuple):
        items = tuple(_tree(item) for item in value)
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    if isinstance(value, list):
        return [_tree(item) for item in value]
    return value


def _visible(character: str) -> str:
    if " " <= character <= "~":
        return character
    if character in "\t\n\r":
        return " "
    if unicodedata.category(character) in _INVISIBLE:
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return character
