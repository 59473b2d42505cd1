"""Who may see the pages: every route asks Airflow, and no name leads anywhere but to its own run."""

from __future__ import annotations

import pytest
from starlette.routing import Route

from tests.plugins.ui.site import Site, begun
from trainer.run_folder import RunFolder, runs_root

QUERY = {"dag_id": "shop", "run_id": "one", "task_id": "train", "baseline": "two"}
HOSTILE = "<script>alert(1)</script>"


def routes() -> list[Route]:
    from ett_airflow.ui.pages import app

    assert all(isinstance(route, Route) for route in app.routes), "a mount or websocket that this test does not know"
    return [route for route in app.routes if isinstance(route, Route)]


def addresses() -> list[tuple[str, str]]:
    found = [(route.path.removeprefix("/"), method) for route in routes() for method in sorted(route.methods or ())]
    assert {path for path, _ in found} == {"run", "figures", "report", "task", "compare", "refreshes"}
    return found


def test_every_route_is_behind_a_guard_of_airflow() -> None:
    """Structurally: each depends on Airflow's user, so that a route added without a guard fails here."""
    from airflow.api_fastapi.core_api.security import get_user

    def calls(dependant) -> set[object]:  # type: ignore[no-untyped-def]
        return {dependant.call}.union(*(calls(each) for each in dependant.dependencies))

    for route in routes():
        assert get_user in calls(route.dependant), f"{route.path} has no guard"  # type: ignore[attr-defined]


def test_anonymous_is_refused_everywhere(site: Site) -> None:
    site.refresh("shop")
    site.trained("shop", "one")
    site.trained("shop", "two")
    for path, method in addresses():
        assert site.get(path, user=None, method=method, **QUERY).status_code == 401, path
        assert site.get(path, user=None, method=method).status_code in (401, 404), path
    for unknown in ("", "docs", "redoc", "openapi.json", "static/x", "run/", "../api/v2/dags"):
        assert site.get(unknown, user=None).status_code in (401, 404), unknown


def test_who_has_no_role_sees_no_run_and_an_empty_list(site: Site) -> None:
    site.refresh("shop")
    site.trained("shop", "one")
    for path, method in addresses():
        answer = site.get(path, user="nobody", method=method, **QUERY)
        if path == "refreshes":
            assert answer.status_code == 200
            assert "No refreshes to show" in answer.text
            assert "shop" not in answer.text
        else:
            assert answer.status_code == 403, path


def test_who_may_read_one_dag_sees_only_it(site: Site) -> None:
    for dag_id in ("shop", "secret"):
        site.refresh(dag_id)
        site.trained(dag_id, "one")
        site.trained(dag_id, "two")
    for path, _ in addresses():
        if path == "refreshes":
            listed = site.get(path, user="narrow").text
            assert "shop" in listed
            assert "secret" not in listed
        else:
            assert site.get(path, user="narrow", **QUERY).status_code == 200, path
            assert site.get(path, user="narrow", **QUERY | {"dag_id": "secret"}).status_code == 403, path


@pytest.mark.parametrize("dag_ids", [["~"], [], [""], ["shop", "secret"], ["secret", "shop"], ["~", "shop"]], ids=str)
@pytest.mark.parametrize("user", ["viewer", "narrow"])
def test_a_request_names_exactly_one_dag(site: Site, dag_ids: list[str], user: str) -> None:
    site.refresh("shop")
    site.refresh("secret")
    site.trained("shop", "one")
    site.trained("secret", "one")
    for path, _ in addresses():
        if path != "refreshes":
            answer = site.get(path, user=user, **QUERY | {"dag_id": dag_ids})
            assert answer.status_code in (403, 404), path
            assert "%" not in answer.text.partition("<body>")[2].partition("<script")[0]


@pytest.mark.parametrize(
    "run_id",
    [
        "..",
        "../two",
        "../../registry",
        "..%2ftwo",
        "%2e%2e",
        "two/../one",
        ".hidden",
        "",
        " ",
        HOSTILE,
        "unknown",
        "\0",
    ],
)
def test_a_run_id_that_airflow_does_not_know_leads_nowhere(site: Site, run_id: str) -> None:
    site.refresh("shop")
    site.trained("shop", "one")
    for path, _ in addresses():
        if path == "refreshes":
            continue
        for names in ({"run_id": run_id}, {"baseline": run_id or "x"} if path == "compare" else {"run_id": run_id}):
            answer = site.get(path, **QUERY | names)
            assert answer.status_code == 404, (path, names)
            assert HOSTILE not in answer.text
            assert "no run or task of this name" in answer.text.lower()


def test_a_run_whose_folder_is_a_link_out_of_the_root_is_not_followed(site: Site) -> None:
    site.refresh("shop")
    elsewhere = RunFolder(runs_root().parent / "elsewhere")
    begun(elsewhere, site_day())
    folder = site.run("shop", "one")
    folder.root.parent.mkdir(parents=True)
    folder.root.symlink_to(elsewhere.root)
    assert site.get("run", **QUERY).status_code == 404


def test_of_two_runs_that_share_a_folder_s_name_only_its_owner_is_shown(site: Site) -> None:
    site.refresh("shop")
    folder = site.trained("shop", "a:b")
    (folder.root / "airflow.json").write_text('{"version": 1, "dag_id": "shop", "run_id": "a:b"}')
    site.run("shop", "a_b")
    assert site.get("run", dag_id="shop", run_id="a:b").status_code == 200
    assert site.get("run", dag_id="shop", run_id="a_b").status_code == 404


def test_a_page_below_another_path_is_linked_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from ett_airflow.ui.addresses import from_outside

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.com/airflow/")
    assert from_outside("run", "dag_id=a") == "/airflow/ett/run?dag_id=a"
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://127.0.0.1:8080")
    assert from_outside("refreshes") == "/ett/refreshes"


def site_day():  # type: ignore[no-untyped-def]
    from tests.plugins.ui.site import DAY

    return DAY
