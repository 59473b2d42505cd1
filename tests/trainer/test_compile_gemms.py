"""Matrix products: which implementations are tried, from where that is known, and how it is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch._inductor import config as inductor
from training_job import small_spec

from trainer.compile import instruction_set, kernels, profile_gemms
from trainer.compile.archive import CompileArchive
from trainer.compile.attempt_cache import AttemptCache
from trainer.compile.instruction_set import VectorSupport
from trainer.compile.kernels import (
    SEARCHED_BACKENDS,
    AutotunePolicy,
    GemmChoicesError,
    autotune,
    committed_backends,
    host_class,
    without_places,
)
from trainer.compile.place import ArchivePlace
from trainer.run_folder import RunFolder


@pytest.fixture
def settings() -> object:
    """The compiler's settings as they were."""
    with inductor.patch({}), torch._dynamo.config.patch({}):
        before = {name: getattr(inductor, name) for name in ("max_autotune_gemm", "max_autotune_gemm_backends")}
        automatic = torch._dynamo.config.automatic_dynamic_shapes
        yield
        for name, value in before.items():
            setattr(inductor, name, value)
        torch._dynamo.config.automatic_dynamic_shapes = automatic


@pytest.mark.parametrize(
    ("compilation", "optimizations", "policy"),
    [
        ({}, {}, AutotunePolicy.NONE),
        ({"max_autotune": True}, {}, AutotunePolicy.PRUNED),
        ({"max_autotune": True}, {"autotune_pruning": False, "dynamic_shapes": False}, AutotunePolicy.SEARCHED),
    ],
)
def test_the_spec_decides_whether_products_are_timed(
    tmp_path: Path, compilation: dict[str, object], optimizations: dict[str, object], policy: AutotunePolicy
) -> None:
    spec = small_spec(compilation=compilation, optimizations=optimizations)
    folder = RunFolder(tmp_path / "small" / "r1")
    cache = AttemptCache.of(spec, folder, folder=tmp_path / "node", device="cpu", threads=1)
    assert cache.autotuning is policy


def test_each_policy_tells_inductor(settings: object) -> None:
    automatic = torch._dynamo.config.automatic_dynamic_shapes
    autotune(AutotunePolicy.NONE, "cpu")
    assert inductor.max_autotune_gemm is False
    autotune(AutotunePolicy.PRUNED, "cpu")
    assert inductor.max_autotune_gemm is True
    assert inductor.max_autotune_gemm_backends == committed_backends(host_class("cpu"))
    assert torch._dynamo.config.automatic_dynamic_shapes is automatic
    autotune(AutotunePolicy.SEARCHED, "cpu")
    assert inductor.max_autotune_gemm_backends == SEARCHED_BACKENDS
    assert torch._dynamo.config.automatic_dynamic_shapes is False


def test_the_committed_file_has_an_answer_for_every_host() -> None:
    assert committed_backends("a host that nobody has measured") == "ATEN"
    document = json.loads(kernels.CHOICES_PATH.read_text())
    for host in document["hosts"]:
        assert committed_backends(host).startswith("ATEN")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not what the tool writes"),
        ("[]", "not what the tool writes"),
        ('{"format": 2}', "format 2"),
        ('{"format": 1, "hosts": {}}', "not what the tool writes"),
        ('{"format": 1, "default": ["MAGIC"], "hosts": {}}', "MAGIC"),
        ('{"format": 1, "default": [], "hosts": {}}', "not some of"),
    ],
)
def test_a_file_of_choices_that_cannot_be_used_says_how_to_write_it(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "choices.json"
    path.write_text(text)
    with pytest.raises(GemmChoicesError, match=why) as caught:
        committed_backends("x", path)
    assert "trainer.compile.profile_gemms --write" in str(caught.value)
    with pytest.raises(GemmChoicesError, match="cannot be read"):
        committed_backends("x", tmp_path / "none.json")


def test_the_tool_writes_what_the_trainer_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    milliseconds = {"ATEN": 1.0, "CPP": 0.5}
    monkeypatch.setattr(profile_gemms, "measured", lambda product, backend, repeats: (milliseconds[backend], 2.0))
    path = tmp_path / "choices.json"
    path.write_text(profile_gemms.with_entry(path, "another host", {"backends": ["ATEN"]}))
    assert profile_gemms.main(["--write", "--file", str(path)]) == 0
    assert committed_backends(host_class("cpu"), path) == "ATEN,CPP"
    assert committed_backends("another host", path) == "ATEN"
    milliseconds["CPP"] = 0.97
    assert profile_gemms.main(["--write", "--file", str(path)]) == 0
    assert committed_backends(host_class("cpu"), path) == "ATEN"


def test_without_write_the_tool_only_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profile_gemms, "measured", lambda product, backend, repeats: (1.0, 2.0))
    assert profile_gemms.main(["--file", str(tmp_path / "choices.json")]) == 0
    assert not (tmp_path / "choices.json").exists()
    assert json.loads(capsys.readouterr().out)[host_class("cpu")]["backends"] == ["ATEN"]


# -- instruction sets and names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("works", "support"),
    [([True, True], VectorSupport.ALL), ([True, False], VectorSupport.SOME), ([False, False], VectorSupport.NONE)],
)
def test_a_host_is_probed_once_and_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: list[bool], support: VectorSupport
) -> None:
    from torch._inductor import cpu_vec_isa

    answers = [["wide", "narrow"], [name for name, does in zip(["wide", "narrow"], works, strict=True) if does]]
    probes: list[bool | None] = []

    def found() -> list[str]:
        probes.append(inductor.cpp.vec_isa_ok)
        return answers[0] if inductor.cpp.vec_isa_ok else answers[1]

    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", type("Cached", (), {"__wrapped__": staticmethod(found)}))
    place = ArchivePlace(tmp_path / "kept")
    assert instruction_set.remembered_or_probed(place) is support
    assert probes == [True, None]
    assert instruction_set.remembered_or_probed(ArchivePlace(tmp_path / "kept")) is support
    assert len(probes) == 2
    for note in (tmp_path / "kept").glob("host-*.json"):
        note.write_text('{"vectors": "magic"}')
    assert instruction_set.remembered_or_probed(place) is support
    assert len(probes) == 4


@pytest.mark.parametrize(
    ("support", "flag"), [(VectorSupport.ALL, True), (VectorSupport.SOME, None), (VectorSupport.NONE, False)]
)
def test_what_is_remembered_decides(support: VectorSupport, flag: bool | None) -> None:
    before = inductor.cpp.vec_isa_ok
    try:
        instruction_set.take(support)
        assert inductor.cpp.vec_isa_ok is flag
    finally:
        inductor.cpp.vec_isa_ok = before


def test_a_note_that_cannot_be_written_costs_a_probe_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").write_text("a file where the folder would be")
    monkeypatch.setattr(instruction_set, "probed", lambda: VectorSupport.ALL)
    place = CompileArchive(tmp_path / "kept").place
    assert instruction_set.remembered_or_probed(place) is VectorSupport.ALL


def test_a_compiler_s_command_is_told_apart_by_options_and_not_by_places() -> None:
    folder = str(Path(torch.__file__).parent)
    command = f"g++ -O3 -march=native -I{folder}/include -L{folder}/lib"
    assert without_places(command) == "g++ -O3 -march=native -I<torch>/include -L<torch>/lib"
    assert without_places("g++ -O2 -I/usr/include") == "g++ -O2 -I/usr/include"
