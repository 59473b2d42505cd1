"""The JSON Schema of ett.json, derived from the dataclasses that it is written from.

`python -m ett_reports.report_schema` prints it; the published copy is `ett_reports/schema/report-1.json`.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from enum import Enum
from fractions import Fraction
from typing import Any

from ett_reports.advice import Answer
from ett_reports.document import DOCUMENT_VERSION, KIND
from ett_reports.report import REPORT_VERSION, JobReport, RefreshReport
from ett_reports.slo import Judgement

FILE_NAME = f"report-{DOCUMENT_VERSION}.json"

Schema = dict[str, Any]
_RATIO: Schema = {"type": ["number", "null"]}


def report_schema() -> Schema:
    """Draft 2020-12. Further properties are allowed everywhere: a minor addition must not break a reader."""
    definitions: dict[str, Schema] = {}
    extra = {"ett": _RATIO, "held_ett": _RATIO, "gpu_hours_lost": _RATIO}
    job = _report(JobReport, "job_report", extra, definitions)
    refresh = _report(RefreshReport, "refresh_report", {}, definitions)
    properties = {
        "kind": {"const": KIND},
        "version": {"const": DOCUMENT_VERSION},
        "title": {"type": "string"},
        "answer": _of(Answer, definitions),
        "job": job,
        "refresh": {"anyOf": [refresh, {"type": "null"}]},
        "judgement": _of(Judgement, definitions),
        "spec": {"type": "object"},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ETT report of one run (ett.json)",
        "description": "Durations and instants are integer ns; a job's instants count from its first submission.",
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "$defs": dict(sorted(definitions.items())),
    }


def _report(kind: type, name: str, extra: dict[str, Schema], definitions: dict[str, Schema]) -> Schema:
    _of(kind, definitions)
    own = definitions[kind.__name__]
    own["properties"] = {"kind": {"const": name}, "version": {"const": REPORT_VERSION}, **extra, **own["properties"]}
    own["required"] = ["kind", "version", *extra, *own["required"]]
    return {"$ref": f"#/$defs/{kind.__name__}"}


_PLAIN: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    Fraction: {"type": "string", "pattern": r"^-?[0-9]+(/[0-9]+)?$", "description": "an exact fraction"},
    type(None): {"type": "null"},
    Any: {},
}


def _of(kind: Any, definitions: dict[str, Schema]) -> Schema:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_of(argument, definitions) for argument in arguments]}
    if origin is tuple:
        return {"type": "array", "items": _of(arguments[0], definitions)}
    if origin is dict:
        return _mapping(arguments[0], _of(arguments[1], definitions))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    return _dataclass(kind, definitions)


def _mapping(key: Any, value: Schema) -> Schema:
    if isinstance(key, type) and issubclass(key, Enum):
        return {"type": "object", "propertyNames": {"enum": [m.value for m in key]}, "additionalProperties": value}
    return {"type": "object", "additionalProperties": value}


def _dataclass(kind: Any, definitions: dict[str, Schema]) -> Schema:
    name = kind.__name__
    if name not in definitions:
        definitions[name] = {}
        hints = typing.get_type_hints(kind)
        fields = [field.name for field in dataclasses.fields(kind)]
        definitions[name] = {
            "description": " ".join((kind.__doc__ or "").split()),
            "type": "object",
            "properties": {field: _of(hints[field], definitions) for field in fields},
            "required": fields,
        }
    return {"$ref": f"#/$defs/{name}"}


def dumps() -> str:
    """The published text."""
    return json.dumps(report_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(dumps(), end="")
