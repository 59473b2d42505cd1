"""The `compilation` section of the refresh spec: what the compiler is asked for, and where its artifacts are kept."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from trainer.section import Section
from trainer.storage import check_location

ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.\w+)*$")]


class Compilation(Section):
    """How the model is compiled.

    `max_autotune`: the compiler times several implementations of every matrix product and takes the fastest.
    `untraced_modules`: modules by their path in the model, e.g. `tower.attention`, that run eagerly when the technique
    `skip_modules` is on.
    `archive_root`: a path or URL (`file://`, `s3://BUCKET/PREFIX`) below which compiled artifacts are kept as
    `<refresh>/`; without it they are beside the refresh's run folders.
    """

    max_autotune: bool = False
    untraced_modules: list[ModuleName] = []
    archive_root: str | None = None

    @field_validator("archive_root")
    @classmethod
    def _somewhere(cls, value: str | None) -> str | None:
        return value if value is None else check_location(value)
