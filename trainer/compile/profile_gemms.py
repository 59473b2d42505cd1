"""Measures which implementations of matrix products are worth trying on this class of host, and writes that down.

`python -m trainer.compile.profile_gemms --write` puts the result into `gemm_choices.json`, which is committed.
Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch._inductor import config as inductor

from trainer.atomic_file import replace_text
from trainer.compile.folder import empty, use_folder
from trainer.compile.kernels import CHOICES_FORMAT, CHOICES_PATH, compile_in_process, host_class

CANDIDATES = ("ATEN", "CPP")
WORTH = 0.95
"""A template is tried on a class of host if it takes at most this share of ATen's time; less is noise."""


@dataclass(frozen=True)
class Product:
    """A batch of matrix products, [batch, rows, inner] x [batch, inner, columns], as the pairwise interaction has it.

    Inductor's templates for a layer's product need constant weights, which training has not: there ATen is alone.
    """

    batch: int
    rows: int
    inner: int
    columns: int

    def operands(self) -> tuple[torch.Tensor, torch.Tensor]:
        left = torch.randn(self.batch, self.rows, self.inner)
        return left, torch.randn(self.batch, self.inner, self.columns)


PRODUCTS = (Product(512, 27, 64, 27), Product(512, 27, 27, 64), Product(1024, 9, 16, 9))
"""The interaction of 26 and of 8 features, and the backward of the first."""


def measured(product: Product, backend: str, *, repeats: int) -> tuple[float, float]:
    """Median milliseconds of a product by one implementation, and the seconds that its compilation took."""
    torch._dynamo.reset()
    left, right = product.operands()
    with (
        tempfile.TemporaryDirectory(prefix="ett-gemms-") as folder,
        inductor.patch({"max_autotune_gemm": True, "max_autotune_gemm_backends": backend}),
    ):
        use_folder(Path(folder) / "inductor")
        multiply = torch.compile(lambda a, b: torch.relu(torch.bmm(a, b)), dynamic=False)
        start = time.perf_counter()
        multiply(left, right)
        compiled_s = time.perf_counter() - start
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            multiply(left, right)
            times.append(time.perf_counter() - start)
        empty(Path(folder) / "inductor")
    return statistics.median(times) * 1e3, compiled_s


def chosen(ratios: dict[str, list[float]]) -> list[str]:
    """ATen, and every other implementation whose median time is well below ATen's.

    >>> chosen({"CPP": [0.8, 0.7, 1.1]}), chosen({"CPP": [0.99, 1.2, 0.97]})
    (['ATEN', 'CPP'], ['ATEN'])
    """
    return ["ATEN", *(name for name, found in ratios.items() if statistics.median(found) <= WORTH)]


def profile(products: Sequence[Product], *, repeats: int) -> dict[str, Any]:
    """The entry of this class of host: what to try, and the measurements that say so."""
    rows: list[dict[str, Any]] = []
    ratios: dict[str, list[float]] = {name: [] for name in CANDIDATES if name != "ATEN"}
    for product in products:
        milliseconds = {name: measured(product, name, repeats=repeats) for name in CANDIDATES}
        for name, found in ratios.items():
            found.append(milliseconds[name][0] / milliseconds["ATEN"][0])
        rows.append({"product": vars(product), "ms": {name: round(ms, 4) for name, (ms, _) in milliseconds.items()}})
    return {"backends": chosen(ratios), "threads": torch.get_num_threads(), "torch": torch.__version__, "runs": rows}


def with_entry(path: Path, host: str, entry: dict[str, Any]) -> str:
    """The text of the committed file with one host's entry replaced."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        document = {}
    hosts = document["hosts"] if document.get("format") == CHOICES_FORMAT else {}
    return json.dumps({"format": CHOICES_FORMAT, "default": ["ATEN"], "hosts": {**hosts, host: entry}}, indent=1) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print this host's entry; with `--write` put it into the file."""
    parser = argparse.ArgumentParser(prog="python -m trainer.compile.profile_gemms", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {CHOICES_PATH.name}, not only to the terminal")
    parser.add_argument("--file", type=Path, default=CHOICES_PATH)
    parser.add_argument("--repeats", type=int, default=200)
    given = parser.parse_args(arguments)
    compile_in_process("cpu")
    host = host_class("cpu")
    entry = profile(PRODUCTS, repeats=given.repeats)
    sys.stdout.write(json.dumps({host: entry}, indent=1) + "\n")
    if given.write:
        replace_text(given.file, with_entry(given.file, host, entry))
    return 0


if __name__ == "__main__":
    sys.exit(main())
