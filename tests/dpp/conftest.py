"""A small feature log for the tests: a contract with every kind of column, and days of it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from feature_log import DAYS, NEWEST, ROWS_PER_DAY

from trainer.dpp.sources.generated import Generator
from trainer.spec import RefreshSpec, RunInfo, RunSpec, Window, load_spec

SPEC = """\
version: 1
name: shop
data: {root: shop, first_window_days: 5, holdout: {fraction: 0.1, salt: 3}}
contract:
  columns:
    - {name: label, type: float32, role: label}
    - {name: event_time, type: "timestamp[us, tz=UTC]", role: event_time}
    - {name: original_date, type: date32, role: metadata}
    - {name: shopper, type: int64, role: entity}
    - {name: age, type: float32, role: dense, min: 0, max: 400, transform: log1p}
    - {name: price, type: float32, role: dense}
    - {name: product, type: int64, role: categorical, num_embeddings: 1000, hashing: splitmix64}
    - {name: shelf, type: int64, role: categorical, num_embeddings: 50}
    - {name: recent, type: "list<element: int64 not null>", role: jagged, num_embeddings: 1000, hashing: splitmix64,
       max_length: 6, table: product}
    - {name: shelves, type: "list<element: int64 not null>", role: jagged, num_embeddings: 50, max_length: 4,
       table: shelf}
model: {embedding_dim: 8, dense_arch: [8], over_arch: [8]}
training: {batch_size: 64}
"""


@pytest.fixture(scope="session")
def spec(tmp_path_factory: pytest.TempPathFactory) -> RefreshSpec:
    path = tmp_path_factory.mktemp("spec") / "shop.yaml"
    path.write_text(SPEC)
    return load_spec(path)


@pytest.fixture
def generator(spec: RefreshSpec) -> Generator:
    return Generator(spec.contract, rows_per_day=ROWS_PER_DAY, seed=1, entities=200)


@pytest.fixture
def root(generator: Generator, tmp_path: Path) -> Path:
    """A data root with five days that end with NEWEST."""
    folder = tmp_path / "shop"
    generator.land(folder, NEWEST, DAYS)
    return folder


@pytest.fixture
def window() -> Window:
    """The newest two days; three earlier ones give their medians."""
    return Window(start=NEWEST - timedelta(days=1), end=NEWEST + timedelta(days=1))


@pytest.fixture
def run_spec(spec: RefreshSpec, window: Window) -> RunSpec:
    return RunSpec(refresh=spec, run=RunInfo(run="manual-1", window=window))
