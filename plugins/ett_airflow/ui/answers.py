"""Answers kept while the files behind them do not change: a page costs a reduction only when it must."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from ett_airflow.ui.question import Answer, Question, View
from ett_airflow.ui.worker import CPU_S
from ett_airflow.ui.workers import WorkerError, Workers

PATIENCE_S = 4.0
MOST_KEPT = 64
MOST_WAITING = 32
_THREADS = 4

REST_FACTOR = 10
"""After t seconds of CPU time the same question rests 10 t: one open page takes at most a tenth of a core."""

_SHORTEST_REST_S, _LONGEST_REST_S = 1.5, 300.0
_REST_OF_A_PROBLEM_S = 60.0
_PAGE_FILES = ("report/ett.json", "schema_report.json", "spec.yaml", "airflow.json")


@dataclass(frozen=True, kw_only=True)
class _Kept:
    signature: bytes
    answer: Answer
    at: float

    @property
    def rests(self) -> bool:
        shortest = _REST_OF_A_PROBLEM_S if self.answer.problem else _SHORTEST_REST_S
        rest = min(max(shortest, REST_FACTOR * self.answer.cost_s), _LONGEST_REST_S)
        return time.monotonic() < self.at + rest


@dataclass
class Answers:
    """Asks workers off the event loop; two who ask the same at once wait for one reduction."""

    workers: Workers = field(default_factory=Workers)
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_THREADS, "ett-answers"))
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _going: dict[Question, Future[Answer]] = field(default_factory=dict)
    _kept: OrderedDict[Question, _Kept] = field(default_factory=OrderedDict)

    async def ask(self, question: Question, patience_s: float = PATIENCE_S) -> Answer:
        """The answer, kept or made anew; `problem` says why there is none, `pending` that the work goes on."""
        going = asyncio.wrap_future(self._begun(question))
        done, _ = await asyncio.wait({going}, timeout=patience_s)
        return going.result() if done else Answer(pending=True)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.workers.close()

    def _begun(self, question: Question) -> Future[Answer]:
        with self._lock:
            going = self._going.get(question)
            if going is not None:
                return going
            if len(self._going) >= MOST_WAITING:
                busy: Future[Answer] = Future()
                busy.set_result(Answer(problem="Many pages are asked for at once. Try again in a few seconds."))
                return busy
            going = self._going[question] = self._threads.submit(self._answered, question)
        going.add_done_callback(lambda _: self._ended(question))
        return going

    def _ended(self, question: Question) -> None:
        with self._lock:
            self._going.pop(question, None)

    def _answered(self, question: Question) -> Answer:
        signature = signature_of(question)
        with self._lock:
            kept = self._kept.get(question)
        if kept is not None and _still_good(kept, signature):
            return kept.answer
        try:
            answer = self.workers.ask(question)
        except WorkerError as error:
            answer = Answer(problem=str(error), cost_s=CPU_S)
        self._keep(question, _Kept(signature=signature, answer=answer, at=time.monotonic()))
        return answer

    def _keep(self, question: Question, kept: _Kept) -> None:
        with self._lock:
            self._kept[question] = kept
            self._kept.move_to_end(question)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)


def _still_good(kept: _Kept, signature: bytes) -> bool:
    """Figures that go on with the time are made anew after their rest; others when the files have changed."""
    if kept.rests and (kept.signature == signature or kept.answer.live or kept.answer.problem):
        return True
    return kept.signature == signature and not kept.answer.live and not kept.answer.problem


def signature_of(question: Question) -> bytes:
    """Changes with every byte that is added to the files behind the question, and with every new file of a name."""
    digest = blake2b(digest_size=16)
    for folder in question.folders:
        for path in _behind(Path(folder), question.view):
            try:
                found = path.stat()
            except OSError:
                continue
            digest.update(f"{path}\0{found.st_ino} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.digest()


def _behind(folder: Path, view: View) -> Iterator[Path]:
    yield from (folder / name for name in _PAGE_FILES)
    if view is View.HEADLINES:
        return
    try:
        processes = sorted(entry.path for entry in os.scandir(folder / "events") if entry.is_dir())
    except OSError:
        return
    for process in processes:
        try:
            yield from (Path(entry.path) for entry in sorted(os.scandir(process), key=lambda entry: entry.name))
        except OSError:
            continue
