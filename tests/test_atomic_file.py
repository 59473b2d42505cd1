"""Whole files or none: a failing writer, a full disk, a reader beside the writer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainer.atomic_file import replace_text, replacing


def test_the_new_text_takes_the_old_ones_place(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    replace_text(path, "old")
    replace_text(path, "new", mode=0o600)
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    replace_text(path, "old")
    with pytest.raises(RuntimeError, match="in the middle"), replacing(path) as aside:
        aside.write_text("half of the n")
        raise RuntimeError("in the middle")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    replace_text(path, "old")
    code = (
        "import resource, signal, sys; from pathlib import Path; from trainer.atomic_file import replace_text\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "replace_text(Path(sys.argv[1]), 'x' * 100_000)"
    )
    outcome = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert "File too large" in outcome.stderr
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]
