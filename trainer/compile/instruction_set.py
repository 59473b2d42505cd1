"""Whether this type of host can build and run what its processor promises: probed once per type, then remembered."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from enum import StrEnum

from torch._inductor import config as inductor
from torch._inductor import cpu_vec_isa

from trainer.compile.key import cpu_type, versions
from trainer.compile.place import ArchivePlace

_BUILDS = cpu_vec_isa.VecISA.check_build


class VectorSupport(StrEnum):
    """Which of the instruction sets that the processor reports build and run here."""

    ALL = "all"  # take the widest, as reported
    SOME = "some"  # torch has to find out which: it probes at every start
    NONE = "none"  # scalar kernels


def probed() -> VectorSupport:
    """Build and load torch's test program for each reported instruction set: seconds, as at every start by default."""
    reported, works = _found(take_as_reported=True), _found(take_as_reported=None)
    if works == reported:
        return VectorSupport.ALL
    return VectorSupport.SOME if works else VectorSupport.NONE


def _found(*, take_as_reported: bool | None) -> list[str]:
    """Torch's answer, past its memory of an earlier one."""
    answer = cpu_vec_isa.VecISA.check_build
    _ask(_granted if take_as_reported else _BUILDS)
    try:
        with inductor.patch({"cpp.vec_isa_ok": take_as_reported}):
            return [str(isa) for isa in cpu_vec_isa.valid_vec_isa_list.__wrapped__()]
    finally:
        _ask(answer)


def _ask(check: Callable[[cpu_vec_isa.VecISA, str], bool]) -> None:
    """Have torch learn from `check` whether an instruction set's test program builds and runs."""
    cpu_vec_isa.VecISA.check_build = check  # type: ignore[method-assign,assignment]


def _granted(_: cpu_vec_isa.VecISA, code: str) -> bool:
    """An extension of an instruction set is there: torch builds a test program for each, whatever `vec_isa_ok` says."""
    return True


def remembered_or_probed(place: ArchivePlace) -> VectorSupport:
    """What is noted beside the archives for this type of host, else what a probe says, which is then noted.

    The note is not proved: it says which of three ways to go, and no more. A wrong one costs time.
    """
    name = f"host-{_host_digest()}.json"
    note = place.note(name)
    if isinstance(note, dict) and note.get("vectors") in list(VectorSupport):
        return VectorSupport(note["vectors"])
    found = probed()
    with contextlib.suppress(OSError):  # then the next attempt probes again
        place.write_note(name, {"host_type": cpu_type(), "torch": versions()["torch"], "vectors": found.value})
    return found


def take(support: VectorSupport) -> None:
    """Have Inductor go by `support`. It is part of Inductor's key: call it in cold and warm starts alike."""
    inductor.cpp.vec_isa_ok = {VectorSupport.ALL: True, VectorSupport.SOME: None, VectorSupport.NONE: False}[support]
    _ask(_granted if support is VectorSupport.ALL else _BUILDS)


def _host_digest() -> str:
    return hashlib.sha256(f"{cpu_type()} {versions()['torch']}".encode()).hexdigest()[:20]
