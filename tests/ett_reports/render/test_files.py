"""One call writes every output, whole or not at all, and the same log gives the same bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ett_reports.document import ReportDocument, from_document, read_document
from ett_reports.reader import LogError
from ett_reports.render.files import FILE_NAMES, Output, write_document, write_reports
from ett_reports.report import ReportError
from ett_reports.slo import Health, Owned, PolicyError, Snapshot, judge
from tests.ett_reports.render.sample_reports import failed_once_job, refresh_report
from tests.ett_reports.story import Story


@pytest.fixture
def events(tmp_path: Path) -> Path:
    story = Story(tmp_path / "run" / "events")
    story.submit(1, 0)
    story.trainer(1, 20).begin(0).steps(60)
    story.die(1, 620, "infrastructure")
    story.submit(2, 900)
    story.trainer(2, 900).point("restored", cursor=500, step=50, checkpoint="step-50").begin(500).steps(50).finish()
    story.complete(2, 1400)
    return tmp_path / "run"


def test_writes_every_output_and_nothing_else(events: Path, tmp_path: Path) -> None:
    written = write_reports(events, tmp_path / "out", owners={"scheduling": {"team": "capacity"}},
                            service_levels={"scheduling": {"share": 0.1}})  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(FILE_NAMES.values())
    assert set(written.paths) == set(Output)
    assert [verdict.subject for verdict in written.breaches] == [Owned.SCHEDULING]
    assert written.job.nof == 1


def test_same_log_same_bytes(events: Path, tmp_path: Path) -> None:
    first = write_reports(events, tmp_path / "a", spec_summary={"model": "m"}).paths
    second = write_reports(events, tmp_path / "b", spec_summary={"model": "m"}).paths
    for output in Output:
        assert first[output].read_bytes() == second[output].read_bytes()


def test_reading_gives_back_what_was_written(tmp_path: Path) -> None:
    job, refresh = failed_once_job(), refresh_report()
    document = ReportDocument(title="t", job=job, refresh=refresh, judgement=judge(Snapshot(job=job, refresh=refresh)),
                              spec={"model": "m", "sizes": [1, 2]})  # fmt: skip
    write_document(document, tmp_path)
    assert read_document(tmp_path) == document
    assert read_document(tmp_path / "ett.json") == document


def test_a_figure_that_is_not_a_number_does_not_break_the_json(tmp_path: Path) -> None:
    import dataclasses

    job = failed_once_job()
    broken = dataclasses.replace(job.metrics[0], values={"ne": float("nan"), "auc": 0.5})
    job = dataclasses.replace(job, metrics=(broken,))
    document = ReportDocument(title="t", job=job, refresh=None, judgement=judge(Snapshot(job=job)))
    write_document(document, tmp_path)
    assert read_document(tmp_path).job.metrics[0].values == {"auc": 0.5}


def test_a_failed_write_leaves_the_old_report(events: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    before = write_reports(events, out).paths[Output.JSON].read_bytes()

    def full(self: Path, text: str, encoding: str) -> int:
        self.write_bytes(text.encode()[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        write_reports(events, out)
    assert (out / "ett.json").read_bytes() == before
    assert sorted(path.name for path in out.iterdir()) == sorted(FILE_NAMES.values())


def test_wrong_input_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="no such file or folder"):
        write_reports(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(PolicyError, match="'compiler' is not a component"):
        write_reports(tmp_path, tmp_path / "out", owners={"compiler": {"team": "x"}})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "expected an object with kind 'ett_report'"),
        ({"kind": "ett_report", "version": 99}, "report version 99, this program reads 1"),
        ({"kind": "ett_report", "version": 1}, "not a report"),
    ],
)
def test_wrong_documents_are_refused(document: object, message: str) -> None:
    with pytest.raises(ReportError, match=message):
        from_document(document)


def test_a_document_that_is_no_json_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "ett.json").write_text("{")
    with pytest.raises(ReportError, match="not JSON") as raised:
        read_document(tmp_path)
    assert "\n" not in str(raised.value)


def test_judgement_survives_the_round_trip() -> None:
    job = failed_once_job()
    document = ReportDocument(title="t", job=job, refresh=None, judgement=judge(Snapshot(job=job)))
    again = from_document(json.loads(document.dumps()))
    assert again.judgement.verdict(Owned.SCHEDULING).health is Health.UNSET


def test_rendering_imports_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "pandas", "pyarrow", "airflow"}
    code = f"import sys, ett_reports.render.files; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
