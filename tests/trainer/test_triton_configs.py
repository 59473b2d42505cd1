"""The table of launch configurations: what is found in it, what a broken one says, and how tuning renews it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.kernels import ConfigSource, configs, tune, use_configs
from trainer.kernels.configs import (
    ANY_DEVICE,
    TUNED_FILE,
    Kernel,
    LaunchConfig,
    ShapeClass,
    TunedEntry,
    TunedFileError,
    TunedTable,
    committed_config,
    search_space,
)

SMALL = ShapeClass(nodes=16, width=32, dtype="float32")
USUAL = ShapeClass(nodes=32, width=64, dtype="float32")


def entry(shape: ShapeClass, *, device: str = ANY_DEVICE, warps: int = 4, kernel: Kernel = Kernel.INTERACTION_FORWARD):
    config = LaunchConfig(block_width=32, rows=1, warps=warps, stages=2)
    return TunedEntry(kernel=kernel, device=device, shape=shape, config=config, origin="test", microseconds=None)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Lookups are kept, and so is what was logged about them."""
    configs._committed.cache_clear()
    yield
    configs._committed.cache_clear()


class TestTheCommittedTable:
    def test_is_what_tuning_writes(self) -> None:
        assert TunedTable.read(TUNED_FILE).text() == TUNED_FILE.read_text(encoding="utf-8")

    def test_has_every_kernel_and_shape_for_any_device(self) -> None:
        there = {(e.kernel, e.shape) for e in TunedTable.read(TUNED_FILE).entries if e.device == ANY_DEVICE}
        assert {(kernel, shape) for kernel in Kernel for shape in tune.SHAPES} <= there

    def test_says_of_each_whether_it_was_timed(self) -> None:
        for one in TunedTable.read(TUNED_FILE).entries:
            assert one.origin.startswith("not timed") == (one.microseconds is None), one

    def test_has_only_configurations_that_a_search_would_try(self) -> None:
        for one in TunedTable.read(TUNED_FILE).entries:
            assert one.config in search_space(one.shape), one


class TestLookup:
    def test_takes_this_device_before_any_other_and_the_nearest_shape(self) -> None:
        table = TunedTable((entry(USUAL, warps=1), entry(USUAL, device="NVIDIA H200", warps=2), entry(SMALL, warps=8)))

        def warps(device: str, shape: ShapeClass) -> int:
            found = table.find(Kernel.INTERACTION_FORWARD, device, shape)
            assert found
            return found.config.warps

        assert warps("NVIDIA H200", USUAL) == 2
        assert warps("NVIDIA A100", USUAL) == 1
        assert warps("NVIDIA H200", SMALL) == 8  # a configuration for the shape, of any device, is nearer
        assert warps("NVIDIA A100", ShapeClass(nodes=128, width=64, dtype="float32")) == 1

    def test_finds_nothing_for_another_dtype_or_kernel(self) -> None:
        table = TunedTable((entry(USUAL),))
        assert table.find(Kernel.INTERACTION_BACKWARD, "x", USUAL) is None
        assert table.find(Kernel.INTERACTION_FORWARD, "x", ShapeClass(nodes=32, width=64, dtype="bfloat16")) is None

    def test_says_once_that_a_device_was_never_tuned(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, logger=configs.__name__):
            first = committed_config(Kernel.INTERACTION_FORWARD, "GPU of tomorrow", USUAL)
            assert committed_config(Kernel.INTERACTION_FORWARD, "GPU of tomorrow", USUAL) == first
        (line,) = caplog.messages
        assert "was not tuned for" in line and "GPU of tomorrow" in line and "trainer.kernels.tune" in line

    def test_a_dtype_without_any_entry_still_runs(self, caplog: pytest.LogCaptureFixture) -> None:
        strange = ShapeClass(nodes=32, width=16, dtype="float16")
        assert committed_config(Kernel.INTERACTION_FORWARD, "x", strange).block_width == 16
        assert "float16" in caplog.text


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ("{", "unreadable"),
        ("[]", "not of format 1"),
        ('{"format": 2, "entries": []}', "not of format 1"),
        ('{"format": 1}', "entries is not a list"),
        ('{"format": 1, "entries": [{"kernel": "interaction_forward"}]}', "entry 0"),
    ],
)
def test_a_broken_table_names_itself_and_what_is_wrong(tmp_path: Path, document: str, told: str) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(document, encoding="utf-8")
    with pytest.raises(TunedFileError, match=told) as raised:
        TunedTable.read(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("field", "value"), [("warps", 3), ("rows", 0), ("stages", "2"), ("kernel", "sum"), ("block_width", True)]
)
def test_a_wrong_value_names_its_entry(tmp_path: Path, field: str, value: Any) -> None:
    document = json.loads(TunedTable((entry(SMALL), entry(USUAL))).text())
    document["entries"][1][field] = value
    path = tmp_path / "tuned.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(TunedFileError, match="entry 1"):
        TunedTable.read(path)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(TunedFileError, match=r"no-such\.json"):
        TunedTable.read(tmp_path / "no-such.json")


def test_a_configuration_is_read_back_from_its_text() -> None:
    for config in search_space(USUAL):
        assert LaunchConfig.parse(config.text()) == config


def test_the_source_of_configurations_is_switched() -> None:
    assert configs.config_source() is ConfigSource.COMMITTED
    use_configs(ConfigSource.SEARCHED)
    assert configs.config_source() is ConfigSource.SEARCHED
    use_configs(ConfigSource.COMMITTED)
    assert configs.config_source() is ConfigSource.COMMITTED


class TestTuning:
    def test_takes_the_fastest_that_runs(self) -> None:
        space = search_space(USUAL)

        def measure(kernel: Kernel, shape: ShapeClass, config: LaunchConfig) -> float | None:
            return None if config == space[0] else float(len(space) - space.index(config))

        for one in tune.fastest(measure, "NVIDIA H200", shapes=[USUAL]):
            assert (one.device, one.shape, one.config, one.microseconds) == ("NVIDIA H200", USUAL, space[-1], 1.0)
            assert f"fastest of {len(space) - 1} timed, 1 did not run" in one.origin

    def test_leaves_the_table_alone_where_nothing_runs(self, caplog: pytest.LogCaptureFixture) -> None:
        assert list(tune.fastest(lambda *_: None, "x", shapes=[USUAL])) == []
        assert "no configuration ran" in caplog.text

    def test_replaces_its_own_device_only(self) -> None:
        table = TunedTable((entry(USUAL, warps=1), entry(USUAL, device="NVIDIA H200", warps=2)))
        renewed = table.with_measured([entry(USUAL, device="NVIDIA H200", warps=8), entry(SMALL, warps=4)])
        assert sorted((e.device, e.shape.nodes, e.config.warps) for e in renewed.entries) == [
            ("*", 16, 4),
            ("*", 32, 1),
            ("NVIDIA H200", 32, 8),
        ]

    def test_one_that_fails_leaves_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "tuned.json"
        path.write_text(TunedTable((entry(USUAL),)).text(), encoding="utf-8")
        before = path.read_text(encoding="utf-8")

        def interrupted() -> Iterator[TunedEntry]:
            yield entry(SMALL)
            raise KeyboardInterrupt

        monkeypatch.setattr(tune, "least_demanding", interrupted)
        monkeypatch.setattr(tune, "_lacking", lambda method: "")
        with pytest.raises(KeyboardInterrupt):
            tune.main(["--by", "machine-code", "--into", str(path)])
        assert path.read_text(encoding="utf-8") == before
        assert list(tmp_path.iterdir()) == [path]

    def test_writes_beside_what_is_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "tuned.json"
        path.write_text(TunedTable((entry(USUAL),)).text(), encoding="utf-8")
        monkeypatch.setattr(tune, "least_demanding", lambda: iter([entry(SMALL)]))
        monkeypatch.setattr(tune, "_lacking", lambda method: "")
        assert tune.main(["--by", "machine-code", "--into", str(path)]) == 0
        assert {e.shape for e in TunedTable.read(path).entries} == {SMALL, USUAL}

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_without_a_gpu_is_one_line_and_its_own_exit_code(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert tune.main(["--into", str(tmp_path / "tuned.json")]) == tune.NOT_POSSIBLE
        assert len(capsys.readouterr().err.splitlines()) == 1
        assert list(tmp_path.iterdir()) == []
