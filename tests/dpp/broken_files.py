"""Real files, broken on purpose: each function breaks the newest day's file in one way."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.dpp.partitions import MARKER_NAME

Breakage = Callable[[Path], None]


def rewritten(path: Path, table: pa.Table) -> None:
    """Write `table` as the day's file, and the landing marker to fit: a writer that changed its mind."""
    pq.write_table(table, path, row_group_size=150, write_page_checksum=True, compression="zstd")
    remarked(path, table.num_rows)


def remarked(path: Path, rows: int) -> None:
    marker = path.with_name(MARKER_NAME)
    data = json.loads(marker.read_text())
    data["files"] = [{"name": path.name, "size": path.stat().st_size, "rows": rows}]
    marker.write_text(json.dumps(data | {"rows": rows}))


def with_column(name: str, change: Callable[[pa.Array], pa.Array], field: pa.Field | None = None) -> Breakage:
    def break_it(path: Path) -> None:
        table = pq.read_table(path)
        place = table.schema.get_field_index(name)
        values = change(table[name].combine_chunks())
        wanted = field or table.schema.field(place).with_type(values.type)
        rewritten(path, table.set_column(place, wanted, values))

    return break_it


def with_value(name: str, value: float, *, row: int = 5) -> Breakage:
    def change(values: pa.Array) -> pa.Array:
        changed = values.to_numpy(zero_copy_only=False).copy()
        changed[row] = value
        return pa.array(changed, type=values.type)

    return with_column(name, change)


def with_schema(change: Callable[[pa.Table], pa.Table]) -> Breakage:
    return lambda path: rewritten(path, change(pq.read_table(path)))


def renamed(table: pa.Table) -> pa.Table:
    return table.rename_columns(["cost" if name == "price" else name for name in table.column_names])


def reordered(table: pa.Table) -> pa.Table:
    names = table.column_names
    place = names.index("price")
    names[place], names[place + 1] = names[place + 1], names[place]
    return table.select(names)


def duplicated(table: pa.Table) -> pa.Table:
    return table.append_column(table.schema.field("price"), table["price"])


def extended(table: pa.Table) -> pa.Table:
    return table.append_column(pa.field("coupon", pa.int64(), nullable=False), table["shelf"])


def lists_of(
    change: Callable[[list[list[int]]], Sequence[Sequence[int | None]]], field: pa.Field | None = None
) -> Breakage:
    kind = pa.list_(pa.field("element", pa.int64(), nullable=False)) if field is None else field.type
    return with_column("shelves", lambda values: pa.array(change(values.to_pylist()), type=kind), field)


NULLABLE_ELEMENTS = pa.field("shelves", pa.list_(pa.field("element", pa.int64(), nullable=True)), nullable=False)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def overwritten(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


def half_written(path: Path) -> None:
    """Pages in place, footer not yet: what a writer leaves that does not write aside and rename."""
    table = pq.read_table(path)
    with path.open("wb") as handle:
        writer = pq.ParquetWriter(handle, table.schema)
        writer.write_table(table)
        handle.flush()
        content = path.read_bytes()
        writer.close()
    path.write_bytes(content)


def corrupt_footer(path: Path) -> None:
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[-8:-4], "little")
    content[-8 - length : -8] = np.random.default_rng(0).bytes(length)
    path.write_bytes(bytes(content))


def flipped(path: Path) -> None:
    """One byte in a data page of `product`; lengths, footer and row counts stay as they were."""
    parquet = pq.ParquetFile(path)
    leaf = parquet.schema_arrow.get_field_index("product")
    chunk = parquet.metadata.row_group(0).column(leaf)
    at = chunk.data_page_offset + chunk.total_compressed_size // 2
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(bytes(content))


def unreadable(path: Path) -> None:
    """A path that cannot be opened, whoever asks: a folder stands in the file's place."""
    path.unlink()
    path.mkdir()


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("gone.parquet")


def without_rows(path: Path) -> None:
    rewritten(path, pq.read_table(path).slice(0, 0))


def few_rows(path: Path) -> None:
    rewritten(path, pq.read_table(path).slice(0, 40))


def other_rows_than_marked(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.slice(0, table.num_rows - 7), path, write_page_checksum=True)


def file_not_marked(path: Path) -> None:
    path.with_name("part-1.parquet").write_bytes(path.read_bytes())


def without_marker(path: Path) -> None:
    path.with_name(MARKER_NAME).unlink()


def damaged_marker(path: Path) -> None:
    path.with_name(MARKER_NAME).write_text('{"version": 1, "rows"')


def marker_of_another_contract(path: Path) -> None:
    marker = path.with_name(MARKER_NAME)
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"contract": "0" * 64}))


def without_day(path: Path) -> None:
    for entry in path.parent.iterdir():
        entry.unlink()
    path.parent.rmdir()
