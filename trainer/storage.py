"""Where a run's checkpoints are, on a file system or in an object store, and how they are read and deleted there."""

from __future__ import annotations

import contextlib
import errno
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias, cast

if TYPE_CHECKING:
    from upath import UPath

    from trainer.run_folder import RunFolder
    from trainer.spec import RefreshSpec

StoragePath: TypeAlias = "Path | UPath"
"""A `Path` on a file system, a `UPath` in an object store."""

OBJECT_STORES = ("s3",)

MANIFEST_NAME = "manifest.json"
"""The file whose appearance makes a folder a checkpoint."""


class UnsupportedStorageError(ValueError):
    """A place where a checkpoint cannot appear in one atomic step, or that no other process would see."""

    def __init__(self, url: str, detail: str) -> None:
        super().__init__(f"{url!r} cannot hold checkpoints: {detail}")
        self.url = url


class StorageError(OSError):
    """An object store that cannot be reached or refuses; named like any other file that cannot be read or written."""

    def __init__(self, path: StoragePath, detail: str) -> None:
        super().__init__(
            f"{path}: {detail}; check the address and the credentials (AWS_ENDPOINT_URL, "
            "AWS_ACCESS_KEY_ID, AWS_PROFILE, ...)"
        )
        self.path = path


@dataclass(frozen=True, kw_only=True)
class CheckpointPlace:
    """Where a run's checkpoints and its anchor go."""

    checkpoints: StoragePath
    anchor: StoragePath

    @classmethod
    def of(cls, run_folder: RunFolder, spec: RefreshSpec) -> CheckpointPlace:
        """In the run folder, or below the spec's `checkpoint.root` as `<refresh>/<run>/`.

        Raises:
            UnsupportedStorageError: a root that cannot hold checkpoints.
        """
        if spec.checkpoint.root is None:
            return cls.below(run_folder.root)
        return cls.below(located(spec.checkpoint.root) / run_folder.refresh / run_folder.run)

    @classmethod
    def below(cls, folder: StoragePath) -> CheckpointPlace:
        """`folder/checkpoints` and `folder/anchor`."""
        return cls(checkpoints=folder / "checkpoints", anchor=folder / "anchor")


def check_location(url: str) -> str:
    """The same `url`, if checkpoints can be there. Looks at the text alone, reaches for nothing.

    Raises:
        UnsupportedStorageError: another scheme than `file` and `s3`, a relative path, or no bucket.
    """
    scheme, rest = _parts(url)
    if scheme in OBJECT_STORES:
        if not rest.split("/", 1)[0]:
            raise UnsupportedStorageError(url, f"it names no bucket; write {scheme}://BUCKET/PREFIX")
    elif scheme not in ("", "file"):
        raise UnsupportedStorageError(
            url,
            f"on {scheme}:// nothing is known to appear whole and at once to all ranks; "
            f"use a mounted path, file:// or {', '.join(f'{name}://' for name in OBJECT_STORES)}",
        )
    elif not rest.startswith("/"):
        raise UnsupportedStorageError(
            url, "it is a relative path, and processes start in many folders; make it absolute"
        )
    return url


def located(url: str) -> StoragePath:
    """The place that a path or URL names.

    Raises:
        UnsupportedStorageError: as `check_location`.
    """
    scheme, rest = _parts(check_location(url))
    if scheme not in OBJECT_STORES:
        return Path(rest)
    from upath import UPath  # with the store's client: not for those who read specs only

    # What another rank or attempt has written or deleted must show: fsspec's own cache of listings would hide it.
    return UPath(url, use_listings_cache=False)


def is_committed(folder: StoragePath) -> bool:
    """Whether a manifest has appeared in the folder of a save.

    Raises:
        OSError: that cannot be told; it is never taken for a no, which would have the folder swept.
    """
    try:
        size_of(folder / MANIFEST_NAME)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def names_in(folder: StoragePath) -> list[str]:
    """Names of the files and folders in `folder`, in order; none where it does not exist.

    Raises:
        OSError: it cannot be listed.
    """
    try:
        with naming(folder):
            if isinstance(folder, Path):
                return sorted(child.name for child in folder.iterdir())
            found = folder.fs.ls(folder.path, detail=False, refresh=True)
    except FileNotFoundError:
        return []
    whole = folder.path.rstrip("/")
    return sorted({path.rstrip("/").rsplit("/", 1)[-1] for path in found if path.rstrip("/") != whole})


def size_of(path: StoragePath) -> int:
    """Bytes of a plain file.

    Raises:
        FileNotFoundError: it is not there, or is no plain file; a symbolic link is not followed.
        OSError: the storage cannot be reached.
    """
    with naming(path):
        if not isinstance(path, Path):
            found = path.fs.info(path.path)
            plain, size = found["type"] == "file", found["size"]
        else:
            status = path.lstat()
            plain, size = stat.S_ISREG(status.st_mode), status.st_size
    if not plain:
        raise FileNotFoundError(errno.ENOENT, "no plain file", str(path))
    return int(size)


def read(path: StoragePath) -> bytes:
    """Raises OSError."""
    with naming(path):
        return bytes(path.read_bytes())


@contextlib.contextmanager
def opened(path: StoragePath) -> Iterator[IO[bytes]]:
    """The file, to read and seek in.

    Raises:
        OSError: from here and from every read.
    """
    with naming(path), path.open("rb") as stream:
        yield cast("IO[bytes]", stream)


def remove_file(path: StoragePath) -> None:
    """Delete a file; one that is not there is deleted already.

    Raises:
        OSError: it could not be deleted.
    """
    with contextlib.suppress(FileNotFoundError), naming(path):
        path.unlink() if isinstance(path, Path) else path.fs.rm_file(path.path)


def remove_folder(folder: StoragePath) -> None:
    """Delete a folder with all that it holds.

    Raises:
        OSError: something could not be deleted.
    """
    with contextlib.suppress(FileNotFoundError), naming(folder):
        if isinstance(folder, Path):
            shutil.rmtree(folder)
            return
        folder.fs.rm(folder.path, recursive=True)
    if left := names_in(folder):  # s3fs says nothing of what a bulk delete has left
        raise StorageError(folder, f"the store did not delete {left[0]}")


@contextlib.contextmanager
def naming(path: StoragePath) -> Iterator[None]:
    """Makes whatever a store's client raises an OSError that names the path. No bucket is more than no file."""
    try:
        yield
    except Exception as error:
        no_bucket = type(error.__cause__).__name__ == "NoSuchBucket"  # botocore makes the class when the store answers
        if isinstance(path, Path) or (isinstance(error, OSError) and not no_bucket):
            raise
        raise StorageError(path, f"{type(error).__name__}: {error}") from error


def _parts(url: str) -> tuple[str, str]:
    scheme, separator, rest = url.partition("://")
    return (scheme.lower(), rest) if separator else ("", url)
