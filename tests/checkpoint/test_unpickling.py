"""The restricted unpickler: what metadata needs under every Python is read, and nothing beside it."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

from trainer.checkpoint.errors import PoisonedMetadataError
from trainer.checkpoint.unpickling import _RestrictedUnpickler


class Looked:
    """Pickles as `getattr(owner, name)`, as Python before 3.11.4 pickles a member of an enum."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name

    def __reduce__(self) -> Any:
        return getattr, (self.owner, self.name)


def loaded(value: Any) -> Any:
    return _RestrictedUnpickler(io.BytesIO(pickle.dumps(value)), Path("metadata")).load()


def test_a_member_of_an_enum_is_read_however_python_pickled_it() -> None:
    member = _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT
    assert loaded(member) is member
    assert loaded(Looked(_MEM_FORMAT_ENCODING, "TORCH_CONTIGUOUS_FORMAT")) is member


@pytest.mark.parametrize(
    ("owner", "name"),
    [(_MEM_FORMAT_ENCODING, "__class__"), (torch.Size, "__subclasses__"), (torch.float32, "__reduce__")],
)
def test_getattr_reaches_nothing_else(owner: Any, name: str) -> None:
    with pytest.raises((pickle.UnpicklingError, KeyError)):
        loaded(Looked(owner, name))


def test_what_is_not_listed_is_poison() -> None:
    with pytest.raises(PoisonedMetadataError, match=r"builtins\.eval"):
        loaded(eval)
