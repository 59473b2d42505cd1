"""What a person may choose for one run: Airflow Params, and the spec overrides they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from enum import StrEnum
from typing import Any

from airflow.sdk import Param

from ett_airflow.window import Warm, WindowError
from trainer.spec import Preset, Purpose, RefreshSpec, RunType, Technique

WINDOW_START = "window_start"
WINDOW_END = "window_end"
DAYS = "days"
WARM_START = "warm_start"
PURPOSE = "purpose"
PUBLISH_LIVE = "publish_live"
DRY_RUN = "dry_run"

AUTO = "auto"
"""Of `purpose`: tuning as soon as anything but the days differs from the spec."""
_DAYS_AND_PURPOSE = frozenset({WINDOW_START, WINDOW_END, PURPOSE, PUBLISH_LIVE, DRY_RUN})

# Param -> section and field of the spec. The model's factory is code and is not among them.
_OVERRIDES = {
    "preset": ("optimizations", "preset"),
    "batch_size": ("training", "batch_size"),
    "dense_learning_rate": ("training", "dense_learning_rate"),
    "sparse_learning_rate": ("training", "sparse_learning_rate"),
    "seed": ("training", "seed"),
    "ranks": ("resources", "ranks"),
}


class Switch(StrEnum):
    """A technique in the form. `spec`: as the spec file says it, by name or by its preset."""

    SPEC = "spec"
    ON = "on"
    OFF = "off"


def params_of(spec: RefreshSpec) -> dict[str, Param]:
    """The Params of a refresh's DAG; defaults are the spec's values. An empty window is decided when the run starts."""
    params = {**_day_params(), **_training_params(spec), **_technique_params(spec), **_run_params()}
    for param in params.values():
        # Airflow checks each schema at every parse: of 500 DAGs in 2 s by this dialect, in 5 s by jsonschema's newest.
        param.schema["$schema"] = "http://json-schema.org/draft-07/schema#"
    return params


def _day_params() -> dict[str, Param]:
    section = "Which days"
    return {
        WINDOW_START: Param(
            None,
            type=["null", "string"],
            format="date",
            title="First day",
            description="Empty: the day of the data interval; by hand, the first landed day that is not trained yet.",
            section=section,
        ),
        WINDOW_END: Param(
            None,
            type=["null", "string"],
            format="date",
            title="Day after the last",
            description="Exclusive. Empty: the day after the first day.",
            section=section,
        ),
        DAYS: Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Number of days",
            description="Alone: so many of the newest landed days. With a first day or an end: from there.",
            section=section,
        ),
        WARM_START: Param(
            str(Warm.AUTO),
            type="string",
            pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
            title="Warm start",
            description="auto: the newest anchor that ends before the window; none: from scratch; or a run's id.",
            section=section,
        ),
    }


def _training_params(spec: RefreshSpec) -> dict[str, Param]:
    training, section = spec.training, "Training"
    return {
        "dense_learning_rate": Param(
            training.dense_learning_rate,
            type="number",
            exclusiveMinimum=0,
            title="Learning rate, dense layers",
            section=section,
        ),
        "sparse_learning_rate": Param(
            training.sparse_learning_rate,
            type="number",
            exclusiveMinimum=0,
            title="Learning rate, embedding tables",
            section=section,
        ),
        "batch_size": Param(
            training.batch_size, type="integer", minimum=1, title="Rows per rank and step", section=section
        ),
        "seed": Param(training.seed, type="integer", title="Seed", section=section),
        "ranks": Param(spec.resources.ranks, type="integer", minimum=1, title="Ranks", section=section),
    }


def _technique_params(spec: RefreshSpec) -> dict[str, Param]:
    section = "Techniques"
    preset = Param(
        str(spec.optimizations.preset),
        type="string",
        enum=[str(preset) for preset in Preset],
        title="Preset",
        description="What every technique that is not set below is: all off, or all on.",
        section=section,
    )
    switches = {
        str(technique): Param(
            str(Switch.SPEC),
            type="string",
            enum=[str(switch) for switch in Switch],
            values_display={Switch.SPEC: f"as in the spec ({_in_spec(spec, technique)})", "on": "on", "off": "off"},
            title=str(technique).replace("_", " "),
            section=section,
        )
        for technique in Technique
    }
    return {"preset": preset, **switches}


def _in_spec(spec: RefreshSpec, technique: Technique) -> str:
    switch: bool | None = getattr(spec.optimizations, technique.value)
    return "the preset" if switch is None else "on" if switch else "off"


def _run_params() -> dict[str, Param]:
    section = "This run"
    return {
        PURPOSE: Param(
            AUTO,
            type="string",
            enum=[AUTO, *(str(purpose) for purpose in Purpose)],
            title="Purpose",
            description="daily: the next link of the chain, live afterwards. tuning: a trial; no later run starts from "
            "it and it does not go live. auto: daily, but tuning when anything except the first day and the end "
            "differs from the spec.",
            section=section,
        ),
        PUBLISH_LIVE: Param(
            False,
            type="boolean",
            title="Let a tuning run go live",
            description="Its snapshot becomes the live one, unless a later day is live.",
            section=section,
        ),
        DRY_RUN: Param(
            False,
            type="boolean",
            title="Dry run",
            description="Only show the resolved spec and how it differs from the daily one, in the log of "
            "check_schema and as its XCom dry_run.",
            section=section,
        ),
    }


def overrides_of(params: Mapping[str, Any], spec: RefreshSpec) -> dict[str, dict[str, Any]]:
    """Where `params` differ from `spec`, by section, as `trainer.spec.with_overrides` takes them."""
    overrides: dict[str, dict[str, Any]] = {}
    for name, (section, field) in _OVERRIDES.items():
        value = params.get(name)
        if value is not None and value != getattr(getattr(spec, section), field):
            overrides.setdefault(section, {})[field] = value
    for technique in Technique:
        switch = params.get(technique.value)
        if switch in (Switch.ON, Switch.OFF):
            overrides.setdefault("optimizations", {})[technique.value] = switch == Switch.ON
    return overrides


def chosen(params: Mapping[str, Any], spec: RefreshSpec) -> dict[str, Any]:
    """The Params that a person set to something else than their default."""
    defaults = {name: param.value for name, param in params_of(spec).items()}
    return {name: value for name, value in params.items() if name in defaults and value != defaults[name]}


def purpose_of(params: Mapping[str, Any], spec: RefreshSpec, run_type: RunType) -> Purpose:
    """What the run is for: what was said, else a trial if a person asks for other training than the spec's."""
    said = params.get(PURPOSE) or AUTO
    if said != AUTO:
        return Purpose(said)
    if run_type is not RunType.MANUAL:
        return Purpose.DAILY
    return Purpose.TUNING if chosen(params, spec).keys() - _DAYS_AND_PURPOSE else Purpose.DAILY


def goes_live(params: Mapping[str, Any], purpose: Purpose) -> bool:
    """Whether the run's snapshot may become the live one."""
    return purpose is Purpose.DAILY or bool(params.get(PUBLISH_LIVE))


def day_of(params: Mapping[str, Any], name: str) -> date | None:
    """The date in Param `name`; None if empty.

    Raises:
        WindowError: something that is no date.
    """
    value = params.get(name)
    if value in (None, ""):
        return None
    try:
        return date.fromisoformat(str(value))
    except ValueError:
        raise WindowError(f"{name} {value!r} is not a date; write YYYY-MM-DD") from None
