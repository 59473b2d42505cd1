"""The refresh spec: all that a refresh is, validated before anything runs."""

from __future__ import annotations

import difflib
import re
import sys
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import pydantic
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from trainer.located_yaml import LocatedDocument, SpecError, SpecProblem, load_located

__all__ = ["RefreshSpec", "RunInfo", "RunSpec", "SpecError", "Technique", "dump_run_spec", "load_run_spec", "load_spec"]

SPEC_VERSION = 1


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


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


class Preset(StrEnum):
    BASELINE = "baseline"
    OPTIMIZED = "optimized"


class Technique(StrEnum):
    """Every technique that can be switched by name (paper section IV)."""

    ASYNC_CHECKPOINT = "async_checkpoint"  # IV-C a, b
    COMPILE_CACHE = "compile_cache"  # IV-B, reusable artifacts
    DYNAMIC_SHAPES = "dynamic_shapes"  # IV-B, mark_dynamic
    LOCAL_SHARD_METADATA = "local_shard_metadata"  # IV-A1
    SHARDING_PLAN_CACHE = "sharding_plan_cache"  # IV-A, the plan of an unchanged model is not searched again


class Device(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Warm(StrEnum):
    """How a run chooses the anchor that it starts from."""

    AUTO = "auto"
    NONE = "none"


def _enum(kind: type[StrEnum]) -> BeforeValidator:
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

_TYPE_OF_ROLE = {
    Role.LABEL: {"float32"},
    Role.EVENT_TIME: {"timestamp[us, tz=UTC]"},
    Role.ENTITY: {"int64"},
    Role.DENSE: {"float32"},
    Role.CATEGORICAL: {"int64"},
    Role.JAGGED: {"list<element: int64 not null>"},
}
_METADATA_TYPES = {"float32", "float64", "int32", "int64", "string", "date32", "timestamp[us, tz=UTC]"}


class Column(_Section):
    """One column of the feature log. Every column is non-null; `min` and `max` bound the raw values."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    type: str
    role: Annotated[Role, _enum(Role)]
    min: Number | None = None
    max: Number | None = None
    transform: Annotated[Transform, _enum(Transform)] = Transform.NONE
    num_embeddings: Count | None = None
    hashing: Annotated[Hashing, _enum(Hashing)] = Hashing.NONE
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


class Contract(_Section):
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


class Holdout(_Section):
    """The entities never trained on: those whose salted hash falls below `fraction`."""

    fraction: Annotated[float, BeforeValidator(_number), Field(gt=0, lt=1)] = 0.05
    salt: int = 1


class Data(_Section):
    """Where the day partitions are, and what a refresh takes of them."""

    root: str
    prepare: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*$")] | None = None
    first_window_days: Count = 56
    holdout: Holdout = Holdout()
    min_rows_vs_median: Share = 0.3


class Model(_Section):
    """The model factory and its sizes. The factory is code: it is named here, never by a run's Param."""

    factory: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] = "trainer.model.dlrm:dlrm"
    embedding_dim: Annotated[int, Field(ge=4, multiple_of=4)] = 16
    dense_arch: Annotated[list[Count], Field(min_length=1)]
    over_arch: Annotated[list[Count], Field(min_length=1)]
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _interaction(self) -> Self:
        if self.dense_arch[-1] != self.embedding_dim:
            raise ValueError(
                f"dense_arch must end in embedding_dim ({self.embedding_dim}), it ends in {self.dense_arch[-1]}"
            )
        return self


class Training(_Section):
    """Per-rank batch size (rows) and learning rates."""

    batch_size: Count
    dense_learning_rate: Positive = 0.001
    sparse_learning_rate: Positive = 0.02
    seed: int = 7


class Checkpoint(_Section):
    """Seconds between the starts of two saves, and how many complete ones are kept."""

    interval_s: Positive = 600.0
    keep: Count = 2


class Publishing(_Section):
    """The gates between an anchor checkpoint and the registry."""

    max_prediction_difference: Positive = 1e-5
    min_holdout_auc: Share = 0.5


class Resources(_Section):
    """Where the training job runs and how many ranks it has."""

    scheduler: Literal["local"] = "local"
    ranks: Count = 2
    device: Annotated[Device, _enum(Device)] = Device.AUTO
    hang_timeout_s: Positive = 300.0


class Retries(_Section):
    """Retries per task; `preemptions` and `crash_loop` (attempts without progress) are budgets of the training job."""

    check_schema: Annotated[int, Field(ge=0)] = 2
    launch: Annotated[int, Field(ge=0)] = 2
    train: Annotated[int, Field(ge=0)] = 3
    publish: Annotated[int, Field(ge=0)] = 2
    ett: Annotated[int, Field(ge=0)] = 3
    report: Annotated[int, Field(ge=0)] = 2
    preemptions: Annotated[int, Field(ge=0)] = 10
    crash_loop: Count = 3
    delay_s: Positive = 10.0


class Owner(_Section):
    """The team that answers for a component."""

    team: str
    contact: str | None = None


class ServiceLevel(_Section):
    """A component's budget: a share of the job's wall time, or seconds."""

    share: Share | None = None
    seconds: Positive | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.share is None) == (self.seconds is None):
            raise ValueError("give either `share` (of wall time, 0 to 1) or `seconds`")
        return self


class Owned(StrEnum):
    """What can have an owner and a service level: the six components of Table II, and the tasks around them."""

    SCHEDULING = "scheduling"
    TRAINER_INIT = "trainer_init"
    PT2_COMPILE = "pt2_compile"
    EFFECTIVE_TRAINING = "effective_training"
    WASTED_TRAINING = "wasted_training"
    SHUTDOWN = "shutdown"
    DATA = "data"
    PUBLISHING = "publishing"


OwnedName = Annotated[Owned, _enum(Owned)]


class Optimizations(_Section):
    """A preset and exceptions to it by name."""

    preset: Annotated[Preset, _enum(Preset)] = Preset.OPTIMIZED
    async_checkpoint: bool | None = None
    compile_cache: bool | None = None
    dynamic_shapes: bool | None = None
    local_shard_metadata: bool | None = None
    sharding_plan_cache: bool | None = None

    def enabled(self, technique: Technique) -> bool:
        """Whether `technique` is on: its own switch if given, else what the preset says."""
        switch: bool | None = getattr(self, technique.value)
        return self.preset is Preset.OPTIMIZED if switch is None else switch

    def resolved(self) -> dict[str, bool]:
        """Every technique and its state."""
        return {technique.value: self.enabled(technique) for technique in Technique}


class RefreshSpec(_Section):
    """One model's refresh: a file in `dags/refreshes/`, and one DAG."""

    version: Literal[1]
    name: Name
    description: str = ""
    schedule: str = "0 3 * * *"
    data: Data
    contract: Contract
    model: Model
    training: Training
    checkpoint: Checkpoint = Checkpoint()
    publishing: Publishing = Publishing()
    resources: Resources = Resources()
    retries: Retries = Retries()
    owners: dict[OwnedName, Owner] = {}
    service_levels: dict[OwnedName, ServiceLevel] = {}
    optimizations: Optimizations = Optimizations()

    @field_validator("schedule")
    @classmethod
    def _cron(cls, value: str) -> str:
        if len(value.split()) != 5:
            raise ValueError(f"{value!r} is not a cron expression of five fields, e.g. `0 3 * * *`")
        return value


class Window(_Section):
    """Days of the feature log, `start` included, `end` not."""

    start: Day
    end: Day

    @model_validator(mode="after")
    def _forward(self) -> Self:
        if self.end <= self.start:
            raise ValueError(f"window end {self.end} must be after its start {self.start} (the end is exclusive)")
        return self

    @property
    def days(self) -> int:
        return (self.end - self.start).days


class WarmStart(_Section):
    """The anchor checkpoint that a run starts from, and the run that wrote it."""

    run: str
    anchor: str


class RunType(StrEnum):
    SCHEDULED = "scheduled"
    MANUAL = "manual"
    BACKFILL = "backfill"
    ASSET = "asset_triggered"


class RunInfo(_Section):
    """What is decided once per run, before its first task starts work."""

    run: str
    window: Window
    run_type: Annotated[RunType, _enum(RunType)] = RunType.MANUAL
    warm_start: WarmStart | None = None
    params: dict[str, Any] = {}
    newest_day: Day | None = None


class RunSpec(_Section):
    """The resolved spec in the run folder: the refresh with the run's parameters applied, and the run itself."""

    version: Literal[1] = 1
    refresh: RefreshSpec
    run: RunInfo


def load_spec(path: str | Path) -> RefreshSpec:
    """Read a refresh spec.

    Raises:
        SpecError: every fault with file, line, field and what to do.
    """
    document = load_located(Path(path))
    _check_version(document)
    return _validated(RefreshSpec, document)


def load_run_spec(path: str | Path) -> RunSpec:
    """Read the resolved spec of a run folder.

    Raises:
        SpecError: as `load_spec`.
    """
    document = load_located(Path(path))
    _check_version(document)
    return _validated(RunSpec, document)


def dump_run_spec(spec: RunSpec, path: str | Path) -> None:
    """Write a resolved spec in one atomic step, so that no reader ever sees half of it."""
    target = Path(path)
    aside = target.with_name(f".{target.name}.writing")
    aside.write_text(yaml.safe_dump(spec.model_dump(mode="json", exclude_none=True), sort_keys=False), encoding="utf-8")
    aside.replace(target)


def with_overrides(spec: RefreshSpec, overrides: dict[str, dict[str, Any]]) -> RefreshSpec:
    """`spec` with a run's parameters applied by section, e.g. `{"training": {"batch_size": 256}}`, validated anew.

    Raises:
        SpecError: an unknown section or field, a bad value, or the model's factory, which no run may choose.
    """
    if "factory" in overrides.get("model", {}):
        raise SpecError([SpecProblem("run parameters", 1, "model.factory", "code is named in the spec file only")])
    data = spec.model_dump(mode="json", exclude_none=True)
    for section, values in overrides.items():
        data[section] = {**data.get(section, {}), **values}
    return _validated(RefreshSpec, LocatedDocument("run parameters", data))


def _check_version(document: LocatedDocument) -> None:
    version = document.data.get("version")
    if version != SPEC_VERSION:
        told = "missing" if version is None else f"{version!r}"
        message = f"is {told}; this release reads version {SPEC_VERSION} (write `version: {SPEC_VERSION}`)"
        raise SpecError([document.problem(("version",), message)])


_AnySection = TypeVar("_AnySection", bound=_Section)


def _validated(kind: type[_AnySection], document: LocatedDocument) -> _AnySection:
    try:
        return kind.model_validate(document.data)
    except pydantic.ValidationError as error:
        problems = [_problem(document, dict(detail)) for detail in error.errors()]
        raise SpecError(sorted(problems, key=lambda problem: problem.line)) from None


def _problem(document: LocatedDocument, detail: dict[str, Any]) -> SpecProblem:
    location = tuple(part for part in detail["loc"] if part != "[key]")
    kind, message = detail["type"], str(detail["msg"])
    if kind == "extra_forbidden":
        message = _unknown(location)
    elif kind == "missing":
        message = "is required and missing"
    elif kind == "value_error":
        message = message.removeprefix("Value error, ")
    else:
        message = f"{message[0].lower()}{message[1:]}, got {detail['input']!r}"
    return document.problem(location, message)


def _unknown(location: tuple[str | int, ...]) -> str:
    """Says what was probably meant, among the fields that sections have."""
    known = {name for section in _Section.__subclasses__() for name in section.model_fields}
    close = difflib.get_close_matches(str(location[-1]), known, n=1)
    return "is not a field of this section" + (f"; did you mean `{close[0]}`?" if close else "; check its spelling")


def main(arguments: list[str]) -> int:
    """`python -m trainer.spec check FILE...`: 0 if all are valid, 1 if not, 2 for wrong usage."""
    if len(arguments) < 2 or arguments[0] != "check":
        print("usage: python -m trainer.spec check FILE...", file=sys.stderr)
        return 2
    status = 0
    for path in arguments[1:]:
        try:
            spec = load_spec(path)
        except SpecError as error:
            print(error, file=sys.stderr)
            status = 1
        else:
            contract = spec.contract
            print(
                f"{path}: valid; {spec.name}, {len(contract.columns)} columns ({len(contract.dense)} dense, "
                f"{len(contract.categorical)} categorical, {len(contract.jagged)} jagged), {spec.resources.ranks} ranks"
            )
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
