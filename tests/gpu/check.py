"""What only a GPU can show, in one run below eight minutes and one table: kernels, autotuning, compilation, staging.

    python tests/gpu/check.py [--json FILE] [--dry]

Needs torch and Triton; TorchRec is not used. Exit code 1 if a check failed, 3 and one line where there is no GPU.
`--dry` runs on CPU what can run there, at toy sizes, to see the checks themselves work.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from tests.gpu import autotune_check, compile_check, interaction_check, staging_check
from tests.gpu.bench import Bench, NoTimeError, Size
from tests.gpu.findings import Finding, Verdict, document, table

SECONDS, SECONDS_DRY = 460.0, 1800.0
NO_GPU = 3

CHECKS: dict[str, Callable[[Bench], Iterator[Finding]]] = {
    interaction_check.CHECK: interaction_check.findings,
    autotune_check.CHECK: autotune_check.findings,
    compile_check.CHECK: compile_check.findings,
    staging_check.CHECK: staging_check.findings,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the findings to this file")
    parser.add_argument("--dry", action="store_true", help="on CPU, at toy sizes")
    options = parser.parse_args(arguments)
    if not options.dry and not torch.cuda.is_available():
        print("gpu-check: torch sees no GPU here, so nothing was checked", file=sys.stderr)
        return NO_GPU
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        bench = Bench(
            device=torch.device("cpu" if options.dry else "cuda"),
            size=Size.TOY if options.dry else Size.FULL,
            folder=Path(folder),
            deadline=time.monotonic() + (SECONDS_DRY if options.dry else SECONDS),
        )
        found = [finding for name, check in CHECKS.items() for finding in guarded(name, check, bench)]
    machine = describe(bench)
    print(table(found, machine=machine))
    if options.json:
        options.json.write_text(document(found, machine=machine), encoding="utf-8")
    return int(any(finding.verdict is Verdict.FAILED for finding in found))


def guarded(name: str, check: Callable[[Bench], Iterator[Finding]], bench: Bench) -> Iterator[Finding]:
    """What `check` finds; one that breaks is a failed finding, and the next one still runs."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    try:
        yield from check(bench)
    except NoTimeError as error:
        yield Finding.skipped(name, str(error))
    except Exception as error:
        yield Finding.of_error(name, error)


def describe(bench: Bench) -> str:
    device = torch.cuda.get_device_name() if bench.on_gpu else "CPU, toy sizes: no figure here means anything"
    return f"{device}, torch {torch.__version__}, Python {sys.version.split()[0]}"


if __name__ == "__main__":
    sys.exit(main())
