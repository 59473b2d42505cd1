"""The pages as Airflow serves them: its own users, permissions and database, with runs whose logs a test has told."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi.testclient import TestClient

from ett_reports.document import ReportDocument
from ett_reports.events import Point, ProcessIdentity, Source
from ett_reports.levels import reduce
from ett_reports.reader import read_log
from ett_reports.recorder import Recorder
from ett_reports.render.files import write_document
from ett_reports.slo import Snapshot, judge, policy_from
from tests.ett_reports.story import Story
from tests.plugins.conftest import SPEC_PATH
from trainer.run_folder import RunFolder, registry_root, safe_name
from trainer.spec import Owned, Owner, RunInfo, RunSpec, ServiceLevel, Window, dump_run_spec, load_spec

TASKS = ("check_schema", "launch", "train", "publish", "ett", "report")
DAY = date(2026, 11, 27)
OWNERS = {Owned.PT2_COMPILE: Owner(team="compilers", contact="#pt2"), Owned.DATA: Owner(team="features")}
LEVELS = {Owned.PT2_COMPILE: ServiceLevel(seconds=5.0), Owned.DATA: ServiceLevel(seconds=60.0)}
NARROW_SEES = "shop"


class NarrowAuthManager(SimpleAuthManager):
    """Airflow's own, except that user `narrow` may read one DAG only."""

    def is_authorized_dag(
        self,
        *,
        method: Any,
        user: SimpleAuthManagerUser,
        access_entity: DagAccessEntity | None = None,
        details: DagDetails | None = None,
    ) -> bool:
        if user.username == "narrow" and (details is None or details.id != NARROW_SEES):
            return False
        return super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)


USERS = {
    "viewer": SimpleAuthManagerUser(username="viewer", role="VIEWER"),
    "narrow": SimpleAuthManagerUser(username="narrow", role="VIEWER"),
    "nobody": SimpleAuthManagerUser(username="nobody", role=None),
}


@dataclass
class Site:
    """The app below /ett, and what stands behind it."""

    client: TestClient
    bundle: str = "dags"
    live: list[Recorder] = field(default_factory=list)

    def get(self, path: str, user: str | None = "viewer", method: str = "GET", **query: Any) -> Any:
        from airflow.api_fastapi.app import get_auth_manager

        headers = {}
        if user is not None:
            headers["Authorization"] = f"Bearer {get_auth_manager().generate_jwt(USERS[user])}"
        return self.client.request(method, f"/ett/{path}", params=query, headers=headers)

    def refresh(self, dag_id: str = "shop", *, description: str = "", tag: str = "refresh") -> None:
        """A DAG as Airflow has parsed it."""
        tables = _tables()
        _insert(
            tables["dag"],
            dag_id=dag_id,
            bundle_name=self.bundle,
            description=description,
            is_paused=False,
            is_stale=False,
            max_active_tasks=16,
            max_consecutive_failed_dag_runs=0,
            has_task_concurrency_limits=False,
            timetable_type="",
        )
        _insert(tables["dag_tag"], dag_id=dag_id, name=tag)

    def run(
        self, dag_id: str, run_id: str, state: str = "success", tasks: Mapping[str, str] | None = None
    ) -> RunFolder:
        """A run as Airflow knows it, and the place of its folder, which is not made."""
        tables = _tables()
        now = datetime.now(UTC)
        common = {"dag_id": dag_id, "run_id": run_id, "state": state}
        _insert(tables["dag_run"], **common, run_type="manual", queued_at=now, start_date=now, run_after=now)
        states = tasks or dict.fromkeys(TASKS, "success" if state == "success" else "")
        for task, task_state in states.items():
            _insert(
                tables["task_instance"],
                dag_id=dag_id,
                run_id=run_id,
                task_id=task,
                state=task_state or None,
                try_number=1 if task_state else 0,
                map_index=-1,
                pool="default_pool",
            )
        return RunFolder.of(dag_id, safe_name(run_id))

    def trained(self, dag_id: str, run_id: str, *, compile_s: float = 30, day: date = DAY, **run: Any) -> RunFolder:
        """A run with a whole story: compiled, trained for 100 s, ended; its spec and report are written."""
        folder = self.run(dag_id, run_id, **run)
        spec = begun(folder, day)
        tell(folder, compile_s)
        written(folder, spec)
        return folder

    def going(self, dag_id: str, run_id: str) -> tuple[RunFolder, Recorder]:
        """A run that trains right now; the recorder is its trainer's."""
        states = {**dict.fromkeys(TASKS, ""), "check_schema": "success", "launch": "success", "train": "deferred"}
        folder = self.run(dag_id, run_id, state="running", tasks=states)
        begun(folder, DAY)
        launcher = Recorder(folder.events_dir, ProcessIdentity(job=folder.job, source=Source.LAUNCHER, process="agent"))
        for point in (Point.SUBMITTED, Point.ALLOCATED, Point.LAUNCHED):
            launcher.point(point, attempt=1, devices=1)
        identity = ProcessIdentity(
            job=folder.job, source=Source.TRAINER, process="trainer-a1-r0", attempt=1, rank=0, world_size=1, devices=1
        )
        trainer = Recorder(folder.events_dir, identity)
        trainer.point(Point.STREAM, planned_samples=1000)
        trainer.begin_steps(cursor=0)
        trainer.step(cursor=200)
        self.live += [launcher, trainer]
        return folder, trainer


def begun(folder: RunFolder, day: date) -> RunSpec:
    """The folder and its resolved spec, as check_schema leaves them."""
    folder.create()
    refresh = load_spec(SPEC_PATH).model_copy(
        update={"name": folder.refresh, "owners": OWNERS, "service_levels": LEVELS}
    )
    window = Window(start=day, end=date.fromordinal(day.toordinal() + 1))
    spec = RunSpec(refresh=refresh, run=RunInfo(run=folder.run, window=window))
    dump_run_spec(spec, folder.spec_path)
    return spec


def tell(folder: RunFolder, compile_s: float) -> None:
    """10 s of start, compilation, ten steps of 10 s, and Airflow's stamps around them."""
    from ett_reports.events import Phase

    story = Story(folder.events_dir, job=folder.job)
    for task, code, end in (("check_schema", 2, 9), ("train", 12, 115 + compile_s), ("publish", 117 + compile_s, 130)):
        operator = story.process(Source.AIRFLOW, f"airflow-{task}-t1-1", start=code, host="airflow")
        operator.point("task_code_start", task=task, try_number=1)
        operator.at(max(code, end)).point("task_end", task=task, try_number=1, outcome="success")
    story.submit(1, 10)
    trainer = story.trainer(1, 20).point("stream", planned_samples=100)
    trainer.at(20 + compile_s).phase(Phase.COMPILE, 20, 20 + compile_s)
    trainer.begin(0).steps(10).finish()
    story.complete(1, 120 + compile_s)
    story.launcher.recorder.close()


def written(folder: RunFolder, spec: RunSpec) -> ReportDocument:
    """The report, as the run's last task writes it."""
    from ett_airflow.run_summary import run_summary, run_title

    log = read_log(folder.events_dir)
    job = reduce(log)
    policy = policy_from({str(k): v for k, v in OWNERS.items()}, {str(k): v for k, v in LEVELS.items()})
    judgement = judge(Snapshot(job=job, policy=policy))
    document = ReportDocument(title=run_title(spec), job=job, refresh=None, judgement=judgement, spec=run_summary(spec))
    write_document(document, folder.report_dir, log=log)
    return document


def publish(refresh: str, number: int, version: str, end: str) -> None:
    live = registry_root() / refresh / "live"
    live.mkdir(parents=True, exist_ok=True)
    record = {"number": number, "snapshot": version, "window": ["2026-01-01", end], "created_unix_ns": 1, "version": 1}
    (live / f"{number}.json").write_text(json.dumps(record))


def _tables() -> Any:
    from airflow.models.base import Base

    return Base.metadata.tables


def _insert(table: Any, **values: Any) -> None:
    from airflow.utils.session import create_session

    with create_session() as session:
        session.execute(table.insert().values(**values))


def empty_tables(bundle: str) -> None:
    from airflow.utils.session import create_session

    tables = _tables()
    with create_session() as session:
        for name in ("task_instance", "dag_run", "dag_tag", "dag", "dag_bundle"):
            session.execute(tables[name].delete())
        session.execute(tables["dag_bundle"].insert().values(name=bundle, active=True))


def words_of(page: str) -> str:
    """The text that a reader sees."""
    body = page.partition("<body>")[2] or page
    without = re.sub(r"<(script|style)\b.*?</\1>", " ", body, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", without)).split())
