"""`python -m publish --run-folder URL`: the publish job. Exit 0 registered, 65 the data's fault, 1 anything else."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from ett_reports.events import Cause, Point, ProcessIdentity, Source
from ett_reports.recorder import Recorder
from trainer.run_folder import RunFolder, RunFolderError

EXIT_FAILED = 1
EXIT_BAD_DATA = 65


def main(arguments: list[str]) -> int:
    """Publish a run; why it was refused goes to stderr and to the file that the launcher named."""
    parser = argparse.ArgumentParser(prog="python -m publish", description="Publish a run's anchor checkpoint.")
    parser.add_argument("--run-folder", required=True, help="path or file:// URL of the run")
    try:
        run_folder = RunFolder.open(parser.parse_args(arguments).run_folder)
    except RunFolderError as error:
        _explain(str(error), Cause.APPLICATION)
        return EXIT_FAILED
    with _open_log(run_folder) as recorder:
        return _publish(run_folder, recorder)


def _publish(run_folder: RunFolder, recorder: Recorder) -> int:
    from publish.errors import PublishError  # these import torch: seconds, after the log is open
    from publish.publisher import publish
    from trainer.checkpoint import CheckpointError
    from trainer.dpp.errors import DppError
    from trainer.model.factory import ModelFactoryError
    from trainer.spec import SpecError

    try:
        published = publish(run_folder)
    except DppError as error:
        _explain(str(error), Cause.DATA)
        return EXIT_BAD_DATA
    except (PublishError, CheckpointError, ModelFactoryError, SpecError, OSError) as error:
        _explain(str(error), Cause.APPLICATION)
        return EXIT_FAILED
    recorder.point("snapshot_registered", version=published.version, outcome=published.outcome)
    if published.live_unix_ns is not None:
        recorder.point(Point.SNAPSHOT_LIVE, wall_ns=published.live_unix_ns, version=published.version)
    metrics = published.metrics
    print(f"snapshot {published.path}")
    print(
        f"holdout AUC {metrics.holdout_auc:.4f} over {metrics.holdout_rows} rows, predictions within "
        f"{metrics.max_prediction_difference:.2g} of the trainer's; live pointer: {published.outcome}"
    )
    return 0


def _open_log(run_folder: RunFolder) -> Recorder:
    """Publishing holds no devices and is no attempt of the job: its points belong to the refresh, as Airflow's do."""
    folder = os.environ.get("ETT_EVENTS_DIR")
    process = f"publish-a{os.environ.get('ETT_ATTEMPT', '1')}"
    identity = ProcessIdentity(job=run_folder.job, source=Source.AIRFLOW, process=process)
    return Recorder(Path(folder) if folder else run_folder.events_dir, identity)


def _explain(message: str, cause: Cause) -> None:
    print(f"publish: {message}", file=sys.stderr)
    if path := os.environ.get("ETT_ERROR_FILE"):
        Path(path).write_text(json.dumps({"message": message, "cause": cause, "details": {}}), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
