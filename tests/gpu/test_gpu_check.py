"""The GPU check where there is no GPU: its table, its exit codes, and a dry run of what runs on CPU."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.gpu import check
from tests.gpu.bench import Bench, ChildError, NoTimeError, Size
from tests.gpu.findings import Finding, Verdict, document, table

FINDINGS = [
    Finding(check="interaction", subject="B=2", verdict=Verdict.PASSED, figures={"error": 3.2e-7, "eager_us": 1234.5}),
    Finding(check="compilation", subject="archive", verdict=Verdict.FAILED, note="other losses\nthan | before"),
    Finding.skipped("staging", "no GPU"),
]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(device=torch.device("cpu"), size=Size.TOY, folder=tmp_path, deadline=time.monotonic() + 60)


def test_the_table_is_aligned_and_one_line_a_finding() -> None:
    assert table(FINDINGS, machine="none").splitlines() == [
        "Machine: none",
        "",
        "| check       | subject   | verdict | figures                      | note                        |",
        "| ----------- | --------- | ------- | ---------------------------- | --------------------------- |",
        "| interaction | B=2       | passed  | error 3.2e-07, eager_us 1234 |                             |",
        "| compilation | archive   | FAILED  |                              | other losses than \\| before |",
        "| staging     | all of it | skipped |                              | no GPU                      |",
        "",
        "1 passed, 1 failed, 0 measured, 1 skipped",
    ]


def test_the_document_has_the_same_findings() -> None:
    found = json.loads(document(FINDINGS, machine="none"))
    assert found["machine"] == "none"
    assert [(one["check"], one["verdict"]) for one in found["findings"]] == [
        ("interaction", "passed"),
        ("compilation", "FAILED"),
        ("staging", "skipped"),
    ]
    assert found["findings"][0]["figures"] == {"error": 3.2e-7, "eager_us": 1234.5}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_one_line_and_ends_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main([]) == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == ["gpu-check: torch sees no GPU here, so nothing was checked"]


def of(error: Exception | None) -> Callable[[Bench], Iterator[Finding]]:
    def findings(_: Bench) -> Iterator[Finding]:
        yield FINDINGS[0]
        if error:
            raise error

    return findings


@pytest.mark.parametrize(
    ("error", "verdict", "code"),
    [(None, None, 0), (RuntimeError("broke"), Verdict.FAILED, 1), (NoTimeError("2 s are left"), Verdict.SKIPPED, 0)],
)
def test_a_check_that_breaks_fails_the_run_and_one_without_time_is_named(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    error: Exception | None,
    verdict: Verdict | None,
    code: int,
) -> None:
    monkeypatch.setattr(check, "CHECKS", {"one": of(error), "other": of(None)})
    assert check.main(["--dry", "--json", str(tmp_path / "found.json")]) == code
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["findings"]
    assert [one["verdict"] for one in found] == ["passed", *([verdict.value] if verdict else []), "passed"]
    if error:
        assert str(error) in found[1]["note"] and str(error) in capsys.readouterr().out


def test_a_child_that_fails_or_hangs_is_told(bench: Bench) -> None:
    with pytest.raises(ChildError, match="No module named"):
        bench.child("tests.gpu.no_such_module")
    hurried = Bench(device=bench.device, size=bench.size, folder=bench.folder, deadline=time.monotonic())
    with pytest.raises(ChildError, match="did not end in the time left"):
        hurried.child("http.server", "0")
    with pytest.raises(NoTimeError, match="0 s are left"):
        hurried.require_seconds(10)


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_a_dry_run_compiles_archives_and_stages(tmp_path: Path) -> None:
    assert check.main(["--dry", "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["findings"]
    compiled = {one["subject"]: one["figures"] for one in found if one["check"] == "compilation"}
    assert compiled["nothing cached"]["graph_misses"] > 0
    for regime in ("archive only", "cache folder kept"):
        assert compiled[regime]["graph_misses"] == 0 < compiled[regime]["graph_hits"]
    assert all(figures["graphs"] == 1 for figures in compiled.values())
    skipped = {one["check"] for one in found if one["verdict"] == "skipped"}
    assert {"interaction", "autotuning", "staging"} == skipped
    assert {
        "batch to the device, pageable",
        "checkpoint to the host, pageable",
        "checkpoint by the trainer's stager",
    } < {one["subject"] for one in found}
