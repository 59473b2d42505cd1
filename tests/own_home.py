"""`ETT_HOME` for as long as it is meant: what outlives a test must not leave it set for the tests of others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def at_home(home: Path) -> Iterator[None]:
    """At home there, with the usual number of device slots."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ETT_HOME", str(home))
        patched.delenv("ETT_LOCAL_SLOTS", raising=False)
        yield


def product_variables() -> dict[str, str]:
    """The environment that the product reads, as it is now."""
    return {name: value for name, value in os.environ.items() if name.startswith("ETT_")}
