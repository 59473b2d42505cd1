"""The process that reduces logs and renders them for the API server: `python -m ett_airflow.ui.worker`.

It answers one question at a time, a line each way, until its input ends or nobody has asked for a while. It imports no
Airflow. The kernel ends it when one answer takes more than CPU_S of CPU time, whatever else the machine does meanwhile.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace

from ett_airflow.ui.question import Answer, Question, View

IDLE_S = 300.0
CPU_S = 20.0
MEMORY_BYTES = 4 << 30
_NICENESS = 5


def main() -> int:
    """Serve questions on standard input."""
    answers = _private_output()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a terminal's Ctrl-C is for the API server; no traceback of ours
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    views = _views()
    while select.select([sys.stdin], [], [], IDLE_S)[0] and (line := sys.stdin.buffer.readline()):
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        made = answer(Question.from_line(line), views).to_line()
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(answers, made)
    return 0


def answer(question: Question, views: dict[View, Callable[[Question, int], Answer]]) -> Answer:
    """The answer to one question, whatever becomes of it."""
    began = time.process_time()
    try:
        made = views[question.view](question, time.time_ns())
        return replace(made, cost_s=time.process_time() - began)
    except MemoryError:
        return Answer(problem=f"Reducing this log needs more than {MEMORY_BYTES >> 30} GiB of memory.")
    except Exception as error:
        traceback.print_exc()
        return Answer(
            problem=f"Reading this run failed ({type(error).__name__}); the API server's log has the details."
        )


def _views() -> dict[View, Callable[[Question, int], Answer]]:
    from ett_airflow.ui import comparison_view, headlines, run_view, task_view

    return {
        View.REPORT: run_view.report,
        View.FIGURES: run_view.figures,
        View.TASK: task_view.task,
        View.COMPARISON: comparison_view.comparison,
        View.HEADLINES: headlines.headlines,
    }


def _private_output() -> int:
    """The descriptor that answers go to; whatever prints goes to the log instead."""
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


if __name__ == "__main__":
    sys.exit(main())
