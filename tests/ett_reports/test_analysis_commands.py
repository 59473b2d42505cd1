"""The analyses on the command line: what they print, and one clear line with exit code 2 for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ett_reports.__main__ import main
from ett_reports.render.files import write_reports
from tests.ett_reports.story import EPOCH_NS, Story


def story(folder: Path, startup: float, job: str = "shop/run-1") -> Path:
    told = Story(folder / "events", job=job)
    told.submit(1, 0)
    told.trainer(1, startup).begin(0).steps(60)
    told.die(1, startup + 600, "infrastructure")
    told.submit(2, startup + 700)
    second = told.trainer(2, 2 * startup + 700).point("restored", cursor=500).begin(500).steps(50)
    second.finish()
    told.complete(2, 2 * startup + 1200)
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    return str(story(tmp_path / "before", 200)), str(story(tmp_path / "after", 80))


def test_run_writes_all_outputs(runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text(
        '{"owners": {"trainer_init": {"team": "infra"}}, "service_levels": {"trainer_init": {"seconds": 1}}}'
    )
    assert main(["run", runs[0], "--out", str(tmp_path / "out"), "--policy", str(policy), "--title", "Tuesday"]) == 0
    assert "BREACHED" in capsys.readouterr().out
    assert "<title>" in (tmp_path / "out" / "ett.html").read_text()
    assert json.loads((tmp_path / "out" / "ett.json").read_text())["title"] == "Tuesday"
    assert main(["validate", str(tmp_path / "out" / "ett.json")]) == 0
    assert "a report that this program reads" in capsys.readouterr().out


def test_compare_two_runs(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *runs]) == 0
    out = capsys.readouterr().out
    assert "restart multiplier 1.00: mean TTR fell 120.0 s, TTS 120.0 s" in out
    assert "at most 240.0 s (Eq. 3)" in out


def test_compare_reads_reports_as_well_as_logs(
    runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {"model": "dlrm", "ranks": 1, "checkpoint_interval_s": 60}
    paths = [
        str(write_reports(Path(run), tmp_path / str(n), spec_summary=spec).paths["json"])  # type: ignore[index]
        for n, run in enumerate(runs)
    ]
    assert main(["compare", *paths, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pairs"][0]["nof"] == 1


def test_compare_refuses_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = story(tmp_path / "a", 100), story(tmp_path / "b", 100, job="other/run-1")
    assert main(["compare", str(one), str(two)]) == 2
    error = capsys.readouterr().err
    assert error == "ett_reports: these runs are no pair: model shop and other\n"


def test_leave_one_out_from_reports(runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for name, on, run in (("full", True, runs[1]), ("without", False, runs[0])):
        spec = {"optimizations": {"cache": on}}
        paths.append(str(write_reports(Path(run), tmp_path / name, spec_summary=spec).paths["json"]))  # type: ignore[index]
    assert main(["compare", "--leave-one-out", *paths, "--measure", "tts"]) == 0
    assert "cache                            120.0" in capsys.readouterr().out


def test_whatif(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", runs[0], "--shorten", "launcher_init=0", "--remove-failure", "1"]) == 0
    out = capsys.readouterr().out
    assert "launcher_init at 0 of its time" in out and "no failure of attempt 1 (infrastructure)" in out
    assert main(["whatif", runs[0], "--shorten", "launcher_init=0.5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["saved_s"] == 200


def test_interval_reproduces_fig_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "fig3.svg"
    given = ["--blocking", "15", "--loop", "43200", "--failures", "3", "--plot", str(plot)]
    assert main(["interval", *given, "--compare-blocking", "15", "30", "45"]) == 0
    assert "Save every 657 s (young)" in capsys.readouterr().out
    assert all(text in plot.read_text() for text in ("657 s", "930 s", "1,138 s"))


def test_watch_ends_with_the_run(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", runs[0]]) == 0
    assert "ETT" in capsys.readouterr().out


def test_watch_follows_a_live_run_until_it_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Story(tmp_path / "events")
    told.submit(1, 0)
    trainer = told.trainer(1, 10).point("stream", planned_samples=100).begin(0).steps(4)
    trainer.recorder.begin_steps()  # writes the open window out
    monkeypatch.setattr("ett_reports.commands.inputs.time.time_ns", lambda: EPOCH_NS + 51 * 10**9)

    def go_on(_: float) -> None:
        trainer.steps(6).finish()
        told.complete(1, 120)

    monkeypatch.setattr("ett_reports.commands.watch.time.sleep", go_on)
    assert main(["watch", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "40 of 100 (40%) samples, 0 failures" in out
    assert "[completed]" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "RUN", "--policy", "nowhere.json"], "nowhere.json: No such file or directory"),
        (["run", "RUN", "--out", "RUN/events/launcher/000001.jsonl"], "File exists"),
        (["validate", "OLD"], "report version 99"),
        (["compare", "RUN"], "give BASELINE OPTIMIZED"),
        (["compare", "RUN", "nowhere"], "nowhere: no such file or folder"),
        (["compare", "RUN", "BROKEN"], "not JSON"),
        (["compare", "RUN", "OLD"], "report version 99, this program reads 1"),
        (["compare", "--leave-one-out", "RUN"], "does not say which techniques were on"),
        (["whatif", "RUN"], "nothing to change"),
        (["whatif", "RUN", "--shorten", "nap=0.5"], "--shorten nap=0.5: expected PHASE=FACTOR"),
        (["whatif", "RUN", "--shorten", "compile"], "factor nan: expected 0 or more"),
        (["whatif", "RUN", "--remove-failure", "7"], "attempt 7 did not fail"),
        (["whatif", "EMPTY", "--interval", "5"], "no event files"),
        (["interval"], "give a run, or --blocking, --loop, --failures too"),
        (["interval", "RUN"], "saved no checkpoint"),
        (["interval", "--blocking", "1", "--loop", "0", "--failures", "1"], "loop_s is 0.0"),
        (["interval", "--blocking", "1", "--loop", "9", "--failures", "1", "--plot", "no/where.svg"], "No such file"),
        (["watch", "EMPTY"], "no event files"),
        (["watch", "RUN", "--every", "0"], "--every 0.0: expected seconds above 0"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {
        "RUN": story(tmp_path / "run", 10),
        "EMPTY": tmp_path / "empty",
        "BROKEN": tmp_path / "broken.json",
        "OLD": tmp_path / "old.json",
    }
    places["EMPTY"].mkdir()
    places["BROKEN"].write_text("{")
    places["OLD"].write_text('{"kind": "ett_report", "version": 99}')
    resolved = [str(places[argument]) if argument in places else argument for argument in arguments]
    resolved = [argument.replace("RUN/", f"{places['RUN']}/") for argument in resolved]
    assert main(resolved) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("ett_reports: ") and error.count("\n") == 1
