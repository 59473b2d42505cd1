"""Disks that are full, slow or lie, and data that changes under a run: nothing is lost, and what is wrong is named."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aftermath import points_of
from arena import Arena
from blows import FAILED, UNHARMED, Blow, kill, term
from chaos_job import ChaosJob
from injection.chaos_faults import Action, Fault, after, at_point, entering
from places import OPEN_FILE, between_steps, committed

from ett_reports.events import Cause
from trainer.checkpoint import newest_complete
from trainer.dpp.plan import ReadPlan

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(900)]


def test_a_flipped_byte_in_the_newest_checkpoint(arena: Arena, endure) -> None:
    job = arena.new_job("flipped")

    def flip() -> None:
        newest = newest_complete(job.folder.checkpoints_dir)
        assert newest is not None
        shard = max(Path(newest.path).glob("*.distcp"), key=lambda path: path.stat().st_size)
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)

    blow = dataclasses.replace(
        kill("between attempts", committed(save=3)), name="flipped byte in the newest checkpoint"
    )
    endure(job, [blow], between=flip, damaged=True)
    rejected = points_of(job, "checkpoint_rejected", attempt=2)
    assert len(rejected) == 1
    assert ".distcp" in rejected[0].attrs["message"]


@pytest.fixture
def on_small_disk(arena: Arena) -> Iterator[Callable[[str], ChaosJob]]:
    """Makes a run whose checkpoints go to a file system of 4 MiB of their own."""
    mounted: list[Path] = []

    def make(run: str) -> ChaosJob:
        job = arena.new_job(run)
        place = job.folder.checkpoints_dir
        place.mkdir()
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "ett-chaos", place], capture_output=True)
        if made.returncode:
            pytest.skip(f"no file system can be mounted here: {made.stderr.decode().strip()}")
        mounted.append(place)
        return job

    yield make
    for place in mounted:
        subprocess.run(["umount", place], check=True)


def test_full_disk(on_small_disk: Callable[[str], ChaosJob], endure) -> None:
    """Saves fail while there is no room, and training goes on; once there is some, a save succeeds."""
    job = on_small_disk("full")
    disk = str(job.folder.checkpoints_dir)
    fill = Fault(place=entering("checkpoint_blocking", nth=3), action=Action.FILL, path=disk)
    free = Fault(place=at_point("checkpoint_failed", nth=2), action=Action.FREE, path=disk)
    blows = [
        dataclasses.replace(
            kill("save", at_point("checkpoint_failed", nth=2), also=(fill,)), name="full disk, then kill -9 of rank 0"
        ),
        dataclasses.replace(term("save", between_steps("0")), name="full disk, then SIGTERM to rank 0"),
        Blow(name="full disk, then room again", phase="save", faults=(free,), ends=UNHARMED),
    ]
    endure(job, blows)
    for attempt in (1, 2, 3):
        assert points_of(job, "checkpoint_failed", attempt=attempt), f"no save failed in attempt {attempt}"
    assert points_of(job, "checkpoint_durable", attempt=3)


@pytest.mark.parametrize("misfortune", [Action.HIDE, Action.REWRITE])
def test_data_that_changes_under_the_run(arena: Arena, endure, misfortune: Action) -> None:
    """The run ends as bad data, by name and without a retry; with the file as it was it goes on as if nothing were."""
    name = misfortune.name.lower()
    job = arena.new_job(f"data-{name}", feature_log=arena.own_feature_log(name))
    path = Path(ReadPlan.load(job.folder.plan_path).files[1].path)
    content, status = path.read_bytes(), path.stat()

    def repair() -> None:
        ended = job.attempts[-1]
        assert ended.cause is Cause.DATA, job.told()
        assert path.name in ended.message and path.parent.name in ended.message, ended.message
        if misfortune is Action.HIDE:
            path.with_suffix(".hidden").rename(path)
        else:
            with path.open("r+b") as stream:
                stream.write(content)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    # The second file: rank 0 opens it in the middle of the run. In place it is rewritten while it is open.
    place = between_steps("0") if misfortune is Action.HIDE else after(OPEN_FILE, "0", nth=2)
    fault = Fault(place=place, action=misfortune, path=str(path))
    endure(job, [Blow(name=str(misfortune), phase="reading", faults=(fault,), ends=FAILED)], between=repair)
