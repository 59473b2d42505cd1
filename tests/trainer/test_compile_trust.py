"""Whose compiled code is run: ownership on a file system, a seal in an object store, and no other."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import boto3
import pytest
from training_job import small_spec

from trainer.compile import place as place_module
from trainer.compile.archive import CompileArchive, Compiled, archive_name
from trainer.compile.key import CompileKey
from trainer.compile.trust import KEY_VARIABLE, SigningKey, SigningKeyError
from trainer.storage import located

KEY = CompileKey.of(small_spec(), device="cpu", threads=1)
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="giving a file to another user takes root")


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    fresh: set[str] = set()
    monkeypatch.setattr(place_module, "_told", fresh)
    return fresh


@pytest.fixture
def compiled(tmp_path: Path) -> Compiled:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "kernel.so").write_bytes(b"code")
    return Compiled(folder=tmp_path / "first")


@pytest.fixture
def path(tmp_path: Path, compiled: Compiled) -> Path:
    """An archive that this user alone could have written."""
    assert CompileArchive(tmp_path / "kept").publish(KEY, compiled) > 0
    return tmp_path / "kept" / archive_name(KEY)


def use_key(monkeypatch: pytest.MonkeyPatch, folder: Path, secret: bytes = b"0" * 32, mode: int = 0o600) -> Path:
    file = folder / f"key-{secret[:1].decode()}"
    file.write_bytes(secret)
    file.chmod(mode)
    monkeypatch.setenv(KEY_VARIABLE, str(file))
    return file


def refused(path: Path, into: Path) -> str:
    lookup = CompileArchive(path.parent).unpack(KEY, into)
    assert not lookup.hit
    assert not (into / "kernel.so").exists()
    return lookup.refused


def test_an_archive_is_written_for_this_user_alone(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_not_used(path: Path, tmp_path: Path, mode: int) -> None:
    path.chmod(mode)
    assert "others may write to it" in refused(path, tmp_path / "second")


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777])
def test_a_folder_that_others_may_write_is_not_used(path: Path, tmp_path: Path, mode: int) -> None:
    path.parent.chmod(mode)
    assert "others may write its folder" in refused(path, tmp_path / "second")


def test_writing_closes_a_folder_that_the_umask_left_open(tmp_path: Path, compiled: Compiled) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept").chmod(0o775)
    archive = CompileArchive(tmp_path / "kept")
    archive.publish(KEY, compiled)
    assert archive.unpack(KEY, tmp_path / "second").hit is True


@ROOT_ONLY
@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_belongs_to_another_user_is_not_used(path: Path, tmp_path: Path, what: str) -> None:
    os.chown(path if what == "file" else path.parent, 4242, -1)
    assert "belongs to user 4242" in refused(path, tmp_path / "second")


def test_symbolic_links_are_not_followed(path: Path, tmp_path: Path) -> None:
    real = path.rename(tmp_path / "elsewhere.tar")
    path.symlink_to(real)
    assert "symbolic link" in refused(path, tmp_path / "second")
    path.unlink()
    real.rename(path)
    moved = path.parent.rename(tmp_path / "moved")
    path.parent.symlink_to(moved)
    assert "symbolic link" in refused(path, tmp_path / "second")


def test_a_pipe_is_no_archive_and_stops_nobody(path: Path, tmp_path: Path) -> None:
    path.unlink()
    os.mkfifo(path)
    assert "no plain file" in refused(path, tmp_path / "second")


class Exploit:
    """Unpickling it makes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.target,))


def test_nothing_is_unpickled_or_unpacked_before_it_is_proved(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive as another user would make it, with his code in the Mega-Cache and in the folder."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "second"))
    poison = pickle.dumps(Exploit(tmp_path / "ran"))
    CompileArchive(path.parent).publish(KEY, Compiled(folder=tmp_path / "first", mega_cache=poison))
    path.chmod(0o666)
    refused(path, tmp_path / "second")
    assert not (tmp_path / "ran").exists()


# -- with a key --------------------------------------------------------------------------------------------------------


def test_a_sealed_archive_is_used_wherever_it_lies(
    tmp_path: Path, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_key(monkeypatch, tmp_path)
    archive = CompileArchive(tmp_path / "kept")
    archive.publish(KEY, compiled)
    (tmp_path / "kept").chmod(0o777)
    (tmp_path / "kept" / archive_name(KEY)).chmod(0o666)
    assert CompileArchive(tmp_path / "kept").unpack(KEY, tmp_path / "second").hit is True


def test_a_seal_of_another_key_is_refused_even_in_an_own_folder(
    tmp_path: Path, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_key(monkeypatch, tmp_path, b"1" * 32)
    CompileArchive(tmp_path / "kept").publish(KEY, compiled)
    use_key(monkeypatch, tmp_path, b"2" * 32)
    assert "sealed with another key" in refused(tmp_path / "kept" / archive_name(KEY), tmp_path / "second")


def test_a_key_does_not_shut_out_what_this_user_wrote_before_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_key(monkeypatch, tmp_path)
    assert CompileArchive(path.parent).unpack(KEY, tmp_path / "second").hit is True
    path.chmod(0o666)
    assert "not sealed" in refused(path, tmp_path / "third")


def test_a_seal_holds_for_one_name_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_key(monkeypatch, tmp_path)
    place = CompileArchive(tmp_path / "kept").place
    place.keep("one", b"body")
    (tmp_path / "kept" / "one").rename(tmp_path / "kept" / "other")
    with pytest.raises(Exception, match="altered"):
        place.proved("other")


@pytest.mark.parametrize(
    ("secret", "mode", "why"),
    [(b"0" * 32, 0o640, "chmod 600"), (b"0" * 15, 0o600, "15 bytes"), (b"", 0o600, "0 bytes")],
)
def test_a_key_that_others_know_or_can_guess_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: bytes, mode: int, why: str
) -> None:
    file = tmp_path / "key"
    file.write_bytes(secret)
    file.chmod(mode)
    with pytest.raises(SigningKeyError, match=why) as caught:
        SigningKey.from_environment({KEY_VARIABLE: str(file)})
    assert str(file) in str(caught.value)


def test_a_key_file_that_is_missing_or_a_link_is_none(tmp_path: Path) -> None:
    with pytest.raises(SigningKeyError, match="No such file"):
        SigningKey.from_environment({KEY_VARIABLE: str(tmp_path / "none")})
    (tmp_path / "link").symlink_to(use := tmp_path / "key")
    use.write_bytes(b"0" * 32)
    with pytest.raises(SigningKeyError, match="cannot be opened"):
        SigningKey.from_environment({KEY_VARIABLE: str(tmp_path / "link")})


def test_a_key_does_not_show_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_key(monkeypatch, tmp_path, b"secret-secret-secret")
    assert "secret" not in repr(SigningKey.from_environment())


# -- in an object store ------------------------------------------------------------------------------------------------


def objects(s3: str, endpoint: str) -> list[str]:
    client = boto3.client("s3", endpoint_url=endpoint)
    return [found["Key"] for found in client.list_objects_v2(Bucket=s3.removeprefix("s3://")).get("Contents", [])]


def test_without_a_key_an_object_store_is_neither_read_nor_written_and_says_so_once(
    s3: str, s3_endpoint: str, tmp_path: Path, compiled: Compiled, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        archive = CompileArchive(located(f"{s3}/kept/small"))
        assert archive.publish(KEY, compiled) == 0
        assert KEY_VARIABLE in archive.unpack(KEY, tmp_path / "second").refused
    assert objects(s3, s3_endpoint) == []
    assert caplog.text.count("neither read nor kept") == 1


def test_with_a_key_what_one_host_kept_another_finds(
    s3: str, s3_endpoint: str, tmp_path: Path, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_key(monkeypatch, tmp_path)
    assert CompileArchive(located(f"{s3}/kept/small")).publish(KEY, compiled) > 0
    assert f"kept/small/{archive_name(KEY)}" in objects(s3, s3_endpoint)
    archive = CompileArchive(located(f"{s3}/kept/small"))
    assert archive.unpack(KEY, tmp_path / "second").hit is True
    assert (tmp_path / "second" / "kernel.so").read_bytes() == b"code"
    other = CompileKey.of(small_spec(training={"batch_size": 64}), device="cpu", threads=1)
    assert archive.unpack(other, tmp_path / "third").changed == ["batch_size"]


def test_what_was_put_into_the_store_without_the_key_is_not_used(
    s3: str, s3_endpoint: str, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_key(monkeypatch, tmp_path)
    client, bucket = boto3.client("s3", endpoint_url=s3_endpoint), s3.removeprefix("s3://")
    client.put_object(Bucket=bucket, Key=f"kept/{archive_name(KEY)}", Body=path.read_bytes())
    lookup = CompileArchive(located(f"{s3}/kept")).unpack(KEY, tmp_path / "second")
    assert (lookup.hit, "not sealed" in lookup.refused) == (False, True)


def test_a_store_out_of_reach_is_a_cold_start(
    tmp_path: Path, compiled: Compiled, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_key(monkeypatch, tmp_path)
    archive = CompileArchive(located(f"{s3}-misspelt/kept"))
    lookup = archive.unpack(KEY, tmp_path / "second")
    assert lookup.hit is False
    assert archive.publish(KEY, compiled) == 0
