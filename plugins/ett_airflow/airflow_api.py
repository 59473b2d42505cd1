"""Airflow's REST API, as far as the control plane reads it: tokens, runs and tries."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any

PAGE = 100


class AirflowApiError(RuntimeError):
    """Airflow's API cannot be used; the message says what was asked and what came back."""

    def __init__(self, what: str, reason: str, status: int | None = None) -> None:
        super().__init__(f"{what}: {reason}")
        self.status = status


@dataclass
class AirflowApi:
    """A client of one Airflow. `url` is its root, e.g. `http://127.0.0.1:8080`."""

    url: str
    user: str
    password: str = field(repr=False)
    timeout_s: float = 20.0
    _token: str | None = field(default=None, repr=False)

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """GET below `/api/v2`.

        Raises:
            AirflowApiError: no answer, or one that is no success.
        """
        suffix = f"?{urllib.parse.urlencode(query, doseq=True)}" if query else ""
        return self._authorized("GET", f"/api/v2{path}{suffix}")

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._authorized("POST", f"/api/v2{path}", body)

    def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._authorized("PATCH", f"/api/v2{path}", body)

    @property
    def token(self) -> str:
        """The session's token; signs in if there is none yet."""
        if self._token is None:
            self._sign_in()
        assert self._token is not None
        return self._token

    def health(self) -> dict[str, Any]:
        """State of the components; needs no token."""
        return self._call("GET", "/api/v2/monitor/health")

    def execution_health(self) -> dict[str, Any]:
        """Whether the API that tasks speak to is well; needs no token. The first call builds it."""
        return self._call("GET", "/execution/health")

    def dag_run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        return self.get(f"/dags/{_quoted(dag_id)}/dagRuns/{_quoted(run_id)}")

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        found = self.get(f"/dags/{_quoted(dag_id)}/dagRuns/{_quoted(run_id)}/taskInstances", limit=PAGE)
        return list(found["task_instances"])

    def tries(self, dag_id: str, run_id: str, task_id: str) -> list[dict[str, Any]]:
        """Every try of one task, with the stamps that Airflow kept of it."""
        path = f"/dags/{_quoted(dag_id)}/dagRuns/{_quoted(run_id)}/taskInstances/{_quoted(task_id)}/tries"
        return list(self.get(path)["task_instances"])

    def _authorized(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        if self._token is None:
            self._sign_in()
        try:
            return self._call(method, path, body)
        except AirflowApiError as error:
            if error.status != 401:
                raise
        self._sign_in()  # tokens expire during a long refresh
        return self._call(method, path, body)

    def _sign_in(self) -> None:
        self._token = None
        credentials = {"username": self.user, "password": self.password}
        self._token = str(self._call("POST", "/auth/token", credentials)["access_token"])

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url.rstrip("/") + path, data=data, headers=headers, method=method)
        what = f"{method} {self.url}{path.partition('?')[0]}"
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            detail = error.read(2000).decode(errors="replace")
            raise AirflowApiError(what, f"HTTP {error.code}: {detail}", error.code) from None
        except (OSError, ValueError) as error:
            raise AirflowApiError(what, f"no usable answer: {error}") from None


def _quoted(part: str) -> str:
    return urllib.parse.quote(part, safe="")
