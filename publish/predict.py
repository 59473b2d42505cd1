"""Scores a Parquet file with a snapshot: `python -m publish.predict SNAPSHOT_OR_REFRESH INPUT.parquet --out OUT`.

The snapshot is a folder, or a refresh's name for its live version. The input needs the contract's dense and sparse
columns, by exact type; the label is not needed. Out come the entity (if the input has it), `logit` and `probability`,
row by row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from publish.errors import InputError, PublishError, RegistryError
from publish.registry import Registry
from publish.scoring import BATCH_ROWS, logits_of
from publish.snapshot import MANIFEST_NAME, SnapshotManifest, load_model
from trainer.atomic_file import replacing
from trainer.checkpoint.reference import probabilities
from trainer.dpp.contract import arrow_type
from trainer.dpp.decode import HostBatch, Piece, assemble, decode
from trainer.dpp.errors import DppError
from trainer.model.factory import ModelFactoryError
from trainer.run_folder import registry_root
from trainer.spec import Column, Contract


def find_snapshot(name: str) -> Path:
    """The folder of a snapshot, given as such or as a refresh with a live version.

    Raises:
        RegistryError: neither; names the refreshes that are registered.
    """
    if (Path(name) / MANIFEST_NAME).is_file():
        return Path(name)
    if not Path(name).is_absolute() and (live := Registry.of(name).live()):
        return Registry.of(name).path(live.snapshot)
    root = registry_root()
    known = ", ".join(sorted(path.name for path in root.iterdir())) if root.is_dir() else ""
    raise RegistryError(f"{name!r} is no snapshot's folder, and no refresh that is live (known: {known or 'none'})")


def predict(snapshot: Path, source: Path, target: Path) -> int:
    """Score `source` into `target`, which appears once it is complete; the number of rows.

    Raises:
        InputError: `source` is not Parquet, or lacks a column, or holds values that the contract rules out.
        SnapshotError: the snapshot is damaged.
    """
    spec = SnapshotManifest.read(snapshot).spec
    try:
        parquet = pq.ParquetFile(source)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{source}: cannot be read as Parquet ({error})") from None
    columns = _checked_columns(spec.contract, parquet.schema_arrow, source)
    module = load_model(snapshot)
    rows = 0
    with replacing(target) as aside, ExitStack() as opened:
        writer = None
        for batch in _batches(parquet, columns, source):
            _check_values(spec.contract, batch, source, rows)
            host = _decoded(spec.contract, batch, source)
            scored = _scored(spec.contract, batch, logits_of(module, spec, host))
            writer = writer or opened.enter_context(pq.ParquetWriter(aside, scored.schema))
            writer.write_table(scored)
            rows += batch.num_rows
        if writer is None:
            raise InputError(f"{source}: has no rows to score")
    return rows


def _features(contract: Contract) -> list[Column]:
    return [*contract.dense, *contract.sparse]


def _checked_columns(contract: Contract, schema: pa.Schema, source: Path) -> list[str]:
    """Names of the columns to read.

    Raises:
        InputError: every column that is missing or of another type, all at once.
    """
    problems = []
    for column in _features(contract):
        count = schema.names.count(column.name)
        if count != 1:
            problems.append(f"column {column.name} is {'missing' if count == 0 else f'there {count} times'}")
            continue
        found, wanted = schema.field(column.name).type, arrow_type(column)
        if not _same_type(found, wanted):
            problems.append(f"column {column.name} has type {found}, the contract says {column.type}")
    if problems:
        raise InputError(f"{source}: {'; '.join(problems)}. Write it as the snapshot's contract says")
    entity = [contract.entity.name] if contract.entity.name in schema.names else []
    return [*entity, *(column.name for column in _features(contract))]


def _same_type(found: pa.DataType, wanted: pa.DataType) -> bool:
    """List items may be declared nullable, as most writers do; that none is null is checked by value."""
    if pa.types.is_list(found) and pa.types.is_list(wanted):
        return bool(found.value_type == wanted.value_type)
    return bool(found == wanted)


def _batches(parquet: pq.ParquetFile, columns: list[str], source: Path) -> Iterator[pa.RecordBatch]:
    try:
        for batch in parquet.iter_batches(batch_size=BATCH_ROWS, columns=columns, use_threads=False):
            if batch.num_rows:
                yield batch
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{source}: is damaged ({error})") from None


def _check_values(contract: Contract, batch: pa.RecordBatch, source: Path, before: int) -> None:
    for column in _features(contract):
        array = batch.column(column.name)
        items = array.flatten() if pa.types.is_list(array.type) else array
        if array.null_count or items.null_count:
            raise InputError(f"{source}: column {column.name} has nulls in rows {before} to {before + len(array) - 1}")
    for column in contract.dense:
        bad = np.flatnonzero(~np.isfinite(batch.column(column.name).to_numpy()))
        if len(bad):
            raise InputError(f"{source}: column {column.name} is not finite in row {before + int(bad[0])}")
        low = column.min if column.min is not None else -np.inf
        below = np.flatnonzero(batch.column(column.name).to_numpy() < low)
        if len(below):
            raise InputError(f"{source}: column {column.name} is below {low:g} in row {before + int(below[0])}")


def _decoded(contract: Contract, batch: pa.RecordBatch, source: Path) -> HostBatch:
    try:
        chunk = decode(contract, _completed(contract, batch), np.arange(batch.num_rows))
    except DppError as error:
        raise InputError(f"{source}: {error}") from None
    return assemble([Piece(chunk, 0, chunk.rows)], (), (), keys=len(contract.sparse))


def _completed(contract: Contract, batch: pa.RecordBatch) -> pa.RecordBatch:
    """With the columns that decoding expects and predicting does not use."""
    arrays = {name: batch.column(name) for name in batch.schema.names}
    for column in (contract.label, contract.entity):
        arrays.setdefault(column.name, pa.array(np.zeros(batch.num_rows), type=arrow_type(column)))
    return pa.RecordBatch.from_pydict(arrays)


def _scored(contract: Contract, batch: pa.RecordBatch, logits: np.ndarray) -> pa.Table:
    entity = contract.entity.name
    columns = {entity: batch.column(entity)} if entity in batch.schema.names else {}
    return pa.table({**columns, "logit": logits, "probability": probabilities(logits)})


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m publish.predict", description="Score a Parquet file.")
    parser.add_argument("snapshot", help="a snapshot's folder, or a refresh's name for its live version")
    parser.add_argument("input", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        snapshot = find_snapshot(options.snapshot)
        rows = predict(snapshot, options.input, options.out)
    except (PublishError, ModelFactoryError) as error:
        print(f"predict: {error}", file=sys.stderr)
        return 1
    print(f"{rows} rows scored with {snapshot} into {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
