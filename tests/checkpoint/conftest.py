"""Fixtures of the checkpoint tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_job import Job, job_in


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = job_in(tmp_path)
    yield made
    made.recorder.close()
