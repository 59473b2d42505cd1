"""The feature log's columns: what each is to the model, its type, its bounds and its embedding table."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from trainer.section import Count, Number, Section, enum_of


class Role(StrEnum):
    """What a column of the feature log is to the model."""

    LABEL = "label"
    EVENT_TIME = "event_time"
    ENTITY = "entity"
    DENSE = "dense"
    CATEGORICAL = "categorical"
    JAGGED = "jagged"
    METADATA = "metadata"


class Hashing(StrEnum):
    """How a raw id becomes a row of its embedding table."""

    NONE = "none"
    SPLITMIX64 = "splitmix64"


class Transform(StrEnum):
    """What the reader does to a dense value."""

    NONE = "none"
    LOG1P = "log1p"


_TYPE_OF_ROLE = {
    Role.LABEL: {"float32"},
    Role.EVENT_TIME: {"timestamp[us, tz=UTC]"},
    Role.ENTITY: {"int64"},
    Role.DENSE: {"float32"},
    Role.CATEGORICAL: {"int64"},
    Role.JAGGED: {"list<element: int64 not null>"},
}
_METADATA_TYPES = {"float32", "float64", "int32", "int64", "string", "date32", "timestamp[us, tz=UTC]"}


class Column(Section):
    """One column of the feature log. Every column is non-null; `min` and `max` bound the raw values."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    type: str
    role: Annotated[Role, enum_of(Role)]
    min: Number | None = None
    max: Number | None = None
    transform: Annotated[Transform, enum_of(Transform)] = Transform.NONE
    num_embeddings: Count | None = None
    hashing: Annotated[Hashing, enum_of(Hashing)] = Hashing.NONE
    max_length: Count | None = None
    table: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        allowed = _TYPE_OF_ROLE.get(self.role, _METADATA_TYPES)
        if self.type not in allowed:
            raise ValueError(f"a {self.role} column has type {' or '.join(sorted(allowed))}, not {self.type!r}")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is above max {self.max:g}")
        if self.transform is not Transform.NONE and self.role is not Role.DENSE:
            raise ValueError("transform applies to dense columns only")
        if self.transform is Transform.LOG1P and (self.min is None or self.min <= -1):
            raise ValueError("transform log1p needs `min` above -1, so that it is defined for every value")
        self._check_ids()
        return self

    def _check_ids(self) -> None:
        sparse = self.role in (Role.CATEGORICAL, Role.JAGGED)
        if sparse and self.num_embeddings is None:
            raise ValueError(f"a {self.role} column needs num_embeddings, the rows of its embedding table")
        if not sparse and (self.num_embeddings is not None or self.hashing is not Hashing.NONE or self.table):
            raise ValueError("num_embeddings, hashing and table belong to categorical and jagged columns")
        if (self.max_length is not None) != (self.role is Role.JAGGED):
            raise ValueError("max_length is required for jagged columns and belongs to no other")

    @property
    def table_name(self) -> str:
        """The embedding table that this column's ids look up."""
        return self.table or self.name


class Contract(Section):
    """The feature log's columns, in the order in which the files hold them."""

    columns: Annotated[list[Column], Field(min_length=1)]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        names = [column.name for column in self.columns]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"columns named twice: {', '.join(repeated)}")
        for role in (Role.LABEL, Role.EVENT_TIME, Role.ENTITY):
            count = len(self._of(role))
            if count != 1:
                raise ValueError(f"exactly one column has role {role}, here {count} do")
        for needed, columns in (("dense", self.dense), ("categorical or jagged", self.sparse)):
            if not columns:
                raise ValueError(f"at least one {needed} column is needed")
        self._check_tables()
        return self

    def _check_tables(self) -> None:
        owners = {column.name: column for column in self.sparse if column.table is None}
        for column in self.sparse:
            owner = owners.get(column.table_name)
            if owner is None:
                raise ValueError(
                    f"{column.name}: table {column.table!r} is not a sparse column with a table of its own"
                )
            if (column.num_embeddings, column.hashing) != (owner.num_embeddings, owner.hashing):
                raise ValueError(
                    f"{column.name} and {owner.name} share a table: same num_embeddings and hashing needed"
                )

    def _of(self, *roles: Role) -> list[Column]:
        return [column for column in self.columns if column.role in roles]

    @property
    def label(self) -> Column:
        return self._of(Role.LABEL)[0]

    @property
    def event_time(self) -> Column:
        return self._of(Role.EVENT_TIME)[0]

    @property
    def entity(self) -> Column:
        return self._of(Role.ENTITY)[0]

    @property
    def dense(self) -> list[Column]:
        return self._of(Role.DENSE)

    @property
    def categorical(self) -> list[Column]:
        return self._of(Role.CATEGORICAL)

    @property
    def jagged(self) -> list[Column]:
        return self._of(Role.JAGGED)

    @property
    def sparse(self) -> list[Column]:
        """Categorical, then jagged: the order of keys in every KeyedJaggedTensor."""
        return self.categorical + self.jagged
