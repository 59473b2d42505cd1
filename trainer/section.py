"""What every section of a spec shares: strictness, and the few types that YAML needs help with."""

from __future__ import annotations

import re
from datetime import date
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


def enum_of(kind: type[StrEnum]) -> BeforeValidator:
    """Strict mode wants enum members; YAML has strings. Says which names there are."""

    def parse(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"{value!r} is not one of {', '.join(kind)}") from None

    return BeforeValidator(parse)


def _day(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise ValueError(f"{value!r} is not a date; write YYYY-MM-DD") from None
    return value


def _number(value: Any) -> Any:
    """YAML 1.1 reads `1e-5` as text; people mean the number."""
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value):
        return float(value)
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Positive = Annotated[float, BeforeValidator(_number), Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Day = Annotated[date, BeforeValidator(_day)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=100)]
