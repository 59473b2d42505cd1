"""The stack's settings: which database, which addresses, and what of it jobs may see."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ett_airflow.stack.database import Database, DatabaseError
from ett_airflow.stack.settings import Addresses, StackHome, airflow_environment

URL = "postgresql+psycopg2://airflow:s3cret@db.example.com:5432/airflow"


@pytest.fixture
def stack(tmp_path: Path) -> StackHome:
    return StackHome(tmp_path / "airflow").create()


def environment(stack: StackHome, **base: str) -> dict[str, str]:
    return airflow_environment(stack, Addresses.configured(), Database.configured(stack.root), base)


def test_without_a_url_the_database_is_a_file_of_the_stack(monkeypatch: pytest.MonkeyPatch, stack: StackHome) -> None:
    monkeypatch.delenv("ETT_DATABASE_URL", raising=False)
    assert Database.configured(stack.root).url == f"sqlite:///{stack.root}/airflow.db"


def test_one_variable_puts_airflow_on_postgres_and_jobs_do_not_inherit_it(
    monkeypatch: pytest.MonkeyPatch, stack: StackHome
) -> None:
    monkeypatch.setenv("ETT_DATABASE_URL", URL)
    given = environment(stack, ETT_DATABASE_URL=URL, KEPT="yes")
    assert given["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == URL
    assert given["KEPT"] == "yes"
    # The launcher strips Airflow's own variables from jobs, and nothing else holds the password.
    assert [name for name, value in given.items() if "s3cret" in value] == ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]


def test_a_url_without_a_driver_gets_one(monkeypatch: pytest.MonkeyPatch, stack: StackHome) -> None:
    monkeypatch.setenv("ETT_DATABASE_URL", URL.replace("+psycopg2", ""))
    assert Database.configured(stack.root).url == URL


@pytest.mark.parametrize(
    "url", ["mysql://u:s3cret@h/db", "postgres://u:s3cret@h/db", "postgresql://u:s3cret@h:5432", "postgresql:s3cret"]
)
def test_what_is_no_postgres_database_is_refused_without_telling_its_password(
    monkeypatch: pytest.MonkeyPatch, stack: StackHome, url: str
) -> None:
    monkeypatch.setenv("ETT_DATABASE_URL", url)
    with pytest.raises(DatabaseError, match="ETT_DATABASE_URL") as caught:
        Database.configured(stack.root)
    assert "s3cret" not in str(caught.value)


def test_a_database_is_shown_without_its_password() -> None:
    database = Database(URL)
    assert database.shown == "postgresql+psycopg2://airflow:***@db.example.com:5432/airflow"
    assert "s3cret" not in repr(database)


def test_containers_name_where_the_api_listens_is_reached_and_is_seen(
    monkeypatch: pytest.MonkeyPatch, stack: StackHome
) -> None:
    monkeypatch.delenv("ETT_DATABASE_URL", raising=False)
    monkeypatch.setenv("ETT_API_HOST", "0.0.0.0")
    monkeypatch.setenv("ETT_API_URL", "http://api-server:8080/")
    monkeypatch.setenv("ETT_PUBLIC_URL", "https://airflow.example.com")
    given = environment(stack)
    assert given["AIRFLOW__API__HOST"] == "0.0.0.0"
    assert given["AIRFLOW__API__BASE_URL"] == "https://airflow.example.com"
    assert given["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://api-server:8080/execution/"
    reader = json.loads(given["AIRFLOW_CONN_ETT_AIRFLOW_API"])
    assert (reader["host"], reader["port"]) == ("api-server", 8080)
    assert "api-server" in given["NO_PROXY"].split(",")


def test_by_default_nothing_listens_beyond_this_machine(monkeypatch: pytest.MonkeyPatch, stack: StackHome) -> None:
    for name in ("ETT_API_HOST", "ETT_API_URL", "ETT_API_PORT", "ETT_PUBLIC_URL", "ETT_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    given = environment(stack)
    assert given["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert given["AIRFLOW__API__BASE_URL"] == "http://127.0.0.1:8080"
