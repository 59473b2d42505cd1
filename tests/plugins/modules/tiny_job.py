"""A training job for operator tests: `python -m tiny_job ATTEMPT:CURSOR:EXIT ...` does what its attempt's part says.

CURSOR is where the attempt's steps lead the global cursor (0: no step); EXIT is its exit status, `wait` to stay alive.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from ett_reports.events import Point, ProcessIdentity, Source
from ett_reports.recorder import Recorder
from trainer.run_folder import RunFolder

ATTEMPT = int(os.environ["ETT_ATTEMPT"])
plans = [step.split(":") for step in sys.argv[1:]]
cursor, status = next((plan[1:] for plan in plans if plan[0] in ("*", str(ATTEMPT))), ("0", "0"))

job = RunFolder.from_environment().job
identity = ProcessIdentity(job=job, source=Source.TRAINER, process=f"trainer-a{ATTEMPT}-r0", attempt=ATTEMPT, rank=0)
with Recorder(Path(os.environ["ETT_EVENTS_DIR"]), identity) as recorder:
    recorder.point(Point.STREAM, planned_samples=100)
    if int(cursor):
        recorder.begin_steps()
        time.sleep(0.01)
        recorder.step(cursor=int(cursor))
    while status == "wait":
        recorder.heartbeat()
        time.sleep(0.05)
    if status == "65":
        message = {"message": "day=2026-11-25/part-0.parquet: column visits: missing", "cause": "data"}
        Path(os.environ["ETT_ERROR_FILE"]).write_text(json.dumps(message))
    if status == "0":
        recorder.point(Point.COMPLETED, cursor=int(cursor))
sys.exit(int(status))
