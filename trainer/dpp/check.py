"""`python -m trainer.dpp.check --run-folder URL`: the schema check of a run's window (paper section II-C, DPP warm-up).

Writes `schema_report.json`, and `plan.json` if every rule holds. Exit 65 for bad data, which no retry makes good.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from trainer.dpp.expectations import Judge
from trainer.dpp.findings import Finding, Layer, Rule, SchemaReport, distinct
from trainer.dpp.footers import FileFacts
from trainer.dpp.inventory import PartitionFacts, take_inventory
from trainer.dpp.partitions import write_json
from trainer.dpp.plan import ReadPlan
from trainer.dpp.rules import footer_findings, partition_findings, sample_findings
from trainer.dpp.scan import holdout_of, keeps_schema, plan_of, scan_files
from trainer.run_folder import RunFolder, data_root
from trainer.spec import Contract, RunSpec, SpecError, load_run_spec

DATA_ERROR = 65
_ERROR_FILE_VARIABLE = "ETT_ERROR_FILE"
_DETAILED = 20


class _Progress:
    """Findings so far, rules evaluated and seconds spent by layer."""

    def __init__(self) -> None:
        self.judge = Judge()
        self.findings: list[Finding] = []
        self.rules: dict[str, int] = {}
        self.seconds: dict[str, float] = {}

    @contextmanager
    def layer(self, layer: Layer) -> Iterator[None]:
        started, evaluated = time.monotonic(), self.judge.evaluated
        yield
        self.seconds[layer] = round(time.monotonic() - started + self.seconds.get(layer, 0.0), 3)
        self.rules[layer] = self.judge.evaluated - evaluated + self.rules.get(layer, 0)


def check(spec: RunSpec, root: Path) -> tuple[SchemaReport, ReadPlan | None]:
    """Hold the run's window of the feature log under `root` against the contract.

    The plan is None unless every rule holds.
    """
    progress, refresh, window = _Progress(), spec.refresh, spec.run.window
    with progress.layer(Layer.FOOTER):
        partitions = take_inventory(root, window)
    files = [facts for found in partitions for facts in found.files]
    fit = [facts for facts in files if facts.rows and keeps_schema(facts, refresh.contract)]
    with ThreadPoolExecutor(max_workers=1) as background:
        # Reading every page goes on while Great Expectations is imported, which takes as long.
        scanning = background.submit(scan_files, fit, refresh.contract, holdout_of(refresh))
        with progress.layer(Layer.FOOTER):
            progress.findings += footer_findings(progress.judge, files, refresh.contract)
        with progress.layer(Layer.PARTITION):
            share = refresh.data.min_rows_vs_median
            progress.findings += partition_findings(progress.judge, partitions, refresh.contract, share)
        with progress.layer(Layer.SAMPLE):
            sampled = _sample(progress, fit, refresh.contract)
        with progress.layer(Layer.SCAN):
            scans = scanning.result()
    progress.findings += [finding for scan in scans for finding in scan.findings]
    plan = plan_of(refresh, window, [scan.planned for scan in scans if scan.planned])
    if not progress.findings and not plan.train_rows:
        progress.findings.append(_nothing_to_train_on(plan, partitions))
    findings = distinct(progress.findings)
    report = SchemaReport(
        refresh=refresh.name,
        run=spec.run.run,
        window=(window.start.isoformat(), window.end.isoformat()),
        findings=tuple(findings),
        days=window.days,
        files=len(files),
        rows=sum(facts.rows for facts in files),
        rules=progress.rules,
        seconds=progress.seconds,
        sampled=sampled,
    )
    return report, None if findings else plan


def _sample(progress: _Progress, fit: list[FileFacts], contract: Contract) -> str | None:
    """Judge the largest row group of the newest day row by row."""
    if not fit:
        return None
    newest = max(fit, key=lambda facts: (facts.day, facts.rows))
    group = max(range(len(newest.row_groups)), key=lambda index: newest.row_groups[index])
    progress.findings += sample_findings(progress.judge, newest, group, contract)
    return f"{newest.path} row group {group}"


def _nothing_to_train_on(plan: ReadPlan, partitions: list[PartitionFacts]) -> Finding:
    closed = sum(1 for partition in partitions if partition.marker and partition.marker.closed)
    observed = f"{plan.holdout_rows} rows, all of them held out; {closed} of {len(partitions)} days are closed"
    expected = "at least one training row"
    return Finding(partitions[0].folder, None, Rule.HAS_TRAINING_ROWS, expected, observed, Layer.SCAN)


def main(arguments: list[str] | None = None) -> int:
    """0 when the window keeps the contract, 65 when it does not, 2 for a run folder without a valid spec."""
    parser = argparse.ArgumentParser(prog="python -m trainer.dpp.check", description=__doc__.split("\n")[0])
    parser.add_argument("--run-folder", required=True, help="path or URL of the run folder")
    folder = RunFolder.open(parser.parse_args(arguments).run_folder)
    try:
        spec = load_run_spec(folder.spec_path)
    except (SpecError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    report, plan = check(spec, data_root(spec.refresh.data.root).absolute())
    folder.plan_path.unlink(missing_ok=True)
    write_json(folder.schema_report_path, report.to_json())
    print(report.message, file=sys.stderr if report.findings else sys.stdout)
    if plan is None:
        _say_why(report, folder)
        return DATA_ERROR
    plan.dump(folder.plan_path)
    print(f"{plan.train_rows:,} rows to train on, {plan.holdout_rows:,} held out")
    return 0


def _say_why(report: SchemaReport, folder: RunFolder) -> None:
    """Tell the launcher, so that the task's error names file, column and rule."""
    path = os.environ.get(_ERROR_FILE_VARIABLE)
    if not path:
        return
    details = {
        "report": str(folder.schema_report_path),
        "findings": [finding.to_json() for finding in report.findings[:_DETAILED]],
    }
    content = {"message": report.message, "cause": "data", "details": details}
    try:
        write_json(Path(path), json.loads(json.dumps(content)))
    except OSError as error:
        print(f"{path}: cannot be written ({error})", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
