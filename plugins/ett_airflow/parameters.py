"""What a person may choose for one run: Airflow Params, and the spec overrides they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

from airflow.sdk import Param

from ett_airflow.window import Warm, WindowError
from trainer.spec import Preset, RefreshSpec

WINDOW_START = "window_start"
WINDOW_END = "window_end"
WARM_START = "warm_start"

# Param -> section and field of the spec. The model's factory is code and is not among them.
_OVERRIDES = {
    "preset": ("optimizations", "preset"),
    "batch_size": ("training", "batch_size"),
    "dense_learning_rate": ("training", "dense_learning_rate"),
    "sparse_learning_rate": ("training", "sparse_learning_rate"),
    "seed": ("training", "seed"),
    "ranks": ("resources", "ranks"),
}


def params_of(spec: RefreshSpec) -> dict[str, Param]:
    """The Params of a refresh's DAG; defaults are the spec's values. An empty window is decided when the run starts."""
    training = spec.training
    return {
        WINDOW_START: Param(
            None,
            type=["null", "string"],
            format="date",
            title="First day",
            description="Empty: the day of the data interval; by hand, the first landed day that is not trained yet.",
        ),
        WINDOW_END: Param(
            None,
            type=["null", "string"],
            format="date",
            title="Day after the last",
            description="Exclusive. Empty: the day after the first day.",
        ),
        WARM_START: Param(
            str(Warm.AUTO),
            type="string",
            pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
            title="Warm start",
            description="auto: the newest anchor that ends before the window; none: from scratch; or a run's id.",
        ),
        "preset": Param(
            str(spec.optimizations.preset), type="string", enum=[str(preset) for preset in Preset], title="Techniques"
        ),
        "batch_size": Param(training.batch_size, type="integer", minimum=1, title="Rows per rank and step"),
        "dense_learning_rate": Param(training.dense_learning_rate, type="number", exclusiveMinimum=0),
        "sparse_learning_rate": Param(training.sparse_learning_rate, type="number", exclusiveMinimum=0),
        "seed": Param(training.seed, type="integer"),
        "ranks": Param(spec.resources.ranks, type="integer", minimum=1, title="Ranks"),
    }


def overrides_of(params: Mapping[str, Any], spec: RefreshSpec) -> dict[str, dict[str, Any]]:
    """Where `params` differ from `spec`, by section, as `trainer.spec.with_overrides` takes them."""
    overrides: dict[str, dict[str, Any]] = {}
    for name, (section, field) in _OVERRIDES.items():
        value = params.get(name)
        if value is not None and value != getattr(getattr(spec, section), field):
            overrides.setdefault(section, {})[field] = value
    return overrides


def chosen(params: Mapping[str, Any], spec: RefreshSpec) -> dict[str, Any]:
    """The Params that a person set to something else than their default."""
    defaults = {name: param.value for name, param in params_of(spec).items()}
    return {name: value for name, value in params.items() if name in defaults and value != defaults[name]}


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
