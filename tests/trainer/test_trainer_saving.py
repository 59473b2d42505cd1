"""Which failed saves end the job, and that a state with NaN in it is never a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from ett_reports.events import ProcessIdentity, Source
from ett_reports.recorder import Recorder
from trainer.checkpoint import Checkpointer, CheckpointMode, Lineage, newest_complete
from trainer.checkpoint.errors import PoisonedStateError
from trainer.checkpoint_section import OnFailure
from trainer.dpp.cursor import Interval
from trainer.progress import Position, ProgressiveQuality
from trainer.saving import ProgressSaver
from trainer.storage import CheckpointPlace

MakeSaver = Callable[[OnFailure], ProgressSaver]


@dataclass
class Weights:
    """What a saver needs of a model under training: its state."""

    values: torch.Tensor = field(default_factory=lambda: torch.randn(1000))

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        return {"model": {"weight": self.values, "mask": torch.tensor([0.0, -float("inf")])}}


@pytest.fixture
def place(tmp_path: Path) -> CheckpointPlace:
    return CheckpointPlace.below(tmp_path / "run")


@pytest.fixture
def saver(tmp_path: Path, place: CheckpointPlace) -> Iterator[MakeSaver]:
    identity = ProcessIdentity(job="a/b", source=Source.TRAINER, process="trainer-a1-r0", attempt=1, rank=0)
    window = ("2026-01-01", "2026-01-02")
    with Recorder(tmp_path / "events", identity) as recorder:

        def make(on_failure: OnFailure) -> ProgressSaver:
            checkpointer = Checkpointer(
                place,
                lineage=Lineage(refresh="a", run="b", window=window, spec_digest="c"),
                recorder=recorder,
                keep=2,
                mode=CheckpointMode.SYNC,
                commit_timeout_s=20.0,
            )
            return ProgressSaver(
                checkpointer=checkpointer,
                trainee=Weights(),  # type: ignore[arg-type]
                quality=ProgressiveQuality(),
                device=torch.device("cpu"),
                world_size=1,
                window=window,
                on_failure=on_failure,
                patience_s=20.0,
            )

        yield make


def at(step: int) -> Position:
    return Position(step=step, cursor=step * 10, remaining=(Interval(0, 0, step * 10, 1000),))


def block_the_place(place: CheckpointPlace) -> None:
    """No folder can be made below a file."""
    folder = Path(str(place.checkpoints))
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("in the way")


def test_a_failed_save_ends_the_job_only_where_the_spec_says_so_and_is_told_once(
    saver: MakeSaver, place: CheckpointPlace, caplog: pytest.LogCaptureFixture
) -> None:
    patient, strict = saver(OnFailure.GO_ON), saver(OnFailure.FAIL)
    block_the_place(place)
    for one in (patient, strict):
        assert one.fatal_failure() is None
        one.save(at(1))
    with caplog.at_level(logging.WARNING):
        assert [patient.fatal_failure() for _ in range(3)] == [None] * 3
    assert [record.getMessage() for record in caplog.records if "training goes on" in record.getMessage()] == [
        f"a save failed, training goes on (checkpoint.on_failure: go_on): {patient.checkpointer.failure}"
    ]
    assert str(place.checkpoints) in str(strict.fatal_failure())


def test_a_state_with_nan_in_it_is_not_saved_and_ends_the_job_whatever_the_spec_says(
    saver: MakeSaver, place: CheckpointPlace
) -> None:
    patient = saver(OnFailure.GO_ON)
    patient.save(at(1))
    assert patient.fatal_failure() is None
    patient.trainee.values[7] = float("nan")  # type: ignore[attr-defined]
    patient.save(at(2))
    failure = patient.fatal_failure()
    assert isinstance(failure, PoisonedStateError)
    assert "model.weight has NaN in it" in str(failure)
    newest = newest_complete(place.checkpoints)
    assert newest is not None
    assert newest.step == 1
