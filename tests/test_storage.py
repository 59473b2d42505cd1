"""Where checkpoints may be: what is refused by name, and what a look at an object store shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from s3fs import S3FileSystem
from upath import UPath

from trainer.run_folder import RunFolder
from trainer.spec import SpecError, load_spec, with_overrides
from trainer.storage import (
    CheckpointPlace,
    StorageError,
    UnsupportedStorageError,
    is_committed,
    located,
    names_in,
    remove_folder,
    size_of,
)

SPEC = Path(__file__).parents[1] / "dags" / "refreshes" / "movielens.yaml"


def at(root: str | None) -> Any:
    return with_overrides(load_spec(SPEC), {"checkpoint": {"root": root}} if root else {})


def test_checkpoints_are_in_the_run_folder_unless_the_spec_names_a_root(tmp_path: Path) -> None:
    folder = RunFolder.of("movielens", "r1", tmp_path)
    place = CheckpointPlace.of(folder, at(None))
    assert (place.checkpoints, place.anchor) == (folder.checkpoints_dir, folder.anchor_dir)
    for root in ("/mnt/fast", "file:///mnt/fast"):
        place = CheckpointPlace.of(folder, at(root))
        assert place.anchor == Path("/mnt/fast/movielens/r1/anchor")
    for root in ("s3://bucket/models", "s3://bucket/models/"):
        assert str(CheckpointPlace.of(folder, at(root)).anchor) == "s3://bucket/models/movielens/r1/anchor"


@pytest.mark.parametrize(
    ("root", "why"),
    [
        ("memory://x", "on memory:// nothing is known to appear whole and at once to all ranks"),
        ("ftp://host/x", "on ftp://"),
        ("checkpoints", "relative path"),
        ("file://checkpoints", "relative path"),
        ("s3:///prefix", "it names no bucket"),
    ],
)
def test_a_root_that_cannot_hold_checkpoints_is_refused_where_the_spec_says_it(
    tmp_path: Path, root: str, why: str
) -> None:
    with pytest.raises(UnsupportedStorageError, match=why):
        located(root)
    document = yaml.safe_load(SPEC.read_text())
    document["checkpoint"] = {"root": root}
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(
        SpecError, match=rf"spec\.yaml:\d+: checkpoint\.root: '{root}' cannot hold checkpoints: .*{why}"
    ):
        load_spec(path)


def test_a_failed_save_either_goes_on_or_fails(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="'stop' is not one of go_on, fail"):
        with_overrides(load_spec(SPEC), {"checkpoint": {"on_failure": "stop"}})


def test_a_symbolic_link_is_no_plain_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert size_of(tmp_path / "file") == 3
    for name in ("link", "missing", "."):
        with pytest.raises(FileNotFoundError):
            size_of(tmp_path / name)


def test_what_others_write_and_delete_is_seen_at_once(s3: str, s3_endpoint: str) -> None:
    """fsspec keeps listings; a rank that believes them resumes from what is not there any more."""
    other, bucket = boto3.client("s3", endpoint_url=s3_endpoint), s3.removeprefix("s3://")
    folder = located(f"{s3}/run/checkpoints/step-1")
    assert names_in(folder) == []
    assert not is_committed(folder)
    other.put_object(Bucket=bucket, Key="run/checkpoints/step-1/manifest.json", Body=b"{}")
    assert names_in(folder) == ["manifest.json"]
    assert names_in(folder.parent) == ["step-1"]
    assert is_committed(folder)
    assert size_of(folder / "manifest.json") == 2
    other.delete_object(Bucket=bucket, Key="run/checkpoints/step-1/manifest.json")
    assert names_in(folder) == []
    assert not is_committed(folder)
    remove_folder(folder)


def test_a_bucket_that_is_not_there_is_no_empty_folder(s3: str) -> None:
    with pytest.raises(StorageError, match="bucket does not exist"):
        names_in(located(f"{s3}-misspelt/run/checkpoints"))


def test_a_store_out_of_reach_has_neither_committed_nor_not(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(S3FileSystem, "retries", 1)
    unreachable = UPath(f"{s3}/run", endpoint_url="http://127.0.0.1:1", use_listings_cache=False)
    for ask in (is_committed, names_in):
        with pytest.raises(StorageError, match=r"s3://.*check the address and the credentials"):
            ask(unreachable)
