"""A refresh whose spec cannot be read: an import error of that file alone, beside the other DAGs."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from airflow.sdk import DAG

from trainer.spec import SpecError


class BrokenRefresh(DAG):
    """Stands in for the DAG of a broken spec until Airflow serializes it, and fails there.

    Airflow knows one outcome per Python file: a DAG file that raises loses all its DAGs, and an error filed under
    its name marks them stale. An error raised while one DAG is serialized concerns that DAG alone, and is filed under
    the path that the DAG names: here the spec's.
    """

    def __init__(self, spec_path: Path, error: SpecError) -> None:
        self._spec_path = spec_path
        self._error = error
        super().__init__(dag_id=f"broken.{spec_path.stem}", schedule=None)

    @property
    def relative_fileloc(self) -> str:
        return f"{self._spec_path.parent.name}/{self._spec_path.name}"

    @relative_fileloc.setter
    def relative_fileloc(self, _: str | None) -> None:
        """Airflow names the DAG file here after import; the fault is not in that."""

    def get_serialized_fields(self) -> NoReturn:  # type: ignore[override]  # each instance has its own error
        raise self._error
