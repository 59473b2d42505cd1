"""`python -m trainer.dpp.generate SPEC --days N --rows-per-day M`: land seeded rows of any spec's contract."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from trainer.dpp.errors import DppError
from trainer.dpp.sources.generated import Generator
from trainer.run_folder import data_root
from trainer.spec import SpecError, load_spec


def main(arguments: list[str] | None = None) -> int:
    """0 when all days have landed, 2 for wrong usage or an unusable spec."""
    parser = argparse.ArgumentParser(prog="python -m trainer.dpp.generate", description=__doc__)
    parser.add_argument("spec", type=Path)
    parser.add_argument("--days", type=int, required=True)
    parser.add_argument("--rows-per-day", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="instead of the spec's data root")
    parser.add_argument("--newest", type=date.fromisoformat, help="YYYY-MM-DD, yesterday (UTC) unless given")
    options = parser.parse_args(arguments)
    newest = options.newest or datetime.now(UTC).date() - timedelta(days=1)
    try:
        spec = load_spec(options.spec)
        root = options.out or data_root(spec.data.root)
        generator = Generator(spec.contract, rows_per_day=options.rows_per_day, seed=options.seed)
        markers = generator.land(root, newest, options.days)
    except (DppError, SpecError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{root}: {len(markers)} days to {newest}, {sum(marker.rows for marker in markers):,} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
