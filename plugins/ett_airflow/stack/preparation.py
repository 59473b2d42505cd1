"""Brings a refresh's data up to date before anything is triggered, in a process of its own."""

from __future__ import annotations

import subprocess
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from ett_airflow.stack.server import StackError
from ett_airflow.stack.settings import REPOSITORY
from trainer.launch.interpreters import interpreter_of


@dataclass
class Preparation:
    """`python -m trainer.dpp.prepare SPEC` while it runs; `latest` is the last line that it wrote."""

    process: subprocess.Popen[str]
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=30))

    @classmethod
    def start(cls, spec_path: Path) -> Preparation:
        process = subprocess.Popen(
            [interpreter_of("trainer.dpp.prepare"), "-u", "-m", "trainer.dpp.prepare", str(spec_path)],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        preparation = cls(process)
        threading.Thread(target=preparation._read, daemon=True).start()
        return preparation

    @property
    def latest(self) -> str:
        return self.lines[-1] if self.lines else ""

    def finished(self) -> bool:
        """Whether the data is ready.

        Raises:
            StackError: preparation failed; the message holds its last lines.
        """
        status = self.process.poll()
        if status is None:
            return False
        if status:
            raise StackError("data preparation failed:\n" + "\n".join(self.lines))
        return True

    def stop(self) -> None:
        """End it; what it has landed so far is complete, day by day."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() and not line.startswith("{"):  # its summary is for programs
                self.lines.append(line.rstrip())
