"""The full scan: every page of every file is read once, its checksum verified, its values held against the contract.

It finds what footers do not show (NaN, flipped bytes, overlong lists, statistics that lie) and counts the rows that
the read plan needs. Pure Arrow and NumPy: about a second for a million rows and core.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from os import cpu_count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.dpp.contract import Bounds, arrow_schema, bounds_of, contract_hash
from trainer.dpp.errors import PlanError
from trainer.dpp.findings import Finding, Layer, Rule
from trainer.dpp.footers import FileFacts, read_facts
from trainer.dpp.hashing import HoldoutRule
from trainer.dpp.partitions import day_folder, landed_days
from trainer.dpp.plan import FileIdentity, PlannedFile, PlannedRowGroup, ReadPlan
from trainer.spec import Column, Contract, RefreshSpec, Role, Window

_CHUNK_ROWS = 16_384


@dataclass(frozen=True)
class FileScan:
    """A scanned file: `planned` is None if the scan could not be finished."""

    planned: PlannedFile | None
    findings: tuple[Finding, ...]


def scan_files(files: list[FileFacts], contract: Contract, holdout: HoldoutRule) -> list[FileScan]:
    """Scan files side by side; those whose footer already breaks the contract are left out by the caller."""
    with ThreadPoolExecutor(max_workers=min(4, cpu_count() or 1), thread_name_prefix="dpp-scan") as pool:
        return list(pool.map(lambda facts: scan_file(facts, contract, holdout), files))


def scan_file(facts: FileFacts, contract: Contract, holdout: HoldoutRule) -> FileScan:
    """Read all of one file. A fault becomes a finding, never an exception."""
    scan = _Scan(facts.path, facts.day, contract)
    groups: list[PlannedRowGroup] = []
    try:
        with Path(facts.path).open("rb") as handle:
            identity = FileIdentity.of(handle)
            parquet = pq.ParquetFile(handle, page_checksum_verification=True)
            for index in range(parquet.metadata.num_row_groups):
                groups.append(scan.row_group(parquet, index, holdout))
            after = FileIdentity.of(handle)
    except (OSError, ValueError, pa.ArrowException) as error:
        scan.add(None, _rule_of(error), "all pages to be readable", f"row group {len(groups)}: {_one_line(error)}")
        return FileScan(None, tuple(scan.findings))
    changes = (facts.identity or identity).differences(after)
    if changes:
        scan.add(None, Rule.UNCHANGED, "the same file before and after reading", "; ".join(changes))
    return FileScan(PlannedFile(facts.path, facts.day, identity, tuple(groups)), tuple(scan.findings))


def plan_of(spec: RefreshSpec, window: Window, files: list[PlannedFile]) -> ReadPlan:
    """The read plan over scanned files, in stream order."""
    return ReadPlan(
        refresh=spec.name,
        start=window.start,
        end=window.end,
        contract=contract_hash(spec.contract),
        holdout=holdout_of(spec),
        files=tuple(sorted(files, key=lambda file: (file.day, file.path))),
    )


def unchecked_plan(spec: RefreshSpec, root: Path, window: Window) -> ReadPlan:
    """A plan over whatever has landed of a window, by the full scan alone: for benchmarks and tests of readers.

    Raises:
        PlanError: a file breaks the contract.
    """
    days = [day for day in landed_days(root) if window.start <= day < window.end]
    facts = [read_facts(path, day) for day in days for path in sorted(day_folder(root, day).glob("*.parquet"))]
    scans = scan_files(facts, spec.contract, holdout_of(spec))
    for finding in (finding for scan in scans for finding in scan.findings):
        raise PlanError(str(finding))
    return plan_of(spec, window, [scan.planned for scan in scans if scan.planned])


def holdout_of(spec: RefreshSpec) -> HoldoutRule:
    return HoldoutRule(fraction=spec.data.holdout.fraction, salt=spec.data.holdout.salt)


class _Scan:
    """Findings of one file, one per column and rule."""

    def __init__(self, path: str, day: date, contract: Contract) -> None:
        self._path, self._contract = path, contract
        self._bounds = {column.name: bounds_of(column, day) for column in contract.columns}
        self._seen: set[tuple[str | None, Rule]] = set()
        self.findings: list[Finding] = []

    def add(self, column: str | None, rule: Rule, expected: str, observed: str) -> None:
        if (column, rule) not in self._seen:
            self._seen.add((column, rule))
            self.findings.append(Finding(self._path, column, rule, expected, observed, Layer.SCAN))

    def row_group(self, parquet: pq.ParquetFile, index: int, holdout: HoldoutRule) -> PlannedRowGroup:
        rows = train_rows = 0
        for batch in _batches(parquet, index):
            rows += batch.num_rows
            entities = batch.column(self._contract.entity.name).to_numpy(zero_copy_only=False)
            train_rows += int(np.count_nonzero(~holdout.held_out(entities)))
            for column in self._contract.columns:
                self._column(column, batch.column(column.name), f"row group {index}")
        return PlannedRowGroup(rows, train_rows)

    def _column(self, column: Column, array: pa.Array, where: str) -> None:
        if array.null_count:
            self.add(column.name, Rule.NO_NULLS, "no nulls", f"{where}: {array.null_count} nulls")
            return
        if column.role is Role.JAGGED:
            self._lengths(column, array, where)
            array = array.flatten()
        bounds = self._bounds[column.name]
        if bounds is None or not len(array):
            return
        if column.role is Role.EVENT_TIME:
            array = array.cast(pa.int64())
        self._values(column, array.to_numpy(zero_copy_only=False), bounds, where)

    def _lengths(self, column: Column, array: pa.Array, where: str) -> None:
        longest = int(np.diff(array.offsets.to_numpy()).max(initial=0))
        if column.max_length is not None and longest > column.max_length:
            expected = f"at most {column.max_length} ids in a list"
            self.add(column.name, Rule.LIST_LENGTH, expected, f"{where}: a list of {longest}")

    def _values(self, column: Column, values: np.ndarray, bounds: Bounds, where: str) -> None:
        low, high = values.min(), values.max()
        if not (np.isfinite(low) and np.isfinite(high)):  # NaN comes out of min and max
            odd = int(np.count_nonzero(~np.isfinite(values)))
            self.add(column.name, Rule.FINITE, "finite values", f"{where}: {odd} of {len(values)} are NaN or infinite")
            return
        if low < bounds.low:
            self.add(column.name, Rule.MINIMUM, bounds.text, f"{where}: {low}")
        if high > bounds.high:
            self.add(column.name, Rule.MAXIMUM, bounds.text, f"{where}: {high}")


def _batches(parquet: pq.ParquetFile, index: int) -> Iterator[pa.RecordBatch]:
    return parquet.iter_batches(batch_size=_CHUNK_ROWS, row_groups=[index], use_threads=False)


def _rule_of(error: Exception) -> Rule:
    return Rule.PAGE_CHECKSUMS if "checksum" in str(error).lower() or "crc" in str(error).lower() else Rule.READABLE


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def keeps_schema(facts: FileFacts, contract: Contract) -> bool:
    """Whether a file has exactly the contract's schema, so that its values can be judged."""
    return facts.schema is not None and facts.schema.equals(arrow_schema(contract), check_metadata=False)
