"""Writes the committed launch configurations: measured on the GPU that is present, or chosen by machine code without.

python -m trainer.kernels.tune [--by time|machine-code] [--into FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path

import torch

from trainer.atomic_file import replace_text
from trainer.kernels.configs import (
    ANY_DEVICE,
    TUNED_FILE,
    Kernel,
    LaunchConfig,
    ShapeClass,
    TunedEntry,
    TunedTable,
    search_space,
)

log = logging.getLogger(__name__)

NOT_POSSIBLE = 3
"""Exit code where this machine lacks what tuning needs."""

BYTES_OF_A_BATCH = 256 * 2**20
"""Of the embedded input: far above any cache, so that a kernel is timed as it runs in a step."""

SHAPES = tuple(
    ShapeClass(nodes=nodes, width=width, dtype=dtype)
    for dtype in ("float32", "bfloat16")
    for nodes in (16, 32, 64)
    for width in (32, 64, 128)
)


class Method(StrEnum):
    """How configurations are compared."""

    TIME = "time"  # on this GPU, for GPUs of its type
    MACHINE_CODE = "machine-code"  # by what the code for an H100 takes, for any device; needs no GPU and times nothing


Measure = Callable[[Kernel, ShapeClass, LaunchConfig], float | None]
"""Microseconds of one launch; None if the configuration does not run or computes something else."""


def fastest(
    measure: Measure, device: str, *, shapes: Iterable[ShapeClass] = SHAPES, space: int | None = None
) -> Iterator[TunedEntry]:
    """The fastest configuration of every kernel and shape; `space` limits how many are tried."""
    for kernel in Kernel:
        for shape in shapes:
            timed = [(measure(kernel, shape, config), config) for config in search_space(shape)[:space]]
            ran = [(microseconds, config) for microseconds, config in timed if microseconds is not None]
            if not ran:
                log.warning("%s: no configuration ran for %s; leaving what the table has", kernel, shape)
                continue
            best, config = min(ran, key=lambda pair: pair[0])
            origin = f"fastest of {len(ran)} timed, {len(timed) - len(ran)} did not run; torch {torch.__version__}"
            yield TunedEntry(
                kernel=kernel, device=device, shape=shape, config=config, origin=origin, microseconds=round(best, 2)
            )


def time_on_gpu(kernel: Kernel, shape: ShapeClass, config: LaunchConfig) -> float | None:
    """Microseconds of a launch on this GPU. Not yet run on a GPU."""
    import triton.testing

    try:
        launch = prepared(kernel, shape, config, torch.device("cuda"), _rows(shape))
    except Exception as error:  # Triton's launch errors have no common type: too little shared memory, registers, ...
        log.info("%s %s %s does not run: %s", kernel, shape, config, error)
        return None
    return None if launch is None else float(triton.testing.do_bench(launch, warmup=10, rep=50)) * 1000


def prepared(
    kernel: Kernel, shape: ShapeClass, config: LaunchConfig, device: torch.device, rows: int
) -> Callable[[], None] | None:
    """A launch on random inputs that was seen to compute the right thing; None if it did not."""
    from trainer.kernels import interaction
    from trainer.kernels.pairwise import reference_interaction

    dtype, features = getattr(torch, shape.dtype), shape.nodes - 2  # not full: the last node is masked
    generator = torch.Generator(device).manual_seed(0)
    dense = torch.randn(rows, shape.width, generator=generator, device=device, dtype=dtype)
    embedded = torch.randn(rows, features, shape.width, generator=generator, device=device, dtype=dtype)
    dense.requires_grad_(), embedded.requires_grad_()
    expected = reference_interaction(dense, embedded, torch.triu_indices(features + 1, features + 1, 1, device=device))
    grad = torch.randn(expected.shape, generator=generator, device=device, dtype=dtype)
    if kernel is Kernel.INTERACTION_FORWARD:
        wanted, results = [expected.detach()], [_unwritten(expected)]
        arguments = interaction.forward_arguments(dense.detach(), embedded.detach(), *results)
    else:
        wanted = list(torch.autograd.grad(expected, [dense, embedded], grad))
        results = [_unwritten(tensor) for tensor in wanted]
        arguments = interaction.backward_arguments(grad, dense.detach(), embedded.detach(), *results)

    def launch() -> None:
        interaction.launch_with(config, kernel, arguments, embedded)

    launch()
    wrong = [got for got, right in zip(results, wanted, strict=True) if not _close(got, right)]
    if wrong:
        log.warning("%s %s %s computes something else than the reference", kernel, shape, config)
        return None
    return launch


def least_demanding(*, shapes: Iterable[ShapeClass] = SHAPES) -> Iterator[TunedEntry]:
    """The configurations with the most rows of a batch in flight on a multiprocessor of an H100, without spilling.

    The kernels mostly wait for memory, so rows in flight are what a GPU without measurements is chosen by.
    """
    from trainer.kernels.machine_code import A100, H100, needs_of

    for kernel in Kernel:
        for shape in shapes:
            candidates = [config for config in search_space(shape) if _worth_building(config, shape)]
            built = [(needs_of(kernel, shape, config, H100), config) for config in candidates]
            needs, config = min(
                built,
                key=lambda pair: (pair[0].spilled_bytes, -pair[0].resident_programs(H100), -pair[1].block_width),
            )
            older = needs_of(kernel, shape, config, A100)
            origin = (
                f"not timed: of {len(built)} builds for sm_90 the one with the most programs per multiprocessor "
                f"({needs.resident_programs(H100)}; {needs.registers} registers, {needs.spilled_bytes} bytes spilled; "
                f"sm_80 {older.registers}, {older.spilled_bytes})"
            )
            log.info("%s %s: %s %s", kernel, shape, config, origin)
            yield TunedEntry(
                kernel=kernel, device=ANY_DEVICE, shape=shape, config=config, origin=origin, microseconds=None
            )


def main(arguments: list[str] | None = None) -> int:
    """Write the table; exit code 3 and one line if this machine cannot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--by", type=Method, choices=list(Method), default=Method.TIME)
    parser.add_argument("--into", type=Path, default=TUNED_FILE, help="the table to renew; default: the committed one")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    lacking = _lacking(options.by)
    if lacking:
        print(f"cannot tune by {options.by}: {lacking}", file=sys.stderr)
        return NOT_POSSIBLE
    entries = least_demanding() if options.by is Method.MACHINE_CODE else fastest(time_on_gpu, _this_device())
    table = TunedTable.read(options.into) if options.into.exists() else TunedTable(())
    replace_text(options.into, table.with_measured(entries).text())
    print(f"wrote {options.into}")
    return 0


def _lacking(method: Method) -> str:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if method is Method.TIME and not torch.cuda.is_available():
        return "torch sees no GPU; --by machine-code needs none"
    return ""


def _this_device() -> str:
    from trainer.kernels.interaction import device_type

    return device_type(torch.device("cuda"))


def _worth_building(config: LaunchConfig, shape: ShapeClass) -> bool:
    """One row a program, loads pipelined where there is a loop: the rest differs by timing only."""
    looped = shape.width > config.block_width
    return config.rows == 1 and config.block_width in (32, 64) and config.stages == (2 if looped else 1)


def _rows(shape: ShapeClass) -> int:
    return int(BYTES_OF_A_BATCH // (shape.nodes * shape.width * getattr(torch, shape.dtype).itemsize))


def _unwritten(like: torch.Tensor) -> torch.Tensor:
    """What the allocator hands out may hold the right answer of the configuration before."""
    return torch.full_like(like, float("nan"), requires_grad=False)


def _close(got: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal up to rounding at the size of the largest value: sums of signed products cancel."""
    allowed = (1e-5 if got.dtype == torch.float32 else 2e-2) * float(right.abs().max())
    return bool((got.float() - right.float()).abs().max() <= allowed)


if __name__ == "__main__":
    sys.exit(main())
