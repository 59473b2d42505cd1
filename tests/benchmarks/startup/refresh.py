"""The refresh that the startup benchmark trains: its spec for a cell, and its generated days."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

from tests.benchmarks.startup.arms import ALL, Cell, Course, DataSource, Gemms, NodeFolder
from trainer.dpp.scan import unchecked_plan
from trainer.dpp.sources.generated import Generator
from trainer.run_folder import RunFolder
from trainer.spec import RefreshSpec, RunInfo, RunSpec, Technique, WarmStart, Window, dump_run_spec

FIRST_DAY = date(2026, 3, 2)
DENSE_COLUMNS = 13
EMBEDDING_DIM = 16
BATCH_SIZE = 128
ROWS_OF_A_DAY = 22_000  # some 80 steps of two ranks
ROWS_TO_RESTART = 400_000  # more than an attempt gets through before its rank is killed
FEW_ROWS = 600

_LEAVES_CODE_ALONE = {
    Technique.LOCAL_METADATA,
    Technique.PLAN_CACHE,
    Technique.SKIP_STATE_BROADCAST,
    Technique.PARALLEL_INIT,
    Technique.ASYNC_CHECKPOINT,
    Technique.WARM_STANDBY,
}
"""Techniques that change nothing of what is compiled, nor under which key it is kept."""


def spec_of(cell: Cell) -> RefreshSpec:
    """The cell's refresh: `tables` tables, 13 dense columns, one history that shares a table with its candidate."""
    document: dict[str, Any] = {
        "version": 1,
        "name": ground_of(cell),
        "data": {"root": "unused"},
        "contract": {"columns": _columns(cell.tables)},
        "model": {
            "factory": cell.model.factory,
            "embedding_dim": EMBEDDING_DIM,
            "dense_arch": [64, EMBEDDING_DIM],
            "over_arch": [64, 32] if cell.course is not Course.SHARD else [16],
        },
        "training": {"batch_size": BATCH_SIZE, "seed": 11},
        "checkpoint": {"interval_s": 1.0 if cell.course is Course.RESTART else 1000.0},
        "resources": {
            "ranks": cell.ranks,
            "device": "cpu",
            "hang_timeout_s": 1200.0,  # a crowded machine makes a run useless, not hung
            # A day passes between two refreshes: only a restart meets a standby that is there already.
            "standby_idle_s": 600.0 if cell.course is Course.RESTART else 0.5,
        },
        "compilation": {"max_autotune": cell.gemms is Gemms.AUTOTUNED, "untraced_modules": _untraced(cell)},
        "optimizations": {"preset": "baseline", **{technique.value: True for technique in cell.on}},
    }
    return RefreshSpec.model_validate(document)


def ground_of(cell: Cell) -> str:
    """The name of the refresh, whose runs share plans and archives: arms that would write another archive are apart.

    >>> ground_of(Cell(on=frozenset()))
    'dlrm-24x2-plain'
    """
    state = "plain"
    if Technique.ARTIFACT_CACHE in cell.on:
        left_out = [technique.value for technique in ALL - _LEAVES_CODE_ALONE - cell.on]
        state = "-".join(["archived", *sorted(name.replace("_", "") for name in left_out)])
    circumstances = [str(value) for value in (cell.gemms, *cell.untraced) if value != Gemms.DEFAULT]
    short = ["short"] if cell.course is Course.SHARD else []
    parts = [cell.model.value, f"{cell.tables}x{cell.ranks}", state, *short, *circumstances]
    return "-".join(parts).replace("_", "").replace(".", "-")


def rows_of(cell: Cell) -> int:
    if cell.course is Course.RESTART:
        return ROWS_TO_RESTART
    return FEW_ROWS if cell.course is Course.SHARD else ROWS_OF_A_DAY


def land(spec: RefreshSpec, root: Path, rows: int) -> Path:
    """The data of `rows` rows a day, generated once."""
    folder = root / f"{len(spec.contract.sparse)}-columns-{rows}-rows"
    if not (folder / "complete").exists():
        Generator(spec.contract, rows_per_day=rows, seed=5).land(folder, FIRST_DAY, 1)
        (folder / "complete").touch()
    return folder


def new_run(spec: RefreshSpec, data: Path, root: Path, run: str, *, warm_start: WarmStart | None) -> RunFolder:
    """A run folder that is ready to be submitted."""
    folder = RunFolder.of(spec.name, run, root).create()
    window = Window(start=FIRST_DAY, end=FIRST_DAY + timedelta(days=1))
    unchecked_plan(spec, data, window).dump(folder.plan_path)
    dump_run_spec(RunSpec(refresh=spec, run=RunInfo(run=run, window=window, warm_start=warm_start)), folder.spec_path)
    return folder


def wrapper_of(cell: Cell) -> str:
    """The module that the ranks run: the trainer, or the benchmark's wrapper around it."""
    if cell.source is DataSource.EMULATED_LATENCY:
        return "late_source"
    return "kept_folder" if cell.node is NodeFolder.KEPT else "trainer"


def _untraced(cell: Cell) -> list[str]:
    """Where sharding is measured the whole tower is left out, so that the earlier day need not compile."""
    return ["tower"] if cell.course is Course.SHARD else list(cell.untraced)


def _columns(tables: int) -> list[dict[str, Any]]:
    def sparse(column: str, **rest: Any) -> dict[str, Any]:
        return {"name": column, "num_embeddings": 2000, "hashing": "splitmix64", **rest}

    return [
        {"name": "label", "type": "float32", "role": "label"},
        {"name": "event_time", "type": "timestamp[us, tz=UTC]", "role": "event_time"},
        {"name": "entity_id", "type": "int64", "role": "entity"},
        *(
            {"name": f"d{number}", "type": "float32", "role": "dense", "min": 0, "max": 400, "transform": "log1p"}
            for number in range(DENSE_COLUMNS)
        ),
        *(sparse(f"c{number}", type="int64", role="categorical") for number in range(tables)),
        sparse("history", type="list<element: int64 not null>", role="jagged", max_length=8, table="c0"),
    ]
