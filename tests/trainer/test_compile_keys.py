"""Compiled code across processes: keys that do not drift, hits on another node, and misses that say why (K15)."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

REPOSITORY = Path(__file__).parents[2]
ALL_ON = {"preset": "optimized"}
DRIFTING = {"preset": "optimized", "stable_keys": False}

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts one attempt's compilation with settings and environment of its own."""

    def started(settings: dict[str, Any], *, cwd: Path | None = None, **variables: str) -> subprocess.Popen[str]:
        given = {"runs": str(tmp_path / "runs"), "node": str(tmp_path / "node"), **settings}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH", "ETT_"))}
        path = [str(REPOSITORY), *filter(None, [variables.pop("EXTRA_PATH", "")])]
        environment = {**inherited, "PYTHONPATH": os.pathsep.join(path), "PYTHONWARNINGS": "ignore", **variables}
        return subprocess.Popen(
            [sys.executable, str(REPOSITORY / "tests/trainer/compiled_tower.py"), json.dumps(given)],
            cwd=cwd or tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return started


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = process.communicate(timeout=800)
    assert process.returncode == 0, errors[-3000:]
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return {**found, "log": errors}


def elsewhere(folder: Path) -> Path:
    """The same installation of torch under another path."""
    import torch

    folder.mkdir(parents=True)
    (folder / "site-packages").symlink_to(Path(torch.__file__).parents[1])
    return folder / "site-packages"


def other_place(tmp_path: Path) -> dict[str, Any]:
    """Everything of a process that may differ between two hosts of one type."""
    home = tmp_path / "other" / "home"
    home.mkdir(parents=True)
    (tmp_path / "other" / "tmp").mkdir()
    return {
        "cwd": home,
        "HOME": str(home),
        "USER": "another",
        "TMPDIR": str(tmp_path / "other" / "tmp"),
        "PYTHONHASHSEED": "77",
        "EXTRA_PATH": str(elsewhere(tmp_path / "other" / "installation")),
        "TORCH_COMPILE_JOB_ID": "another-job",
    }


def test_keys_are_the_same_in_every_process_place_and_attempt(start: Start, tmp_path: Path) -> None:
    nothing = {"build": "nothing", "optimizations": {**ALL_ON, "artifact_cache": True}}
    first = start({**nothing, "runs": str(tmp_path / "a")}, PYTHONHASHSEED="1")
    there = other_place(tmp_path)
    second = start({**nothing, "runs": str(tmp_path / "b"), "node": str(tmp_path / "n2"), "attempt": 7}, **there)
    one, other = result(first), result(second)
    assert one["torch"] != other["torch"]
    assert [kind for kind, _ in one["graphs"]] == ["autograd", "inductor", "inductor"]
    assert one["graphs"] == other["graphs"]
    assert one["kernel"] == other["kernel"]
    assert one["key"] == other["key"]


def test_with_torch_s_defaults_another_place_of_installation_renames_every_kernel(start: Start, tmp_path: Path) -> None:
    nothing = {"build": "nothing", "optimizations": DRIFTING}
    first = start({**nothing, "runs": str(tmp_path / "a")})
    there = other_place(tmp_path)
    second = start({**nothing, "runs": str(tmp_path / "b"), "node": str(tmp_path / "n2")}, **there)
    one, other = result(first), result(second)
    assert one["graphs"] == other["graphs"]
    assert one["kernel"] != other["kernel"]


@pytest.mark.parametrize(("optimizations", "hit"), [(ALL_ON, True), (DRIFTING, False)])
def test_k15_profiles_of_the_first_attempt_do_not_change_the_graph_of_the_second(
    start: Start, optimizations: dict[str, Any], hit: bool
) -> None:
    """Sizes vary and are not marked, so a profile of the first attempt changes what the second compiles."""
    settings = {"build": "nothing", "marked": False, "optimizations": optimizations}
    first = result(start({**settings, "sizes": [32, 48, 40]}, TORCH_COMPILE_JOB_ID="refresh"))
    assert (first["hit"], first["graph_misses"]) == (False, 4)
    second = result(start({**settings, "sizes": [32], "attempt": 2}, TORCH_COMPILE_JOB_ID="refresh"))
    known = [tuple(graph) for graph in first["graphs"]]
    found = [tuple(graph) for graph in second["graphs"]]
    if hit:
        assert set(found) <= set(known)
        assert (second["hit"], second["graph_hits"], second["graph_misses"]) == (True, 2, 0)
        assert second["changed"] == []
    else:  # the very same graph as the first attempt's second, or another one: never its first
        assert not set(found) & set(known[:3])


def test_a_node_that_never_compiled_runs_no_compiler(start: Start, tmp_path: Path) -> None:
    """Another host of the type: nothing there but the archive. The compiler there tells its version and fails."""
    cold = result(start({"optimizations": ALL_ON}))
    assert (cold["hit"], cold["graph_misses"], cold["changed"]) == (False, 2, [])
    assert cold["archived_bytes"] > 0
    assert cold["error"] < 1e-5
    calls = tmp_path / "calls"
    there = other_place(tmp_path)
    broken = broken_compiler(tmp_path / "bin", calls)
    warm = start(
        {"optimizations": ALL_ON, "node": str(tmp_path / "n2"), "attempt": 2},
        **{**there, "PATH": f"{broken}{os.pathsep}{os.environ['PATH']}"},
    )
    found = result(warm)
    assert (found["hit"], found["graph_hits"], found["graph_misses"]) == (True, 2, 0)
    assert found["error"] < 1e-5
    assert found["vectors"] == cold["vectors"]
    assert not calls.exists(), calls.read_text()


def test_a_missed_graph_says_which_component_changed(start: Start) -> None:
    """The spec is the same, so the archive is found; the code behind it has changed."""
    first = result(start({"build": "nothing", "optimizations": ALL_ON}))
    second = result(start({"build": "nothing", "optimizations": ALL_ON, "attempt": 2, "width": 24}))
    assert first["key"] == second["key"]
    assert (second["hit"], second["graph_hits"], second["graph_misses"]) == (False, 0, 2)
    assert "gm" in second["graphs_changed"]
    assert second["archived_bytes"] > 0
    third = result(start({"build": "nothing", "optimizations": ALL_ON, "attempt": 3, "width": 24}))
    assert third["hit"] is True


def broken_compiler(folder: Path, calls: Path) -> Path:
    real = shutil.which("g++")
    folder.mkdir()
    script = folder / "g++"
    script.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *--version*|*-dumpversion*|*-print-*|*-v) exec {real} "$@";; esac\n'
        f'echo "$@" >> {calls}; exit 1\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return folder
