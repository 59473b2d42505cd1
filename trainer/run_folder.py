"""The run folder: the one contract between the control plane and the data plane."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

HOME_VARIABLE = "ETT_HOME"
RUN_FOLDER_VARIABLE = "ETT_RUN_FOLDER"

_SAFE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")


class RunFolderError(ValueError):
    """A run folder that cannot be addressed; the message says which part of its name is at fault."""


def home() -> Path:
    """Where everything that is not code lives: `$ETT_HOME`, else `.ett` beside the packages."""
    configured = os.environ.get(HOME_VARIABLE)
    return Path(configured).absolute() if configured else Path(__file__).resolve().parents[1] / ".ett"


def runs_root() -> Path:
    """ROOT of `ROOT/<refresh>/<run>`."""
    return home() / "runs"


def registry_root() -> Path:
    """REGISTRY of `REGISTRY/<refresh>/versions/<version>`."""
    return home() / "registry"


def data_root(configured: str) -> Path:
    """The folder of a spec's `data.root`: absolute as it is, relative below `$ETT_HOME/data`."""
    return home() / "data" / configured  # joining an absolute path yields that path


def safe_name(text: str) -> str:
    """`text` as a single path component: every character that a shell or URL would mind becomes `_`."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", text).lstrip("._-")
    if not name:
        raise RunFolderError(f"{text!r} leaves nothing to name a folder by; use letters or digits")
    return name


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run, `ROOT/<refresh>/<run>`; creating it makes it private (0700)."""

    root: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root).absolute())

    @classmethod
    def of(cls, refresh: str, run: str, root: Path | None = None) -> RunFolder:
        """The folder of `run` of `refresh`.

        Raises:
            RunFolderError: a name that would leave ROOT or need quoting.
        """
        for what, name in (("refresh", refresh), ("run", run)):
            if not _SAFE_NAME.match(name):
                raise RunFolderError(f"{what} name {name!r} is not a plain folder name; use safe_name() first")
        return cls((root or runs_root()) / refresh / run)

    @classmethod
    def open(cls, url: str) -> RunFolder:
        """The folder at a path or `file://` URL.

        Raises:
            RunFolderError: another scheme; only file systems that every rank and the control plane mount work so far.
        """
        scheme, separator, rest = url.partition("://")
        if not separator:
            return cls(Path(url))
        if scheme != "file":
            raise RunFolderError(f"run folder {url!r}: scheme {scheme!r} is not supported; use a mounted path")
        return cls(Path(rest))

    @classmethod
    def from_environment(cls) -> RunFolder:
        """The folder that the launcher named in `$ETT_RUN_FOLDER`."""
        url = os.environ.get(RUN_FOLDER_VARIABLE)
        if not url:
            raise RunFolderError(f"${RUN_FOLDER_VARIABLE} is not set; start this through the launcher or set it")
        return cls.open(url)

    def create(self) -> RunFolder:
        """Make the folder, readable by its owner alone; an existing one is kept."""
        self.root.parent.mkdir(parents=True, exist_ok=True)
        self.root.mkdir(mode=0o700, exist_ok=True)
        self.root.chmod(0o700)
        return self

    @property
    def url(self) -> str:
        return str(self.root)

    @property
    def refresh(self) -> str:
        return self.root.parent.name

    @property
    def run(self) -> str:
        return self.root.name

    @property
    def job(self) -> str:
        """The job's name in the event log: `<refresh>/<run>`."""
        return f"{self.refresh}/{self.run}"

    @property
    def spec_path(self) -> Path:
        return self.root / "spec.yaml"

    @property
    def plan_path(self) -> Path:
        return self.root / "plan.json"

    @property
    def schema_report_path(self) -> Path:
        return self.root / "schema_report.json"

    @property
    def events_dir(self) -> Path:
        return self.root / "events"

    @property
    def checkpoints_dir(self) -> Path:
        """Where checkpoints are unless the spec has a `checkpoint.root`: see `trainer.storage.CheckpointPlace`."""
        return self.root / "checkpoints"

    @property
    def anchor_dir(self) -> Path:
        """As `checkpoints_dir`."""
        return self.root / "anchor"

    @property
    def report_dir(self) -> Path:
        return self.root / "report"

    @property
    def logs_dir(self) -> Path:
        return self.root / "logs"

    @property
    def compile_cache_dir(self) -> Path:
        """Shared by all runs of the refresh: `ROOT/<refresh>/compile-cache`."""
        return self.root.parent / "compile-cache"
