"""A rank in a process forked from a keeper: all that a new interpreter would have made anew, then the module's main."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import importlib.util
import logging
import os
import runpy
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from trainer.launch.processes import JOB_FOLDER_VARIABLE, JOB_VARIABLE
from trainer.standby.environment_area import show

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
_MARKERS = (JOB_VARIABLE, JOB_FOLDER_VARIABLE, "ETT_HOME")


class NotARankError(Exception):
    """This process cannot become what was asked for; nothing of the job has run in it."""


@dataclass(frozen=True, kw_only=True)
class RankOrder:
    """What a supervisor wants run: `python -m module *arguments`.

    Attributes:
        threads: of OpenMP, as the standby's libraries were loaded with.
    """

    module: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    threads: int


def become(order: RankOrder, stdout: int, stderr: int, *, keeper: int, keep: int) -> None:
    """Make this freshly forked process the rank's. Of its files only the standard ones and `keep` stay open.

    Raises:
        NotARankError, EnvironmentAreaError, OSError: it could not be; exit.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != keeper:
        raise NotARankError("its keeper died")
    os.setsid()
    _reset_signals()
    os.chdir(order.folder)
    os.environ.clear()
    os.environ.update(order.environment)
    show(order.environment, first=_MARKERS)
    libc.prctl(_PR_SET_NAME, b"python", 0, 0, 0)
    _redirect(stdout, stderr, keep)
    _forget_the_parent()
    _restore_threads(order.threads)
    if importlib.util.find_spec(order.module) is None:
        raise NotARankError(f"no module {order.module}")


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as the interpreter does
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if faulthandler.is_enabled():  # $PYTHONFAULTHANDLER, which the standby was started with as the rank would be
        faulthandler.disable()
        faulthandler.enable()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _redirect(stdout: int, stderr: int, keep: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - plain numbers are wanted
        if int(name) > 2 and int(name) != keep:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(name))


def _forget_the_parent() -> None:
    """State of Python and its libraries that a new process does not share with any other."""
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    tempfile.tempdir = None
    time.tzset()
    sys.path[0] = os.getcwd()  # noqa: PTH109 - what `python -m` does
    atexit._clear()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # `random` does this by itself; torch's generators begin with a fixed seed


def _restore_threads(openmp: int) -> None:
    """The standby kept OpenBLAS at one thread; a new process would have let it start as many as it is told to."""
    told = next((os.environ[name] for name in _BLAS_THREADS if os.environ.get(name)), "")
    wanted = int(told) if told.isdigit() else openmp
    if wanted > 1 and "numpy" in sys.modules:
        from threadpoolctl import ThreadpoolController

        ThreadpoolController().select(internal_api="openblas").limit(limits=wanted)


def run(order: RankOrder) -> NoReturn:
    """The module's main, and this process's end as the interpreter would end it."""
    sys.argv = [order.module, *order.arguments]
    status = 0
    try:
        runpy.run_module(order.module, run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        status = _status_of(leaving)
    except KeyboardInterrupt:
        traceback.print_exc()
        _flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _flush()
    os._exit(status)


def _status_of(leaving: SystemExit) -> int:
    code = leaving.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
