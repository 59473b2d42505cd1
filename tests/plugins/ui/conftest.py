"""One Airflow database and auth manager for all tests of the pages; each test has its own home and empty tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.plugins.ui.site import Site


@pytest.fixture(scope="session")
def airflow_database() -> Iterator[None]:
    """Airflow's tables, in the private home that tests/plugins/conftest.py has set."""
    import airflow.models
    from airflow import settings
    from airflow.api_fastapi import app
    from airflow.models.base import Base

    patch = pytest.MonkeyPatch()
    patch.setenv("AIRFLOW__CORE__AUTH_MANAGER", "tests.plugins.ui.site.NarrowAuthManager")
    patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "s" * 64)
    airflow.models.import_all_models()
    Base.metadata.create_all(settings.engine)
    app.create_auth_manager()
    yield
    app.purge_cached_app()
    patch.undo()


@pytest.fixture
def site(airflow_database: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    from ett_airflow.ui import pages
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    from tests.plugins.ui.site import Site, empty_tables

    monkeypatch.setenv("ETT_HOME", str(tmp_path))
    server = FastAPI()
    server.mount("/ett", pages.app)
    empty_tables("dags")
    site = Site(TestClient(server, follow_redirects=False))
    yield site
    for recorder in site.live:
        recorder.close()


@pytest.fixture(scope="session", autouse=True)
def workers_end() -> Iterator[None]:
    yield
    from ett_airflow.ui import pages

    pages.answers.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages wait for their workers, however slow the machine is; what a page says meanwhile has a test of its own."""
    from ett_airflow.ui import pages

    ask = pages.answers.ask
    monkeypatch.setattr(pages.answers, "ask", lambda question: ask(question, 120))
