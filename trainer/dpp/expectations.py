"""Great Expectations as the engine of the rules: frames of scalars in, broken rules out.

It is guarded where its semantics would let bad data pass: a frame without rows is refused, and a rule that could not
be evaluated counts as broken. Importing it takes seconds, so it is imported when the first frame is judged.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.dpp.findings import Rule

if TYPE_CHECKING:
    import pandas as pd

ROW = "row"
_EXAMPLES = 3


@dataclass(frozen=True)
class Expectation:
    """A rule over a frame: `kind` is the Great Expectations class, `arguments` its own."""

    rule: Rule
    kind: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Broken:
    """An expectation that failed: the frame's rows that broke it, or the problem that kept it from being evaluated."""

    expectation: Expectation
    rows: tuple[int, ...] = ()
    count: int = 0
    examples: tuple[Any, ...] = ()
    problem: str | None = None


def in_set(rule: Rule, column: str, allowed: Sequence[Any]) -> Expectation:
    return Expectation(rule, "ExpectColumnValuesToBeInSet", {"column": column, "value_set": list(allowed)})


def not_null(rule: Rule, column: str) -> Expectation:
    return Expectation(rule, "ExpectColumnValuesToNotBeNull", {"column": column})


def between(rule: Rule, column: str, low: float | None, high: float | None) -> Expectation:
    bounds = {"min_value": low, "max_value": high}
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    return Expectation(rule, "ExpectColumnValuesToBeBetween", {"column": column, **given})


def equal(rule: Rule, first: str, second: str) -> Expectation:
    """Where both have a value, the two columns hold the same."""
    return Expectation(rule, "ExpectColumnPairValuesToBeEqual", {**_pair(first, second)})


def at_least(rule: Rule, first: str, second: str) -> Expectation:
    """Where both have a value, `first` is not below `second`."""
    arguments = {**_pair(first, second), "or_equal": True}
    return Expectation(rule, "ExpectColumnPairValuesAToBeGreaterThanB", arguments)


def _pair(first: str, second: str) -> dict[str, Any]:
    return {"column_A": first, "column_B": second, "ignore_row_if": "either_value_is_missing"}


class Judge:
    """Judges frames; counts the rules that it evaluated."""

    def __init__(self) -> None:
        self._get_batch: Callable[[pd.DataFrame], Any] | None = None
        self.evaluated = 0

    def judge(self, frame: pd.DataFrame, expectations: Sequence[Expectation], *, locate: int | None) -> list[Broken]:
        """The broken ones of `expectations`. `locate` bounds how many rows are named for each; None names all.

        A frame without rows breaks every rule, since each would hold of it.
        """
        self.evaluated += len(expectations)
        if frame.empty:
            return [Broken(expectation, problem="there are no rows to judge") for expectation in expectations]
        if not frame.columns.is_unique:
            return [Broken(expectation, problem="columns are named twice") for expectation in expectations]
        results = self._validate(frame, expectations, locate)
        judged = []
        for number, expectation in enumerate(expectations):
            broken = _broken(expectation, results.get(number))
            if broken is not None:
                judged.append(broken)
        return judged

    def _validate(self, frame: pd.DataFrame, expectations: Sequence[Expectation], locate: int | None) -> dict[int, Any]:
        batch = self._batch(frame)  # first: it makes the context that everything else asks for
        from great_expectations import ExpectationSuite
        from great_expectations import expectations as kinds

        numbered = [
            getattr(kinds, expectation.kind)(**expectation.arguments, meta={"number": number})
            for number, expectation in enumerate(expectations)
        ]
        formats: dict[str, Any] = {"result_format": "SUMMARY", "partial_unexpected_count": locate}
        if locate is None:
            formats = {"result_format": "COMPLETE", "unexpected_index_column_names": [ROW]}
        outcome = batch.validate(ExpectationSuite("contract", expectations=numbered), result_format=formats)
        return {result.expectation_config.meta["number"]: result for result in outcome.results}

    def _batch(self, frame: pd.DataFrame) -> Any:
        if self._get_batch is None:
            self._get_batch = _batch_maker()
        return self._get_batch(frame)


def _batch_maker() -> Callable[[pd.DataFrame], Any]:
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    logging.getLogger("great_expectations").setLevel(logging.ERROR)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("frames").add_dataframe_asset("facts")
    definition = asset.add_batch_definition_whole_dataframe("all")
    return lambda frame: definition.get_batch({"dataframe": frame})


def _broken(expectation: Expectation, result: Any) -> Broken | None:
    if result is None:
        return Broken(expectation, problem="it was not evaluated")
    problem = _exception(result.exception_info)
    if problem:
        return Broken(expectation, problem=problem)
    if result.success:
        return None
    details = result.result
    rows = tuple(int(entry[ROW]) for entry in details.get("unexpected_index_list") or ())
    examples = tuple(details.get("partial_unexpected_list") or ())[:_EXAMPLES]
    return Broken(expectation, rows=rows, count=int(details.get("unexpected_count") or 0), examples=examples)


def _exception(info: Any) -> str | None:
    """The message of an exception inside a rule; one exception, or one for each metric that the rule needs."""
    if not info:
        return None
    entries = [info] if "raised_exception" in info else [entry for entry in info.values() if isinstance(entry, dict)]
    raised = [str(entry.get("exception_message")) for entry in entries if entry.get("raised_exception")]
    return "; ".join(dict.fromkeys(raised)) or None
