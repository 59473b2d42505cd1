"""`python tests/images/chroot_build.py WORK [TARGET...]`: docker/Dockerfile in a clean Debian, without an engine.

Each stage is an overlay over its parent's; the bottom one is debootstrap's minimal Debian. Needs root and debootstrap.
Keeps WORK/stages for a look, or for commands inside (`--then`); unmounts everything at its end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dockerfile import Instruction, Stage, assignments, expanded, stages

REPOSITORY = Path(__file__).parents[2]
_SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NO_STEP = {"EXPOSE", "ENTRYPOINT", "CMD", "LABEL", "HEALTHCHECK", "VOLUME", "STOPSIGNAL"}

_ABSENT = "import importlib.util as u; assert not [m for m in {absent} if u.find_spec(m)]; import {present}"
CHECKS = {
    "control": [("python", "airflow, psycopg2, ett_airflow.stack.components, ett_airflow.ui.pages", "torch")],
    "data": [("python", "trainer.dpp.check, trainer.dpp.prepare", "torch airflow")],
    "trainer": [("python", "trainer.startup, trainer.loop", "airflow great_expectations")],
    "publisher": [("python", "publish.snapshot, publish.validation", "airflow great_expectations")],
}
"""By target: an interpreter, what it must be able to import, and what must not be there."""
CHECKS["machine"] = [
    *CHECKS["control"],
    *((f"/opt/ett/{name}/bin/python", *check[1:]) for name in list(CHECKS)[1:] for check in CHECKS[name]),
]


class BuildError(RuntimeError):
    """A step that failed, or one that this builder does not know."""


@dataclass
class Image:
    """A built stage: its layers from the top down, and the settings that later steps inherit."""

    layers: list[Path]
    variables: dict[str, str] = field(default_factory=lambda: {"PATH": _SEARCH})
    arguments: dict[str, str] = field(default_factory=dict)
    directory: str = "/"
    shell: list[str] = field(default_factory=lambda: ["/bin/sh", "-c"])
    user: str = "0"


@dataclass
class Builder:
    """Builds stages as they are needed."""

    work: Path
    given: dict[str, str]  # build arguments
    binds: Sequence[str]  # folders of the host that steps see: certificates, wheels
    passed: dict[str, str]  # variables of the host that steps see, and images do not keep
    stages: dict[str, Stage]
    built: dict[str, Image] = field(default_factory=dict)

    def image(self, name: str) -> Image:
        if name not in self.built:
            self.built[name] = self._build(self.stages[name]) if name in self.stages else self._debian(name)
        return self.built[name]

    def _debian(self, name: str) -> Image:
        suite = name.removeprefix("debian:").removesuffix("-slim")
        root = self.work / "debian" / suite
        if not (root / "etc/debian_version").exists():
            print(f"debootstrap {suite}", flush=True)
            subprocess.run(["debootstrap", "--variant=minbase", suite, root], check=True, stdout=subprocess.DEVNULL)
        return Image([root])

    def _build(self, stage: Stage) -> Image:
        parent = self.image(stage.parent)
        top = self.work / "stages" / stage.name
        if top.exists():
            shutil.rmtree(top)
        top.mkdir(parents=True)
        image = Image(
            [top, *parent.layers],
            dict(parent.variables),
            dict(parent.arguments),
            parent.directory,
            list(parent.shell),
            parent.user,
        )
        with self.mounted(image) as root:
            for instruction in stage.instructions:
                began = time.monotonic()
                self._step(image, root, instruction)
                text = f"{instruction.name} {instruction.text}"[:100]
                print(f"{stage.name:22} {time.monotonic() - began:6.1f} s  {text}", flush=True)
        return image

    def _step(self, image: Image, root: Path, instruction: Instruction) -> None:
        text = instruction.text
        if instruction.name == "RUN":
            self.run(image, root, [*image.shell, text])
        elif instruction.name == "COPY":
            self._copy(image, root, instruction)
        elif instruction.name == "ENV":
            image.variables |= assignments(expanded(text, image.variables | image.arguments))
        elif instruction.name == "ARG":
            declared = assignments(text) or {text: ""}
            image.arguments |= {name: self.given.get(name, default) for name, default in declared.items()}
        elif instruction.name == "WORKDIR":
            image.directory = text
            (root / text.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif instruction.name == "SHELL":
            image.shell = instruction.words()
        elif instruction.name == "USER":
            image.user = text
        elif instruction.name not in _NO_STEP:
            raise BuildError(f"unknown instruction {instruction.name}")

    def _copy(self, image: Image, root: Path, instruction: Instruction) -> None:
        words = instruction.words()
        origin = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else None
        *sources, target = words
        place = root / target.lstrip("/") if target.startswith("/") else root / image.directory.lstrip("/") / target
        with ExitStack() as stack:
            base = stack.enter_context(self.mounted(self.image(origin))) if origin else REPOSITORY
            for source in sources:
                path = base / source.lstrip("/")
                if path.is_dir():
                    ignore = None if origin else shutil.ignore_patterns("__pycache__")
                    shutil.copytree(path, place, symlinks=True, dirs_exist_ok=True, ignore=ignore)
                else:
                    into = place / path.name if target.endswith("/") or place.is_dir() else place
                    into.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, into)

    def run(self, image: Image, root: Path, command: Sequence[str]) -> None:
        """A command inside, with the image's variables, folder and user.

        Raises:
            BuildError: it failed.
        """
        environment = image.variables | image.arguments | self.passed
        who = ["--reuid", image.user, "--regid", image.user, "--clear-groups"] if image.user != "0" else []
        inside = ["env", "-i", *(f"{name}={value}" for name, value in environment.items())]
        inside += ["setpriv", *who, "--", "sh", "-c", f'cd {image.directory} && exec "$@"', "sh", *command]
        done = subprocess.run(["chroot", root, *inside], check=False)
        if done.returncode:
            raise BuildError(f"status {done.returncode}: {' '.join(command)}")

    @contextmanager
    def mounted(self, image: Image) -> Iterator[Path]:
        """The image's file system; what is written goes to its top layer."""
        top, *lower = image.layers
        root, scratch = self.work / "roots" / top.name, self.work / "scratch" / top.name
        for folder in (root, scratch):
            folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            layers = f"lowerdir={':'.join(map(str, lower))},upperdir={top},workdir={scratch}"
            stack.enter_context(_mount(root, "-t", "overlay", "-o", layers, "overlay"))
            stack.enter_context(_mount(root / "proc", "-t", "proc", "proc"))
            for folder in ("/dev", *self.binds):
                inside = root / folder.lstrip("/")
                inside.mkdir(parents=True, exist_ok=True)
                stack.enter_context(_mount(inside, "--bind", folder))
                subprocess.run(["mount", "--make-private", inside], check=True)
            stack.enter_context(_mount(root / "dev/shm", "-t", "tmpfs", "-o", "mode=1777", "tmpfs"))
            if not _says_something(root / "etc/resolv.conf"):
                shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
                shutil.copy("/etc/hosts", root / "etc/hosts")
            yield root


def _says_something(path: Path) -> bool:
    """Whether the file is there and says something."""
    return path.exists() and path.stat().st_size > 0


@contextmanager
def _mount(target: Path, *options: str) -> Iterator[None]:
    subprocess.run(["mount", *options, target], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", target], check=False)


def main() -> int:
    """0 when every target was built and its `--then` command succeeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("targets", nargs="*", default=["control", "data", "trainer", "publisher", "machine"])
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--bind", action="append", default=[], metavar="FOLDER", help="a folder that the steps see")
    parser.add_argument("--pass", action="append", default=[], dest="passed", metavar="NAME", help="a host's variable")
    parser.add_argument("--then", metavar="COMMAND", help="run in the last target afterwards, as its user")
    options = parser.parse_args()
    builder = Builder(
        options.work.absolute(),
        dict(each.split("=", 1) for each in options.build_arg),
        options.bind,
        {name: os.environ[name] for name in options.passed if name in os.environ},
        stages(REPOSITORY / "docker" / "Dockerfile"),
    )
    try:
        for target in options.targets:
            image = builder.image(target)
            with builder.mounted(image) as root:
                for python, present, absent in CHECKS.get(target, ()):
                    code = _ABSENT.format(present=present, absent=absent.split())
                    builder.run(image, root, [python, "-c", code])
                print(f"{target}: its environments hold what they must, and nothing of the others'", flush=True)
                if options.then and target == options.targets[-1]:
                    builder.run(image, root, ["/bin/bash", "-c", options.then])
    except (BuildError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
