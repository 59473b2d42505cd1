"""When Airflow tries again, as Airflow itself computes it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from airflow.models.taskinstance import TaskInstance
from airflow.sdk import DAG, BaseOperator
from ett_airflow.retry import MAX_DELAY, retry_arguments

from trainer.spec import Retries

ENDED = datetime(2026, 11, 29, tzinfo=UTC)
RETRIES = Retries(train=9, delay_s=10)


def waits(task_id: str, tries: int, retries: Retries = RETRIES) -> list[float]:
    """Seconds between the end of each failed try and the next."""
    with DAG("tiny", schedule=None):
        task = BaseOperator(task_id=task_id, **retry_arguments(task_id, retries))
    found = []
    for number in range(1, tries + 1):
        try_ = TaskInstance.__new__(TaskInstance)
        for name, value in {
            "task": task, "dag_id": "tiny", "task_id": task_id, "try_number": number, "end_date": ENDED,
            "retry_delay_override": None,
        }.items():  # fmt: skip
            object.__getattribute__(try_, "__dict__")[name] = value
        found.append((TaskInstance.next_retry_datetime(_Plain(try_.__dict__)) - ENDED).total_seconds())
    return found


class _Plain:
    """The fields of a task instance that the computation reads, without a database."""

    logical_date = ENDED
    log = None

    def __init__(self, fields: dict[str, object]) -> None:
        self.__dict__.update(fields)


@pytest.mark.parametrize(("task", "first", "growth"), [("train", 10, 2), ("publish", 10, 3), ("ett", 5, 1.5)])
def test_each_wait_is_longer_than_the_one_before_by_the_task_s_growth(task: str, first: float, growth: float) -> None:
    found = waits(task, 4)
    for number, wait in enumerate(found):
        least = first * growth**number
        assert least <= wait <= 2 * least + 2, (number, wait)  # Airflow adds up to as much again, by a hash of the try


def test_waits_grow_without_end_only_up_to_a_quarter_of_an_hour() -> None:
    assert timedelta(seconds=max(waits("train", 30))) == MAX_DELAY
