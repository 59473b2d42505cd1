"""`python -m trainer.dpp.prepare SPEC`: land the days of a spec's data source that have not landed yet.

Idempotent. Standard output ends with one line of JSON: root, oldest_day, newest_day, landed, rows.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Protocol, cast

from trainer.dpp.errors import DppError, SourceError
from trainer.dpp.partitions import LandingMarker, landed_days, landing_lock
from trainer.dpp.sources.landing import LandingRequest
from trainer.run_folder import data_root
from trainer.spec import RefreshSpec, SpecError, load_spec


class Source(Protocol):
    """A module named by `data.prepare`."""

    def prepare(self, spec: RefreshSpec, root: Path, request: LandingRequest) -> list[LandingMarker]:
        """Land those days of the request that have not landed; returns the new ones."""


def source_of(spec: RefreshSpec) -> Source:
    """The source module of a spec.

    Raises:
        SourceError: none is named, or it cannot be imported.
    """
    if spec.data.prepare is None:
        raise SourceError(f"{spec.name}: data.prepare names no source module; its days are landed by somebody else")
    try:
        module = importlib.import_module(spec.data.prepare)
    except ImportError as error:
        raise SourceError(f"{spec.name}: data.prepare {spec.data.prepare!r} cannot be imported: {error}") from error
    if not hasattr(module, "prepare"):
        raise SourceError(f"{spec.name}: {spec.data.prepare} has no function prepare(spec, root, request)")
    return cast(Source, module)


def main(arguments: list[str] | None = None) -> int:
    """0 when the days have landed, 1 when they could not, 2 for wrong usage or an invalid spec."""
    parser = argparse.ArgumentParser(prog="python -m trainer.dpp.prepare", description=__doc__.split("\n")[0])
    parser.add_argument("spec", type=Path)
    parser.add_argument("--through", type=date.fromisoformat, help="newest day to land (yesterday, UTC)")
    first = parser.add_mutually_exclusive_group()
    first.add_argument("--from", dest="first", type=date.fromisoformat, help="oldest day to land")
    first.add_argument("--days", type=int, help="how many days to land, counted back from the newest")
    options = parser.parse_args(arguments)
    try:
        spec = load_spec(options.spec)
    except (SpecError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    through = min(options.through or yesterday, yesterday)
    oldest = through - timedelta(days=options.days - 1) if options.days else options.first
    root = data_root(spec.data.root)
    try:
        with landing_lock(root):
            markers = source_of(spec).prepare(spec, root, LandingRequest(through=through, first=oldest))
    except (DppError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(_summary(root, markers)))
    return 0


def _summary(root: Path, markers: list[LandingMarker]) -> dict[str, object]:
    days = landed_days(root)
    return {
        "root": str(root),
        "oldest_day": days[0].isoformat() if days else None,
        "newest_day": days[-1].isoformat() if days else None,
        "landed": [marker.day.isoformat() for marker in markers],
        "rows": sum(marker.rows for marker in markers),
    }


if __name__ == "__main__":
    sys.exit(main())
