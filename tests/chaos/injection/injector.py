"""Injects faults into the process it is loaded into: wraps product functions, by name, as their modules are imported.

Nothing of the product knows of it. It also bears witness: which rows each rank was handed, in which order.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from chaos_faults import ATTEMPT_VARIABLE, FAULTS_VARIABLE, SUPERVISOR, WITNESS_VARIABLE, Action, Fault, Moment, loads

READER = "trainer.dpp.reader"
FILLER = "chaos-filler"
_BLOCK = 1 << 16

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def install() -> None:
    """Arrange for this process's faults, if it is a rank or the supervisor of a job under test."""
    process = _process()
    if process is None or FAULTS_VARIABLE not in os.environ:
        return
    wrappers: dict[str, list[tuple[str, Wrapper]]] = {}
    for fault in loads(os.environ[FAULTS_VARIABLE]):
        if fault.place.process == process:
            module, _, name = fault.place.call.partition(":")
            wrappers.setdefault(module, []).append((name, Injection(fault, process).around))
    if process != SUPERVISOR:
        witness = Witness(process)
        wrappers.setdefault(READER, []).append(("PartitionReader.__next__", witness.around))
    for name in wrappers.keys() & sys.modules.keys():
        _wrap(sys.modules[name], wrappers.pop(name))
    if wrappers:
        sys.meta_path.insert(0, _Finder(wrappers))


def _process() -> str | None:
    """Which part this process plays; None for helpers that ranks start, such as compilers."""
    arguments = sys.orig_argv
    module = next((after for flag, after in itertools.pairwise(arguments) if flag == "-m"), None)
    if module == "trainer":
        return os.environ.get("RANK")
    return SUPERVISOR if module == "trainer.launch.supervisor" else None


class Injection:
    """One fault on its way to its call."""

    def __init__(self, fault: Fault, process: str) -> None:
        self._fault, self._process = fault, process
        self._calls = 0
        self._told = False
        self._lock = threading.Lock()

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` with the fault in it."""
        moment = self._fault.place.moment

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            due = self._due(args)
            if due and moment is Moment.BEFORE:
                self._strike()
            result = function(*args, **kwargs)
            if due and moment is Moment.AFTER:
                self._strike()
            return result

        return wrapped

    def _due(self, args: Sequence[Any]) -> bool:
        if not _matches(self._fault.place.label, args):
            return False
        with self._lock:
            self._calls += 1
            return self._fault.place.nth <= self._calls < self._fault.place.nth + self._fault.times

    def _strike(self) -> None:
        action = self._fault.action
        if not self._told:
            self._told = True
            _testify(f"struck-a{os.environ[ATTEMPT_VARIABLE]}-{self._process}", f"{action} at {self._fault.place}")
        if action is Action.SLOW:
            time.sleep(self._fault.delay_s)
        elif action in _SIGNALS:
            self._signal(_SIGNALS[action])
        else:
            assert self._fault.path is not None, f"{action} names no path"
            _ON_FILES[action](Path(self._fault.path))

    def _signal(self, number: signal.Signals) -> None:
        pid = _pid_of(self._fault.target or self._process, self._process)
        if not self._fault.delay_s:
            os.kill(pid, number)
            return
        # Another process does it: a thread of this one would wait until the victim lets go of the interpreter.
        # By then the number may be another process's: the start time tells.
        began = f"$(cut -d' ' -f22 /proc/{pid}/stat)"
        command = f'began="{began}"; sleep {self._fault.delay_s}; [ "{began}" = "$began" ] && kill -{int(number)} {pid}'
        subprocess.Popen(["sh", "-c", command], env={"PATH": os.environ["PATH"]}, start_new_session=True)


def _matches(label: str | None, args: Sequence[Any]) -> bool:
    """Whether a call is one of those meant: by the span's phase, the point's name, or a part of the file's name."""
    if label is None or getattr(args[0], "phase", None) == label:
        return True
    return any(each == label or (isinstance(each, Path) and label in each.name) for each in args[:2])


def _pid_of(target: str, here: str) -> int:
    if target == here:
        return os.getpid()
    status = json.loads((Path(os.environ["ETT_JOB_DIR"]) / "status.json").read_text())
    if target == SUPERVISOR:
        return int(status["supervisor"]["pid"])
    return next(int(rank["pid"]) for rank in status["status"]["ranks"] if str(rank["rank"]) == target)


def _fill(folder: Path) -> None:
    """Leave no byte free on the file system of `folder`."""
    with (folder / FILLER).open("ab", buffering=0) as stream:
        for size in (_BLOCK * 16, 4096, 1):
            try:
                while stream.write(b"\0" * size):
                    pass
            except OSError:
                continue


def _free(folder: Path) -> None:
    (folder / FILLER).unlink(missing_ok=True)


def _hide(path: Path) -> None:
    path.rename(path.with_suffix(".hidden"))


def _rewrite(path: Path) -> None:
    """The same size and footer with other values: only the time of modification tells."""
    size = path.stat().st_size
    with path.open("r+b") as stream:
        stream.seek(4)
        stream.write(b"\xff" * min(4096, size // 2))


_SIGNALS = {Action.KILL: signal.SIGKILL, Action.TERM: signal.SIGTERM, Action.STOP: signal.SIGSTOP}
_ON_FILES: dict[Action, Callable[[Path], None]] = {
    Action.FILL: _fill,
    Action.FREE: _free,
    Action.HIDE: _hide,
    Action.REWRITE: _rewrite,
}


class Witness:
    """Writes down, batch by batch, which training rows this rank's loop was handed."""

    def __init__(self, rank: str) -> None:
        self._name = f"a{os.environ[ATTEMPT_VARIABLE]}-r{rank}.jsonl"
        self._readers: list[int] = []

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`PartitionReader.__next__`, told to the witness."""

        @functools.wraps(function)
        def wrapped(reader: Any) -> Any:
            batch = function(reader)
            if reader._row_set.value == "training":
                self._tell(reader, batch)
            return batch

        return wrapped

    def _tell(self, reader: Any, batch: Any) -> None:
        if id(reader) not in self._readers:
            self._readers.append(id(reader))
        rows = [[part.file, part.row_group, part.start, part.stop] for part in batch.consumed]
        _testify(self._name, json.dumps({"reader": self._readers.index(id(reader)), "rows": rows}))


def _testify(name: str, line: str) -> None:
    """One line, straight to the file: whoever writes it may be dead the next moment."""
    descriptor = os.open(Path(os.environ[WITNESS_VARIABLE]) / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules with faults in them as Python itself would, and wraps their functions once they are loaded."""

    def __init__(self, wrappers: dict[str, list[tuple[str, Wrapper]]]) -> None:
        self._wrappers = wrappers

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name not in self._wrappers:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._wrappers[name])
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, wrappers: list[tuple[str, Wrapper]]) -> None:
        self._loader, self._wrappers = loader, wrappers

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _wrap(module, self._wrappers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _wrap(module: ModuleType, wrappers: list[tuple[str, Wrapper]]) -> None:
    for name, wrapper in wrappers:
        *outer, last = name.split(".")
        owner: Any = functools.reduce(getattr, outer, module)
        setattr(owner, last, wrapper(getattr(owner, last)))
