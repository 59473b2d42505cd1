"""The suite's own checks see what they are there for; else the table would say nothing."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aftermath import different_tensors, examine, misread_rows, orphans, temporary_files, whole_state
from arena import Arena
from chaos_job import ChaosJob
from ledger import Entry, Ledger, entries
from table import BEGIN, END, table

from ett_reports.levels import reduce
from ett_reports.reader import read_log
from tests.generated_part import into
from trainer.checkpoint import newest_complete
from trainer.run_folder import RunFolder


def with_a_job(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that needs the undisturbed run."""
    return pytest.mark.chaos(pytest.mark.integration(pytest.mark.timeout(600)(test)))


@with_a_job
def test_an_undisturbed_run_breaks_no_promise(undisturbed: ChaosJob) -> None:
    assert examine(undisturbed, undisturbed).breaches == []


@with_a_job
def test_each_breach_is_seen(arena: Arena, undisturbed: ChaosJob, tmp_path: Path) -> None:
    folder = RunFolder(Path(shutil.copytree(undisturbed.folder.root, arena.home / "copies" / "undisturbed")))
    copy = dataclasses.replace(undisturbed, folder=folder, testimony=tmp_path / "witness", temporary=tmp_path / "tmp")
    shutil.copytree(undisturbed.testimony, copy.testimony, dirs_exist_ok=True)
    copy.temporary.mkdir()

    newest = newest_complete(undisturbed.folder.checkpoints_dir)
    assert newest is not None
    anchor = whole_state(undisturbed.folder.anchor_dir)
    assert list(different_tensors(whole_state(Path(newest.path)), anchor)), "a state of another step has the same bits"

    witness = copy.testimony / "a1-r0.jsonl"
    first, second, *rest = witness.read_text().splitlines()
    witness.write_text("\n".join([second, first, *rest]))
    report = reduce(read_log(folder.events_dir))
    assert any("as step 1" in breach for breach in misread_rows(copy, undisturbed, report))

    (folder.root / ".anything.writing").touch()
    assert any(".anything.writing" in breach for breach in temporary_files(copy))

    environment = {**os.environ, "ETT_JOB": copy.key(1).name}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=environment, stdin=subprocess.PIPE) as left:
        assert any(str(left.pid) in breach for breach in orphans(copy))
        left.communicate(b"\n")


def test_the_table_goes_into_its_place_and_nowhere_else(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "results.jsonl")
    fine = {"recovered": True, "bits_equal": True, "rows_exact": True}
    for run, phase, lost_s in (("a", "commit", 8.0), ("b", "staging", None), ("c", "commit", 10.0)):
        ledger.add(Entry(fault="kill -9 of rank 0", phase=phase, run=run, lost_s=lost_s, **fine))
    text = table(entries(tmp_path / "results.jsonl"))
    assert text.splitlines()[2:] == [
        "| kill -9 of rank 0 | commit | 2 | 2 | 2 | 2 | 9.0 |",
        "| kill -9 of rank 0 | staging | 1 | 1 | 1 | 1 | none |",
    ]
    assert into(f"a\n{BEGIN}\nold\n{END}\nb", text, begin=BEGIN, end=END) == f"a\n{BEGIN}\n{text}\n{END}\nb"
    with pytest.raises(ValueError, match="no place for the results"):
        into("a page", text, begin=BEGIN, end=END)
