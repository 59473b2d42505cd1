"""The reader: exact rows, exact resume, the same steps on every rank, and errors that name the file."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainer.dpp.contract import arrow_schema
from trainer.dpp.cursor import Interval, count, divide, steps_for
from trainer.dpp.errors import CursorError, PlanError, ReaderError
from trainer.dpp.hashing import splitmix64
from trainer.dpp.partitions import land
from trainer.dpp.plan import ReadPlan
from trainer.dpp.reader import HostBatch, PartitionReader, read_holdout
from trainer.dpp.scan import unchecked_plan
from trainer.dpp.sources.generated import Generator
from trainer.spec import Contract, RefreshSpec, Window

FIRST = date(2026, 11, 1)
PRICE = 1  # the dense column that holds each row's number


@pytest.fixture(scope="module")
def numbered(spec: RefreshSpec, tmp_path_factory: pytest.TempPathFactory) -> ReadPlan:
    """Three days of 230, 17 and 300 rows in row groups of 100; `price` numbers the rows 0, 1, 2, ... over all days."""
    root = tmp_path_factory.mktemp("numbered")
    start = 0
    for offset, rows in enumerate((230, 17, 300)):
        day = FIRST + timedelta(days=offset)
        table = Generator(spec.contract, rows_per_day=rows, entities=60).table(day)
        place = table.schema.get_field_index("price")
        numbers = pa.array(np.arange(start, start + rows, dtype=np.float32))
        table = table.set_column(place, table.schema.field(place), numbers)
        land(root, day, table, spec.contract, source={})
        pq.write_table(table, root / f"day={day}" / "part-0.parquet", row_group_size=100, write_page_checksum=True)
        start += rows
    return unchecked_plan(spec, root, Window(start=FIRST, end=FIRST + timedelta(days=3)))


def numbers(batches: list[HostBatch]) -> list[int]:
    return [int(number) for batch in batches for number in batch.dense[:, PRICE]]


def read(
    plan: ReadPlan,
    contract: Contract,
    intervals: list[Interval],
    batch_size: int,
    steps: int,
    *,
    stop: int | None = None,
) -> list[HostBatch]:
    """The first `stop` batches, all by default."""
    with PartitionReader(plan, contract, intervals, batch_size=batch_size, steps=steps) as reader:
        return [batch for _, batch in zip(range(steps if stop is None else stop), reader, strict=False)]


def test_training_rows_and_holdout_rows_are_all_rows_and_share_none(spec: RefreshSpec, numbered: ReadPlan) -> None:
    intervals = numbered.intervals()
    trained = read(numbered, spec.contract, intervals, 64, steps_for(count(intervals), 64))
    with read_holdout(numbered, spec.contract, rank=0, world_size=1, batch_size=64) as reader:
        held_out = list(reader)
    assert numbered.holdout_rows > 0
    assert sorted(numbers(trained) + numbers(held_out)) == list(range(547))
    assert not {int(e) for b in trained for e in b.entities} & {int(e) for b in held_out for e in b.entities}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_killed_anywhere_and_resumed_on_any_number_of_ranks_every_training_row_is_read_once(
    spec: RefreshSpec, numbered: ReadPlan, data: st.DataObject
) -> None:
    remaining, seen = numbered.intervals(), []
    for _ in range(data.draw(st.integers(1, 3), label="attempts")):
        ranks = data.draw(st.integers(1, 4), label="ranks")
        batch_size = data.draw(st.sampled_from([1, 7, 64, 1000]), label="batch size")
        shares = divide(remaining, ranks)
        steps = steps_for([count(share) for share in shares], batch_size)
        killed_at = data.draw(st.integers(0, min(steps, 12)), label="killed after step")
        remaining = []
        for share in shares:
            batches = read(numbered, spec.contract, share, batch_size, steps, stop=killed_at)
            assert len(batches) == killed_at
            seen += numbers(batches)
            remaining += batches[-1].remaining if batches else share
        assert len(seen) + count(remaining) == numbered.train_rows
    rest = read(numbered, spec.contract, divide(remaining, 1)[0], 100, steps_for(count(remaining), 100))
    assert len(set(seen + numbers(rest))) == len(seen) + count(remaining) == numbered.train_rows


def test_c14_ranks_with_one_row_more_stop_together_and_no_row_is_lost(spec: RefreshSpec, numbered: ReadPlan) -> None:
    intervals = [Interval(0, 0, 0, 65)]
    shares = divide(intervals, 2)  # 33 and 32 rows: with batches of 32 one needs two steps, the other one
    steps = steps_for([count(share) for share in shares], 32)
    sizes = [[batch.rows for batch in read(numbered, spec.contract, share, 32, steps)] for share in shares]
    assert sizes == [[32, 1], [31, 1]]


def test_a_rank_with_fewer_rows_than_steps_gets_empty_batches(spec: RefreshSpec, numbered: ReadPlan) -> None:
    batches = read(numbered, spec.contract, [Interval(0, 0, 0, 1)], 4, 3)
    assert [batch.rows for batch in batches] == [0, 0, 1]
    assert batches[0].lengths.shape == (0,)
    assert batches[0].dense.shape == (0, 2)


def test_c9_two_readers_resumed_in_mid_file_have_disjoint_rows(spec: RefreshSpec, numbered: ReadPlan) -> None:
    share = divide(numbered.intervals(), 1)[0]
    left = read(numbered, spec.contract, share, 50, steps_for(count(share), 50), stop=3)[-1].remaining
    first, second = divide(left, 2)
    rows = [numbers(read(numbered, spec.contract, part, 64, steps_for(count(part), 64))) for part in (first, second)]
    assert not set(rows[0]) & set(rows[1])
    assert len(rows[0]) + len(rows[1]) == numbered.train_rows - 150


def test_values_are_hashed_and_transformed_and_key_major(spec: RefreshSpec, numbered: ReadPlan) -> None:
    batch = read(numbered, spec.contract, [Interval(0, 1, 0, 40)], 40, 1)[0]
    table = pq.ParquetFile(numbered.files[0].path).read_row_group(1)
    kept = np.flatnonzero(~numbered.holdout.held_out(table["shopper"].to_numpy()))[:40]
    lists = [table["recent"][int(row)].as_py() for row in kept]
    lengths = batch.lengths.reshape(4, 40)
    assert np.array_equal(lengths[0], np.ones(40))
    assert lengths[2].tolist() == [len(ids) for ids in lists]
    start = 80
    found = batch.values[start : start + lengths[2].sum()]
    raw = np.array([identity for ids in lists for identity in ids], dtype=np.int64)
    assert np.array_equal(found, (splitmix64(raw) % np.uint64(1000)).astype(np.int64))
    assert np.allclose(batch.dense[:, 0], np.log1p(table["age"].to_numpy()[kept]))
    assert np.array_equal(batch.values[40:80], table["shelf"].to_numpy()[kept])


def test_holdout_batches_are_as_many_on_every_rank_and_in_the_same_order_each_time(
    spec: RefreshSpec, numbered: ReadPlan
) -> None:
    def ranks() -> list[list[HostBatch]]:
        read_by = []
        for rank in range(3):
            with read_holdout(numbered, spec.contract, rank=rank, world_size=3, batch_size=8) as reader:
                read_by.append(list(reader))
        return read_by

    first, second = ranks(), ranks()
    assert len({len(batches) for batches in first}) == 1
    assert [numbers(batches) for batches in first] == [numbers(batches) for batches in second]
    assert sum(len(numbers(batches)) for batches in first) == numbered.holdout_rows


def test_closing_in_mid_file_joins_the_thread(spec: RefreshSpec, numbered: ReadPlan) -> None:
    reader = PartitionReader(numbered, spec.contract, numbered.intervals(), batch_size=4, steps=500, prefetch=1)
    next(reader)
    reader.close()
    reader.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "dpp-prefetch"]
    with pytest.raises(ReaderError, match="closed"):
        next(reader)


@pytest.fixture
def planned(spec: RefreshSpec, root: Path, window: Window) -> ReadPlan:
    return unchecked_plan(spec, root, window)


def everything(plan: ReadPlan, contract: Contract) -> None:
    intervals = plan.intervals()
    read(plan, contract, intervals, 128, steps_for(count(intervals), 128))


def rewrite_in_place(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.slice(0, table.num_rows - 1), path)


def replace_by_a_copy(path: Path) -> None:
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize("change", [rewrite_in_place, replace_by_a_copy, cut_off, Path.unlink])
def test_a_file_that_is_no_longer_the_planned_one_is_refused_by_name(
    spec: RefreshSpec, planned: ReadPlan, change: object
) -> None:
    path = planned.files[1].path
    change(Path(path))  # type: ignore[operator]
    with pytest.raises(PlanError, match=path):
        everything(planned, spec.contract)
    with pytest.raises(PlanError, match=path):
        planned.verify()


def write_a_byte_in_place(path: Path) -> None:
    with path.open("r+b") as handle:
        handle.seek(10)
        handle.write(b"x")


@pytest.mark.parametrize("change", [write_a_byte_in_place, rewrite_in_place, replace_by_a_copy, Path.unlink])
def test_a_file_that_changes_while_it_is_open_hands_no_further_row_over(
    spec: RefreshSpec, numbered: ReadPlan, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    """The first day has three row groups: the first is read, the others are not yet when the file changes."""
    shutil.copytree(Path(numbered.files[0].path).parents[1], tmp_path / "data")
    plan = unchecked_plan(spec, tmp_path / "data", Window(start=FIRST, end=FIRST + timedelta(days=3)))
    path = Path(plan.files[0].path)
    rows, intervals = 20, plan.intervals()
    steps = steps_for(count(intervals), rows)
    with PartitionReader(plan, spec.contract, intervals, batch_size=rows, steps=steps, prefetch=1) as reader:
        seen = numbers([next(reader)])
        change(path)  # one batch may be ready, and one in the thread's hand: all three are of the first group
        with pytest.raises(PlanError, match=str(path)):
            for batch in reader:
                seen += numbers([batch])
    assert seen == numbers(read(numbered, spec.contract, numbered.intervals(), rows, steps))[: len(seen)]
    assert len(seen) < sum(group.train_rows for group in plan.files[0].row_groups)


def flipped_keeping_identity(path: Path, at: int) -> None:
    """Flip a byte and put size and times back, as bit rot would have it."""
    import os

    status = path.stat()
    with path.open("r+b") as handle:
        handle.seek(at)
        byte = handle.read(1)
        handle.seek(at)
        handle.write(bytes([byte[0] ^ 0xFF]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_an_error_in_the_prefetch_thread_surfaces_with_file_and_row_group(spec: RefreshSpec, planned: ReadPlan) -> None:
    path = Path(planned.files[0].path)
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(5)
    flipped_keeping_identity(path, chunk.data_page_offset + chunk.total_compressed_size - 5)
    with pytest.raises(ReaderError, match=rf"{path}: row group 0: .*(?i:crc|checksum)"):
        everything(planned, spec.contract)


def test_a_plan_for_another_contract_is_refused(spec: RefreshSpec, planned: ReadPlan) -> None:
    other = Contract(columns=spec.contract.columns[:-1])
    with pytest.raises(PlanError, match="another contract"):
        everything(planned, other)


@pytest.mark.parametrize(
    "interval", [Interval(9, 0, 0, 1), Interval(0, 9, 0, 1), Interval(0, 0, 0, 1_000_000)], ids=str
)
def test_an_interval_outside_the_plan_is_refused(spec: RefreshSpec, planned: ReadPlan, interval: Interval) -> None:
    with pytest.raises(CursorError):
        PartitionReader(planned, spec.contract, [interval], batch_size=1_000_000, steps=1)


def test_more_rows_than_the_steps_can_hold_are_refused(spec: RefreshSpec, planned: ReadPlan) -> None:
    with pytest.raises(CursorError, match="do not fit"):
        PartitionReader(planned, spec.contract, planned.intervals(), batch_size=1, steps=1)


def test_an_id_beyond_its_table_is_an_error_and_not_a_wrong_row(spec: RefreshSpec, root: Path, window: Window) -> None:
    plan = unchecked_plan(spec, root, window)
    columns = [
        column.model_copy(update={"num_embeddings": 3}) if column.table_name == "shelf" else column
        for column in spec.contract.columns
    ]
    with pytest.raises(ReaderError, match="column shelf holds ids from 0 to"):
        everything(plan, Contract(columns=columns))


def test_the_schema_is_non_null_at_every_level(spec: RefreshSpec) -> None:
    schema = arrow_schema(spec.contract)
    assert not any(field.nullable for field in schema)
    assert not schema.field("recent").type.value_field.nullable
