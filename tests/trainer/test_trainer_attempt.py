"""What a rank learns from its environment, what it tells of its end, and the flag that SIGTERM raises."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ett_reports.events import Cause
from trainer.attempt import Attempt, Rank, RankError
from trainer.preemption import PreemptionFlag


def test_place_comes_from_the_launcher_and_defaults_to_one_host():
    told = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert Rank.from_environment(told) == Rank(rank=5, world_size=8, local_rank=1, local_world_size=4)
    assert Rank.from_environment({}) == Rank(rank=0, world_size=1, local_rank=0, local_world_size=1)
    assert Rank.from_environment({"RANK": "1", "WORLD_SIZE": "2"}).local_world_size == 2


@pytest.mark.parametrize(
    ("environment", "message"),
    [({"RANK": "two"}, r"\$RANK is 'two'"), ({"RANK": "2", "WORLD_SIZE": "2"}, "ranks count from 0")],
)
def test_a_wrong_place_is_refused_by_name(environment: dict[str, str], message: str):
    with pytest.raises(RankError, match=message):
        Rank.from_environment(environment)


def test_an_end_is_explained_in_the_launchers_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ETT_RUN_FOLDER", str(tmp_path / "runs" / "a" / "b"))
    attempt = Attempt.from_environment({"ETT_ERROR_FILE": str(tmp_path / "error.json"), "ETT_ATTEMPT": "3"})
    try:
        raise ValueError("all wrong")
    except ValueError as error:
        attempt.explain(error, Cause.APPLICATION)
    told = json.loads((tmp_path / "error.json").read_text())
    assert (told["message"], told["cause"]) == ("ValueError: all wrong", "application")
    assert "test_trainer_attempt.py" in told["details"]["traceback"]
    assert attempt.number == 3


def test_sigterm_raises_the_flag_and_nothing_else():
    before = signal.getsignal(signal.SIGTERM)
    try:
        flag = PreemptionFlag.on_sigterm()
        assert not flag.raised
        os.kill(os.getpid(), signal.SIGTERM)
        noticed = flag.noticed_ns
        os.kill(os.getpid(), signal.SIGTERM)
        assert flag.raised
        assert noticed is not None
        assert flag.noticed_ns == noticed
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_log_is_open_before_torch_is_imported():
    code = "import sys, trainer.__main__; sys.exit('torch' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
