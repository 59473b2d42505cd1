"""Archives of compiled code: what one attempt kept the next one finds; anything wrong with one is a cold start."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training_job import small_spec

from trainer.compile import mega_cache
from trainer.compile.archive import CompileArchive, Compiled, archive_name
from trainer.compile.attempt_cache import AttemptCache, cache_attrs
from trainer.compile.cache import GraphCacheUse
from trainer.compile.graph_keys import GraphKey, GraphKind, why_missed
from trainer.compile.key import CompileKey
from trainer.compile.trust import SEAL_VERSION, sealed
from trainer.run_folder import RunFolder

KEY = CompileKey.of(small_spec(), device="cpu", threads=1)
GRAPHS = (GraphKey(kind=GraphKind.INDUCTOR, key="f1", components={"gm": "aa", "inductor_config[cpp.march]": "bb"}),)


@pytest.fixture
def kept(tmp_path: Path) -> CompileArchive:
    """An archive of one attempt."""
    archive = CompileArchive(tmp_path / "kept")
    assert archive.publish(KEY, Compiled(folder=compiled(tmp_path / "first"), graphs=GRAPHS)) > 0
    return archive


def compiled(folder: Path) -> Path:
    (folder / "ab").mkdir(parents=True)
    (folder / "ab" / "kernel.so").write_bytes(b"code" * 1000)
    (folder / "ab" / ".123.456.tmp").write_bytes(b"half")
    (folder / "locks").mkdir()
    (folder / "locks" / "one.lock").touch()
    (folder / "ab" / "link").symlink_to("/etc/passwd")
    return folder


def path_of(archive: CompileArchive, key: CompileKey = KEY) -> Path:
    path = archive.folder / archive_name(key)
    assert isinstance(path, Path)
    return path


def test_what_one_attempt_compiled_the_next_one_finds(kept: CompileArchive, tmp_path: Path) -> None:
    lookup = kept.unpack(KEY, tmp_path / "second")
    assert (lookup.hit, lookup.changed, lookup.refused) == (True, [], "")
    assert tuple(lookup.graphs) == GRAPHS
    assert [path.name for path in sorted((tmp_path / "second").rglob("*"))] == ["ab", "kernel.so"]
    assert (tmp_path / "second" / "ab" / "kernel.so").read_bytes() == b"code" * 1000


def test_anyone_can_look_into_an_archive_with_tar(kept: CompileArchive) -> None:
    with tarfile.open(path_of(kept)) as archive:
        assert {"archive.json", "folder/ab/kernel.so"} <= set(archive.getnames())


def test_the_first_attempt_of_all_misses_and_nothing_has_changed(tmp_path: Path) -> None:
    lookup = CompileArchive(tmp_path / "none").unpack(KEY, tmp_path / "first")
    assert (lookup.hit, lookup.changed, lookup.refused) == (False, [], "")


@pytest.mark.parametrize(
    ("sections", "part"),
    [
        ({"model": {"over_arch": [32, 8]}}, "model"),
        ({"training": {"batch_size": 64}}, "batch_size"),
        ({"training": {"deterministic": True}}, "deterministic"),
        ({"optimizations": {"dynamic_shapes": False}}, "dynamic_shapes"),
        ({"optimizations": {"stable_keys": False}}, "stable_keys"),
        ({"compilation": {"untraced_modules": ["tower"]}}, "untraced_modules"),
        ({"compilation": {"max_autotune": True}}, "autotuning"),
    ],
)
def test_a_miss_says_which_part_of_the_spec_changed(
    kept: CompileArchive, tmp_path: Path, sections: dict[str, dict[str, object]], part: str
) -> None:
    other = CompileKey.of(small_spec(**sections), device="cpu", threads=1)
    lookup = kept.unpack(other, tmp_path / "second")
    assert (lookup.hit, lookup.changed, lookup.refused) == (False, [part], "")
    assert tuple(lookup.graphs) == GRAPHS  # the compiler's keys can be compared all the same


def test_a_miss_says_that_the_host_changed(kept: CompileArchive, tmp_path: Path) -> None:
    assert kept.unpack(CompileKey.of(small_spec(), device="cpu", threads=3), tmp_path / "x").changed == ["threads"]
    newer = replace(KEY, parts={**KEY.parts, "torch": "3.0", "host_type": "riscv64"})
    assert kept.unpack(newer, tmp_path / "x").changed == ["host_type", "torch"]


def cut(at: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * at)])

    return damage


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def fill_with_zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def of_another_key(path: Path) -> None:
    other = CompileKey.of(small_spec(model={"over_arch": [32, 8]}), device="cpu", threads=1)
    archive = CompileArchive(path.parent)
    archive.publish(other, Compiled(folder=path.parent.parent / "first"))
    path_of(archive, other).replace(path)


def of_a_newer_format(path: Path) -> None:
    parts = {"description": {"format": 99, "key": KEY.parts, "graphs": []}}
    _rewritten(path, json.dumps(parts["description"]).encode())


def without_a_description(path: Path) -> None:
    _rewritten(path, b'{"format": 2}')


def with_a_newer_seal(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content.replace(b"ett-seal %d " % SEAL_VERSION, b"ett-seal %d " % (SEAL_VERSION + 1)))


def plain_tar(path: Path) -> None:
    """As releases before this format wrote them."""
    with tarfile.open(path, "w") as archive:
        archive.add(path.parent.parent / "first" / "ab", arcname="ab")


def with_a_broken_mega_cache(path: Path) -> None:
    CompileArchive(path.parent).publish(KEY, Compiled(folder=None, mega_cache=b"\xff" * 100))


def escaping(path: Path) -> None:
    """One of our own bytes, sealed, and still not let out of its folder."""
    _rewritten(path, json.dumps({"format": 2, "key": KEY.parts, "graphs": []}).encode(), extra="folder/../../escaped")


def _rewritten(path: Path, description: bytes, extra: str | None = None) -> None:
    source = path.parent / "description"
    source.write_bytes(description)
    with tarfile.open(path, "w") as archive:
        archive.add(source, arcname="archive.json")
        if extra:
            archive.add(source, arcname=extra)
    path.write_bytes(sealed(path.name, path.read_bytes(), None))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut(0), "torn"),
        (cut(0.1), "torn"),
        (cut(0.5), "torn"),
        (cut(0.9999), "torn"),
        (fill_with_zeros, "torn"),
        (plain_tar, "no archive of this format"),
        (flip, "damaged"),
        (of_another_key, "holds another's (model differ)"),
        (of_a_newer_format, "format 99"),
        (with_a_newer_seal, "format 2; this release knows 1"),
        (without_a_description, "description cannot be read"),
        (with_a_broken_mega_cache, "Mega-Cache"),
        (escaping, "outside the destination"),
    ],
)
def test_a_damaged_or_foreign_archive_is_a_cold_start_that_says_why(
    kept: CompileArchive,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], None],
    reason: str,
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "second"))
    damage(path_of(kept))
    (tmp_path / "second").mkdir()
    lookup = kept.unpack(KEY, tmp_path / "second")
    assert lookup.hit is False
    assert reason in lookup.refused
    assert str(path_of(kept)) in caplog.text
    assert not list((tmp_path / "second").iterdir())
    assert not (tmp_path / "escaped").exists()
    attrs = cache_attrs(lookup, GraphCacheUse(hits=0, misses=2), 0)
    assert (attrs["hit"], attrs["refused"]) == (False, lookup.refused)
    kept.publish(KEY, Compiled(folder=tmp_path / "first"))
    assert kept.unpack(KEY, tmp_path / "third").hit is True


@contextmanager
def no_space() -> Iterator[None]:
    """Files end at 2000 bytes, as on a full disk: the write fails, not the open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_disk_that_fills_while_unpacking_leaves_a_cold_start(kept: CompileArchive, tmp_path: Path) -> None:
    with no_space():
        lookup = kept.unpack(KEY, tmp_path / "second")
    assert lookup.hit is False
    assert "File too large" in lookup.refused
    assert not list((tmp_path / "second").iterdir())


def test_a_disk_that_fills_while_writing_leaves_what_was_there(
    kept: CompileArchive, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = path_of(kept).read_bytes()
    with no_space():
        assert kept.publish(KEY, Compiled(folder=tmp_path / "first")) == 0
    assert "is not kept in" in caplog.text
    assert path_of(kept).read_bytes() == before
    assert sorted(path.name for path in path_of(kept).parent.iterdir()) == sorted(
        [path_of(kept).name, path_of(kept).with_suffix(".json").name]
    )


def test_a_writer_killed_in_the_middle_leaves_what_was_there(kept: CompileArchive, tmp_path: Path) -> None:
    before = path_of(kept).read_bytes()
    script = (
        "import os, sys; from pathlib import Path\n"
        "from trainer.compile.place import ArchivePlace\n"
        "os.fsync = lambda descriptor: os.kill(os.getpid(), 9)\n"
        f"ArchivePlace(Path({str(path_of(kept).parent)!r})).keep({path_of(kept).name!r}, bytes(100000))\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert ended.returncode == -signal.SIGKILL
    assert path_of(kept).read_bytes() == before
    assert kept.unpack(KEY, tmp_path / "second").hit is True


def test_the_newest_note_that_can_be_read_says_what_changed(kept: CompileArchive, tmp_path: Path) -> None:
    newer = CompileKey.of(small_spec(training={"batch_size": 64}), device="cpu", threads=1)
    kept.publish(newer, Compiled(folder=tmp_path / "first"))
    os.utime(path_of(kept).with_suffix(".json"), (1, 1))
    third = CompileKey.of(small_spec(training={"batch_size": 128}), device="cpu", threads=2)
    note = path_of(kept, newer).with_suffix(".json")
    assert kept.unpack(third, tmp_path / "x").changed == ["batch_size", "threads"]
    for spoilt in ("", "{", "[]", '{"format": 2, "key": 7}', "[" * 100_000, '{"format": 1, "key": {}, "graphs": []}'):
        note.write_text(spoilt)
        os.utime(note)
        assert kept.unpack(third, tmp_path / "x").changed == ["batch_size", "threads"]


def test_a_missed_graph_is_compared_with_the_nearest_known() -> None:
    def graph(kind: GraphKind, key: str, **components: str) -> GraphKey:
        return GraphKey(kind=kind, key=key, components=components)

    known = [
        graph(GraphKind.INDUCTOR, "a", gm="1", threads="1", march="x"),
        graph(GraphKind.INDUCTOR, "b", gm="2", threads="1", march="x"),
        graph(GraphKind.AUTOGRAD, "c", gm="3", threads="1", march="x"),
    ]
    assert why_missed([known[0], known[2]], known) == []
    assert why_missed([graph(GraphKind.INDUCTOR, "d", gm="2", threads="2", march="x")], known) == ["threads"]
    assert why_missed([graph(GraphKind.AUTOGRAD, "d", gm="3", march="x")], known) == ["threads"]
    assert why_missed([graph(GraphKind.INDUCTOR, "d", gm="2")], []) == []


def test_torch_s_lines_give_components_without_addresses() -> None:
    lines = ["[abcdefghijklmnop] inductor_config[cpp.march]: None", "[xyz] fx_kwargs[f]: <function f at 0x7f>", "odd"]
    key = GraphKey.of(GraphKind.INDUCTOR, "k", lines)
    assert key.components == {"inductor_config[cpp.march]": "abcdefghijkl", "fx_kwargs[f]": "xyz"}
    assert GraphKey.from_json(json.loads(json.dumps(key.to_json()))) == key


def test_archives_are_below_the_spec_s_root_or_beside_the_runs(tmp_path: Path) -> None:
    run_folder = RunFolder(tmp_path / "small" / "r1")

    def of(**sections: dict[str, object]) -> AttemptCache:
        return AttemptCache.of(small_spec(**sections), run_folder, folder=tmp_path / "node", device="cpu", threads=1)

    assert of().archive.folder == run_folder.compile_cache_dir
    assert of(compilation={"archive_root": "/mnt/kept"}).archive.folder == Path("/mnt/kept/small")
    assert str(of(compilation={"archive_root": "s3://b/kept"}).archive.folder) == "s3://b/kept/small"


def test_a_discarded_attempt_neither_reads_nor_writes(kept: CompileArchive, tmp_path: Path) -> None:
    cache = AttemptCache.of(
        small_spec(optimizations={"artifact_cache": False}),
        RunFolder(tmp_path / "small" / "r1"),
        folder=tmp_path / "node",
        device="cpu",
        threads=1,
    )
    assert cache.fill() is None
    assert cache.keep(GraphCacheUse(hits=0, misses=2)) == 0
    assert not cache.archive.folder.exists()


def test_a_mega_cache_that_torch_cannot_read_is_an_error_of_ours() -> None:
    with pytest.raises(mega_cache.MegaCacheError):
        mega_cache.load(b"\x80\x04not one")


def test_a_mega_cache_that_torch_refuses_is_a_cold_start(
    kept: CompileArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(artifacts: bytes) -> None:
        raise AssertionError("write_local_impl returned None")  # as for a profile where profiles are off

    monkeypatch.setattr(torch.compiler, "load_cache_artifacts", refuse)
    kept.publish(KEY, Compiled(folder=tmp_path / "first", mega_cache=b"any"))
    lookup = kept.unpack(KEY, tmp_path / "second")
    assert (lookup.hit, "write_local_impl" in lookup.refused) == (False, True)
    assert not list((tmp_path / "second").iterdir())


def test_with_stable_keys_torch_keeps_no_profile_even_for_a_job_with_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo import pgo

    from trainer.compile import kernels

    with torch.compiler.config.patch(job_id="refresh"), torch._dynamo.config.patch(automatic_dynamic_local_pgo=True):
        assert pgo.get_cache_key() is not None
        kernels.forget_profiles()
        assert pgo.get_cache_key() is None
        assert pgo.code_state_path("any") is None
