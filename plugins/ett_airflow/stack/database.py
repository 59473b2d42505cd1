"""Airflow's metadata database: a file of its own, or the server that `$ETT_DATABASE_URL` names."""

from __future__ import annotations

import hashlib
import os
import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

DATABASE_VARIABLE = "ETT_DATABASE_URL"
CONNECT_PATIENCE_S = 60.0
"""A database server that starts beside Airflow, or is restarted, is waited for this long."""

_POSTGRES = re.compile(r"postgresql(\+psycopg2)?://[^/]*/.+")

_HOPELESS = ("authentication failed", "does not exist")  # a server that answers so will not change its mind


class DatabaseError(RuntimeError):
    """The metadata database cannot be used; the message says what to do and holds no password."""


@dataclass(frozen=True)
class Database:
    """One metadata database, by its SQLAlchemy URL (which may hold a password: it is not shown)."""

    url: str = field(repr=False)

    @classmethod
    def configured(cls, root: Path) -> Database:
        """The one that `$ETT_DATABASE_URL` names, else a SQLite file below `root`.

        Raises:
            DatabaseError: a URL that is not Postgres'.
        """
        url = os.environ.get(DATABASE_VARIABLE)
        if not url:
            return cls(f"sqlite:///{root / 'airflow.db'}")
        if not _POSTGRES.fullmatch(url):
            raise DatabaseError(
                f"${DATABASE_VARIABLE} is no address of a Postgres database; write "
                "postgresql+psycopg2://USER:PASSWORD@HOST:PORT/NAME (characters such as @ and / in it as %40 and %2F)"
            )
        return cls(re.sub(r"^postgresql://", "postgresql+psycopg2://", url))

    @classmethod
    def of_this_process(cls) -> Database:
        """The one that this process's Airflow is set up for."""
        from airflow.configuration import conf

        return cls(str(conf.get("database", "sql_alchemy_conn")))

    @property
    def is_postgres(self) -> bool:
        return self.url.startswith("postgresql")

    @property
    def shown(self) -> str:
        """The address without its password."""
        return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", self.url)

    def options(self) -> dict[str, Any]:
        """Settings of Airflow's `database` section that go with it."""
        # A connection is tried before use: one that a restarted server has closed is replaced, not handed to a query.
        return {"sql_alchemy_pool_pre_ping": True, "sql_alchemy_pool_recycle": 1800} if self.is_postgres else {}

    def bring_up(self, migrated: Path) -> None:
        """Wait for the server, and create or migrate the tables unless this version of Airflow finds its own there.

        `migrated` keeps which version the database was last brought up to, which spares a file database the look.

        Raises:
            DatabaseError: no connection within a minute.
        """
        from airflow import __version__
        from airflow.utils import db

        stamp = f"{__version__} {hashlib.sha256(self.url.encode()).hexdigest()[:16]}"
        if self.is_postgres:
            self._wait()
            if _at_head():  # asked, not remembered: the server is others' to drop and restore
                return
        elif Path(self.url.removeprefix("sqlite:///")).exists() and _content(migrated) == stamp:
            return
        db.upgradedb()
        migrated.write_text(stamp, encoding="utf-8")

    def refuse_company(self) -> None:
        """Make sure that no other Airflow works on it: two would take each other's runs, without a word.

        A scheduler is alive if its heartbeat moves while it is watched, for two and a half beats: one that was
        killed looks alive for half a minute by its record.

        Raises:
            DatabaseError: another scheduler is alive.
        """
        if not self.is_postgres:
            return  # a file below `$ETT_HOME`, which one Airflow has at a time
        from airflow.configuration import conf

        last_look = time.monotonic() + 2.5 * conf.getfloat("scheduler", "scheduler_heartbeat_sec")
        first = _scheduler_heartbeats()
        while (now := _scheduler_heartbeats()) and time.monotonic() < last_look:
            if moved := [name for name, beat in now.items() if beat != first.get(name)]:
                raise DatabaseError(
                    f"another Airflow works on {self.shown}: {', '.join(sorted(moved))}. Two on one database take each "
                    f"other's runs. Stop that one, or give this one a database of its own by ${DATABASE_VARIABLE}"
                )
            time.sleep(0.5)

    def _wait(self) -> None:
        from airflow import settings
        from sqlalchemy import text
        from sqlalchemy.exc import OperationalError

        assert settings.engine is not None
        give_up = time.monotonic() + CONNECT_PATIENCE_S
        while True:
            try:
                with settings.engine.connect() as connection:
                    connection.execute(text("SELECT 1"))
            except OperationalError as error:
                reason = str(error.orig).strip()
                if time.monotonic() > give_up or any(sign in reason for sign in _HOPELESS):
                    raise DatabaseError(
                        f"no connection to {self.shown}: {reason}\nStart the server, or correct ${DATABASE_VARIABLE}."
                    ) from None
                time.sleep(0.5)
            else:
                return


def _scheduler_heartbeats() -> dict[str, datetime | None]:
    """The last sign of life of each scheduler that may be alive by its record."""
    from airflow.configuration import conf
    from airflow.jobs.job import Job
    from airflow.utils.session import create_session
    from sqlalchemy import select

    threshold = timedelta(seconds=conf.getint("scheduler", "scheduler_health_check_threshold"))
    alive = select(Job.hostname, Job.id, Job.latest_heartbeat).where(
        Job.job_type == "SchedulerJob", Job.state == "running", Job.latest_heartbeat > datetime.now(UTC) - threshold
    )
    with create_session() as session:
        return {f"scheduler {number} on {host}": beat for host, number, beat in session.execute(alive)}


def _at_head() -> bool:
    """Whether the database carries the tables of this version of Airflow."""
    from airflow.utils import db

    try:
        db.check_migrations(timeout=1)
    except TimeoutError:
        return False
    return True


def _content(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None
