"""Frozen dataclasses to plain JSON values and back, driven by their type hints."""

from __future__ import annotations

import dataclasses
import types
import typing
from enum import Enum
from fractions import Fraction
from typing import Any, TypeVar

T = TypeVar("T")


class CodecError(ValueError):
    """A document that does not fit the dataclass; the message names the place."""


def encode(value: Any) -> Any:
    """JSON-ready values: dataclasses become objects, enums their value, tuples lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, dict):
        return {(key.value if isinstance(key, Enum) else str(key)): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def decode(kind: type[T], value: Any, where: str = "$") -> T:
    """The inverse of `encode`. Unknown keys are ignored, so that a minor addition does not break older readers."""
    return _decode(kind, value, where)


def _decode(kind: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if kind is Any:
        return value
    if origin is not None:
        return _decode_generic(origin, typing.get_args(kind), value, where)
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, where)
    if issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            known = ", ".join(str(item.value) for item in kind)
            raise CodecError(f"{where}: {value!r} is not one of {known}") from None
    if kind is Fraction:
        _expect(value, str, where)
        return Fraction(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    _expect(value, kind, where)
    return value


def _decode_generic(origin: Any, arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _decode(next(a for a in arguments if a is not type(None)), value, where)
    if origin is tuple:
        _expect(value, list, where)
        return tuple(_decode(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    _expect(value, dict, where)
    return {_key(arguments[0], key): _decode(arguments[1], item, f"{where}.{key}") for key, item in value.items()}


def _decode_dataclass(kind: Any, value: Any, where: str) -> Any:
    _expect(value, dict, where)
    hints = typing.get_type_hints(kind)
    given: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name in value:
            given[field.name] = _decode(hints[field.name], value[field.name], f"{where}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise CodecError(f"{where}.{field.name}: missing")
    return kind(**given)


def _key(kind: Any, key: str) -> Any:
    return kind(int(key)) if kind is int else kind(key)


def _expect(value: Any, kind: type, where: str) -> None:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise CodecError(f"{where}: expected {kind.__name__}, found {type(value).__name__}")
