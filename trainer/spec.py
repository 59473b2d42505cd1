"""The refresh spec: all that a refresh is, validated before anything runs."""

from __future__ import annotations

import difflib
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import pydantic
import yaml
from pydantic import Field, ValidationInfo, field_validator, model_validator

from trainer.atomic_file import replace_text
from trainer.checkpoint_section import Checkpoint
from trainer.columns import Column, Contract, Hashing, Role, Transform
from trainer.compilation_section import Compilation
from trainer.located_yaml import LocatedDocument, SpecError, SpecProblem, load_located
from trainer.operations import Alerts, Notifier, Owned, OwnedName, Owner, Retention, ServiceLevel
from trainer.optimizations import Optimizations, Preset, Technique
from trainer.run_info import Purpose, RunInfo, RunType, WarmStart, Window
from trainer.section import Count, Name, Number, Positive, Section, Share, enum_of

__all__ = [
    "Alerts",
    "Checkpoint",
    "Column",
    "Compilation",
    "Contract",
    "Data",
    "Device",
    "Hashing",
    "Holdout",
    "Model",
    "Notifier",
    "Optimizations",
    "Owned",
    "Owner",
    "Preset",
    "Publishing",
    "Purpose",
    "RefreshSpec",
    "Resources",
    "Retention",
    "Retries",
    "Role",
    "RunInfo",
    "RunSpec",
    "RunType",
    "ServiceLevel",
    "SpecError",
    "SpecProblem",
    "Technique",
    "Training",
    "Transform",
    "WarmStart",
    "Window",
    "dump_run_spec",
    "load_run_spec",
    "load_spec",
    "with_overrides",
]

SPEC_VERSION = 1
NO_SCHEDULE = "none"


class Device(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Holdout(Section):
    """The entities never trained on: those whose salted hash falls below `fraction`."""

    fraction: Annotated[Number, Field(gt=0, lt=1)] = 0.05
    salt: int = 1


class Data(Section):
    """Where the day partitions are, and what a refresh takes of them.

    `landing_wait_s`: how long a run waits for the landing markers of its days before it is checked without them.
    """

    root: str
    prepare: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*$")] | None = None
    first_window_days: Count = 56
    holdout: Holdout = Holdout()
    min_rows_vs_median: Share = 0.3
    landing_wait_s: Annotated[Number, Field(ge=0)] = 6 * 3600.0


class Model(Section):
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


class Training(Section):
    """Per-rank batch size (rows), learning rates, and steps over which they rise to these (0: from the first step).

    Whatever `deterministic` says, a killed run ends with the bits of one that was not, on the same number of ranks and
    host type, as long as it has at most 2 ranks and its model uses no operation that torch calls nondeterministic.
    `deterministic` covers the rest, at some cost: see `trainer.determinism`.
    """

    batch_size: Count
    dense_learning_rate: Positive = 0.001
    sparse_learning_rate: Positive = 0.02
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    seed: int = 7
    deterministic: bool = False


class Publishing(Section):
    """The gates between an anchor checkpoint and the registry."""

    max_prediction_difference: Positive = 1e-5
    min_holdout_auc: Share = 0.5


class Resources(Section):
    """Where the training job runs, how many ranks it has, and when it counts as hung.

    `grace_s`: seconds between a preemption's warning and the end. A stage of startup hangs after `hang_timeout_s`, a
    step after `hang_factor` times the running median step, but never before `hang_floor_s`.
    `pool`: the Airflow pool of the cluster, which bounds the training jobs that are held there at once.
    `standby_idle_s`: how long a warm standby without a job stays, holding memory but no device.
    """

    scheduler: Literal["local"] = "local"
    pool: Name | None = None
    ranks: Count = 2
    device: Annotated[Device, enum_of(Device)] = Device.AUTO
    grace_s: Positive = 30.0
    hang_timeout_s: Positive = 300.0
    hang_factor: Annotated[Number, Field(gt=1)] = 10.0
    hang_floor_s: Positive = 120.0
    standby_idle_s: Positive = 600.0


class Retries(Section):
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


class RefreshSpec(Section):
    """One model's refresh: a file in `dags/refreshes/`, and one DAG.

    `schedule`: cron, UTC, or `none`. `on_assets`: names of Airflow assets whose events start a run as well.
    `freshness_deadline_s`: how long after the end of a scheduled day its snapshot is expected to be live.
    """

    version: Literal[1]
    name: Name
    description: str = ""
    team: Name | None = None
    schedule: str = "0 3 * * *"
    on_assets: list[str] = []
    freshness_deadline_s: Positive | None = None
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
    compilation: Compilation = Compilation()
    optimizations: Optimizations = Optimizations()
    alerts: Alerts = Alerts()
    retention: Retention = Retention()

    @field_validator("schedule")
    @classmethod
    def _cron(cls, value: str) -> str:
        if value != NO_SCHEDULE and len(value.split()) != 5:
            raise ValueError(f"{value!r} is no cron expression of five fields, e.g. `0 3 * * *`, nor `{NO_SCHEDULE}`")
        return value

    @field_validator("alerts")
    @classmethod
    def _teams(cls, value: Alerts, info: ValidationInfo) -> Alerts:
        known = {owner.team for owner in info.data.get("owners", {}).values()}
        known |= {value.fallback.team} if value.fallback else set()
        for team in (team for notifier in value.notifiers for team in notifier.teams):
            if team not in known:
                raise ValueError(f"team {team!r} of a notifier owns nothing here; owners are {sorted(known) or 'none'}")
        return value

    @model_validator(mode="after")
    def _tuned_for_one_size(self) -> Self:
        on = self.optimizations.enabled
        searched = self.compilation.max_autotune and not on(Technique.AUTOTUNE_PRUNING)
        varies = on(Technique.DYNAMIC_SHAPES) and not on(Technique.FIXED_BATCH)
        if searched and varies and self.resources.device is not Device.CUDA:
            raise ValueError(
                "compilation.max_autotune with autotune_pruning off and dynamic_shapes on: on CPU, code that was tuned "
                "among all implementations fails at the second batch size; switch one of them, or fixed_batch on"
            )
        return self


class RunSpec(Section):
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
    replace_text(Path(path), yaml.safe_dump(spec.model_dump(mode="json", exclude_none=True), sort_keys=False))


def with_overrides(spec: RefreshSpec, overrides: dict[str, dict[str, Any]]) -> RefreshSpec:
    """`spec` with a run's parameters applied by section, e.g. `{"training": {"batch_size": 256}}`, validated anew.

    Raises:
        SpecError: an unknown section or field, a bad value, or the model's factory, which no run may choose.
    """
    for field, given in (("model.factory", "factory" in overrides.get("model", {})), ("alerts", "alerts" in overrides)):
        if given:
            raise SpecError([SpecProblem("run parameters", 1, field, "code is named in the spec file only")])
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


AnySection = TypeVar("AnySection", bound=Section)


def _validated(kind: type[AnySection], document: LocatedDocument) -> AnySection:
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
    known = {name for section in Section.__subclasses__() for name in section.model_fields}
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
