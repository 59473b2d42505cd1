"""A training job for operator tests: `python -m tiny_job ATTEMPT:CURSOR:EXIT ...` does what its attempt's part says.

CURSOR is where the attempt's steps lead the global cursor (0: no step; none: it dies before it has a log).
EXIT is its exit status, `wait` to stay alive,
`silent` to hold its devices without a sign of life, `done` to say nothing, `register` to leave a live version behind.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from ett_reports.events import Point, ProcessIdentity, Source
from ett_reports.recorder import Recorder
from trainer.run_folder import RunFolder, registry_root
from trainer.storage import MANIFEST_NAME

ATTEMPT = int(os.environ["ETT_ATTEMPT"])
plans = [step.split(":") for step in sys.argv[1:]]
cursor, status = next((plan[1:] for plan in plans if plan[0] in ("*", str(ATTEMPT))), ("0", "0"))

print(f"attempt {ATTEMPT} up to {cursor}", flush=True)
while status == "silent":
    time.sleep(0.05)
folder = RunFolder.from_environment()
job = folder.job
if status == "register":
    for path, content in {
        f"versions/{folder.run}/manifest.json": {},
        f"live/{time.time_ns()}.json": {"snapshot": folder.run, "window": ["2026-11-01", "2026-11-02"]},
    }.items():
        target = registry_root() / folder.refresh / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(content))
if status in ("register", "done"):
    sys.exit(0)
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
        folder.anchor_dir.mkdir(exist_ok=True)
        (folder.anchor_dir / MANIFEST_NAME).write_text("{}")
        recorder.point(Point.COMPLETED, cursor=int(cursor))
sys.exit(int(status))
