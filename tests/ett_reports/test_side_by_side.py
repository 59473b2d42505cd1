"""The timelines that are compared with ml-goodput-measurement are the golden cases, told to our recorder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.goodput_side_by_side import CASES, Case, Figures, main, ours

DOCS = Path(__file__).parents[2] / "docs" / "metric.md"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_ours_is_right(case: Case) -> None:
    assert ours(case) == Figures(ett=case.ett, failures=case.failures, parts=100)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_docs_show_the_right_answer(case: Case) -> None:
    assert f"| {case.name} | {case.ett:.2f}%, {case.failures} |" in DOCS.read_text()


def test_without_the_peer_it_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.benchmarks.goodput_side_by_side.PEER", "no-such-peer")
    assert main() == 2
    told = capsys.readouterr()
    assert told.out == "" and "pip install ml-goodput-measurement==0.2.3" in told.err and told.err.count("\n") == 1
