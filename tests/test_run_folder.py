"""The run folder: its paths, its privacy, and names that must not leave it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.run_folder import RunFolder, RunFolderError, data_root, safe_name


def test_a_run_folder_is_private_and_named_by_refresh_and_run(tmp_path: Path) -> None:
    folder = RunFolder.of("shop", "run-1", tmp_path).create()
    assert folder.job == "shop/run-1"
    assert folder.root.stat().st_mode & 0o777 == 0o700
    assert folder.compile_cache_dir == tmp_path / "shop" / "compile-cache"
    assert RunFolder.open(f"file://{folder.url}") == RunFolder.open(folder.url) == folder


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".hidden", "-rf", "a b"])
def test_a_name_that_would_leave_the_root_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunFolderError, match="is not a plain folder name"):
        RunFolder.of("shop", name, tmp_path)


def test_airflow_run_ids_become_folder_names() -> None:
    assert safe_name("manual__2026-11-28T03:00:00+00:00") == "manual__2026-11-28T03_00_00_00_00"
    with pytest.raises(RunFolderError, match="leaves nothing"):
        safe_name("../..")


def test_other_schemes_are_refused_by_name() -> None:
    with pytest.raises(RunFolderError, match="scheme 's3' is not supported"):
        RunFolder.open("s3://bucket/run")


def test_data_roots_are_relative_to_home_or_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    assert data_root("shop") == tmp_path / "data" / "shop"
    assert data_root("/lake/shop") == Path("/lake/shop")
