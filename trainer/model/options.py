"""An architecture's own options: what a spec's `model.options` may say, checked against the architecture's defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

Options = TypeVar("Options")


def options_of(kind: type[Options], given: Mapping[str, Any]) -> Options:
    """`given` as the dataclass `kind`, every field of which is a positive whole number with a default.

    Raises:
        ValueError: an option that the architecture does not have, or a value that is no positive whole number.
    """
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]  # a dataclass type
    for name, value in given.items():
        if name not in known:
            has = ", ".join(known) or "none"
            raise ValueError(f"model.options.{name} is not an option of this model; it has {has}")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"model.options.{name} is {value!r}; give a whole number of at least 1")
    return kind(**given)
