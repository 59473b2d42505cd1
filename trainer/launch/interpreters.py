"""Which Python runs a job: environments apart, where the control plane's has neither torch nor Great Expectations."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from enum import StrEnum


class JobEnvironment(StrEnum):
    """The environments that jobs run in; each can be an interpreter of its own."""

    DATA = "data"  # checks and prepares data: the extra `data`
    TRAINER = "trainer"  # the extra `trainer`
    PUBLISHER = "publisher"  # the extra `publish`

    @property
    def variable(self) -> str:
        """Names its interpreter, e.g. `ETT_PYTHON_TRAINER=/opt/ett/trainer/bin/python`."""
        return f"ETT_PYTHON_{self.name}"

    @classmethod
    def of(cls, module: str) -> JobEnvironment:
        """The environment of the job `python -m module`."""
        if module == "publish" or module.startswith("publish."):
            return cls.PUBLISHER
        return cls.DATA if module.startswith("trainer.dpp") else cls.TRAINER


def interpreter_of(module: str, environment: Mapping[str, str] = os.environ) -> str:
    """The Python that runs `-m module`: the one that its variable names, else the submitter's own.

    >>> interpreter_of("trainer.dpp.check", {"ETT_PYTHON_DATA": "/opt/ett/data/bin/python"})
    '/opt/ett/data/bin/python'
    """
    return environment.get(JobEnvironment.of(module).variable) or sys.executable
