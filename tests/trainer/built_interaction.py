"""Builds the committed configurations of one shape class for two GPU types; prints what the machine code needs."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from trainer.kernels.configs import Kernel, ShapeClass, committed_config
from trainer.kernels.machine_code import A100, H100, needs_of


def main() -> None:
    shape = ShapeClass(nodes=int(sys.argv[1]), width=int(sys.argv[2]), dtype=sys.argv[3])
    built = [
        {"kernel": kernel, "capability": gpu.capability, "resident": needs.resident_programs(gpu), **asdict(needs)}
        for kernel in Kernel
        for gpu in (A100, H100)
        for needs in [needs_of(kernel, shape, committed_config(kernel, "no such GPU", shape), gpu)]
    ]
    json.dump(built, sys.stdout)


if __name__ == "__main__":
    main()
