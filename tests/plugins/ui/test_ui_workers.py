"""The processes behind the pages: bounded in time, replaced when they die, asked only when something has changed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from ett_airflow.ui.answers import Answers
from ett_airflow.ui.question import Answer, Question, View
from ett_airflow.ui.workers import TooLongError, Workers

from tests.ett_reports.story import Story
from tests.plugins.conftest import wait_until
from tests.plugins.ui.site import Site, words_of


@dataclass
class CountedWorkers(Workers):
    """Real ones that remember what they were asked."""

    asked: list[Question] = field(default_factory=list)

    def ask(self, question: Question) -> Answer:
        self.asked.append(question)
        return super().ask(question)


@pytest.fixture
def workers() -> Iterator[CountedWorkers]:
    found = CountedWorkers(most=1)
    yield found
    found.close()


def folder_with_log(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    story = Story(folder / "events")
    story.submit(1, 0)
    story.trainer(1, 0).at(10).begin(0).steps(9).finish()
    story.complete(1, 100)
    story.launcher.recorder.close()
    return folder


def report_of(folder: Path) -> Question:
    return Question(view=View.REPORT, folders=(str(folder),))


def own_workers() -> list[psutil.Process]:
    """Worker processes of this one."""
    return [child for child in psutil.Process().children() if "ett_airflow.ui.worker" in _command(child)]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_question_has_so_long_and_the_next_one_is_answered(workers: CountedWorkers, tmp_path: Path) -> None:
    question = report_of(folder_with_log(tmp_path))
    before = {process.pid for process in own_workers()}
    workers.limit_s = 0.05  # Python itself takes longer to start
    with pytest.raises(TooLongError, match="takes longer than"):
        workers.ask(question)
    assert {process.pid for process in own_workers()} <= before, "the process was not ended"
    workers.limit_s = 60
    assert "Lifecycle" in workers.ask(question).html


def test_a_worker_that_was_killed_is_replaced_unnoticed(workers: CountedWorkers, tmp_path: Path) -> None:
    question = report_of(folder_with_log(tmp_path))
    before = {process.pid for process in own_workers()}
    first = workers.ask(question)
    (worker,) = [process for process in own_workers() if process.pid not in before]
    worker.kill()
    worker.wait(10)
    assert workers.ask(question).html.partition("as of")[0] == first.html.partition("as of")[0]


def test_a_worker_ends_with_its_input(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ett_airflow.ui.worker"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    asked = report_of(folder_with_log(tmp_path)).to_line()
    done = subprocess.run(command, env=environment, input=asked, capture_output=True, timeout=120, check=True)
    answer = Answer.from_line(done.stdout)
    assert "Lifecycle" in answer.html
    assert not answer.problem
    assert b"airflow.models" not in done.stderr


def test_a_log_is_reduced_once_until_it_changes(workers: CountedWorkers, tmp_path: Path) -> None:
    folder = folder_with_log(tmp_path)
    answers = Answers(workers=workers)
    question = report_of(folder)
    first = asyncio.run(answers.ask(question, 120))
    assert asyncio.run(answers.ask(question, 120)) == first
    assert len(workers.asked) == 1
    segment = next((folder / "events" / "launcher").glob("*.jsonl"))
    segment.write_text(segment.read_text() + "torn")

    def anew() -> bool:
        asyncio.run(answers.ask(question, 120))
        return len(workers.asked) == 2

    wait_until(anew, "the log grew and the answer did not follow")
    answers.close()


def test_those_who_ask_the_same_at_once_wait_for_one_reduction(workers: CountedWorkers, tmp_path: Path) -> None:
    question = report_of(folder_with_log(tmp_path))
    answers = Answers(workers=workers)

    async def many() -> list[Answer]:
        return list(await asyncio.gather(*(answers.ask(question, 120) for _ in range(40))))

    assert len({answer.html for answer in asyncio.run(many())}) == 1
    assert len(workers.asked) == 1
    answers.close()


def test_who_asks_for_something_that_takes_its_time_is_told_so_and_finds_it_later(
    workers: CountedWorkers, tmp_path: Path
) -> None:
    question = report_of(folder_with_log(tmp_path))
    answers = Answers(workers=workers)
    assert asyncio.run(answers.ask(question, 0.0)).pending
    assert "Lifecycle" in asyncio.run(answers.ask(question, 120)).html
    assert len(workers.asked) == 1
    answers.close()


def test_the_kernel_ends_a_worker_that_takes_too_much_cpu_time(
    workers: CountedWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose allowance is shorter than any log takes."""
    shorter = "import signal\nset = signal.setitimer\nsignal.setitimer = lambda which, s: set(which, min(s, 0.01))\n"
    (tmp_path / "sitecustomize.py").write_text(shorter)
    monkeypatch.syspath_prepend(str(tmp_path))
    question = report_of(folder_with_log(tmp_path))
    with pytest.raises(TooLongError, match="of CPU time"):
        workers.ask(question)


def test_a_log_that_takes_too_long_is_not_tried_again_at_once(workers: CountedWorkers, tmp_path: Path) -> None:
    workers.limit_s = 0.05
    answers = Answers(workers=workers)
    question = report_of(folder_with_log(tmp_path))
    for _ in range(3):
        assert "takes longer" in asyncio.run(answers.ask(question, 120)).problem
    assert len(workers.asked) == 1
    answers.close()


def test_a_log_that_keeps_its_worker_busy_does_not_hold_up_other_pages(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is stopped in the middle of a question; a page of another run is answered meanwhile."""
    from ett_airflow.ui import pages

    site.refresh("shop")
    site.trained("shop", "huge")
    site.trained("shop", "small")
    monkeypatch.setattr(pages.answers, "workers", Workers(most=2, limit_s=600))
    got: dict[str, str] = {}
    before = {process.pid for process in own_workers()}

    def ask() -> None:
        got["huge"] = words_of(site.get("run", dag_id="shop", run_id="huge").text)

    asking = threading.Thread(target=ask)
    asking.start()
    stopped = _stop_new_worker(before)
    assert "71.4 %" in words_of(site.get("run", dag_id="shop", run_id="small").text)
    assert "huge" not in got
    os.kill(stopped, signal.SIGKILL)
    asking.join(60)
    assert "The report cannot be shown here The process that reduces logs died of this one" in got["huge"]
    assert "python -m ett_reports run" in got["huge"]
    pages.answers.workers.close()


def _stop_new_worker(before: set[int]) -> int:
    end = time.monotonic() + 15
    while time.monotonic() < end:
        for process in own_workers():
            if process.pid not in before:
                os.kill(process.pid, signal.SIGSTOP)
                return process.pid
        time.sleep(0.005)
    raise AssertionError("no worker was started")
