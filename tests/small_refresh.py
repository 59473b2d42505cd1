"""The refresh that trainer and chaos tests train: small enough for seconds, with every kind of column."""

from __future__ import annotations

from typing import Any

from trainer.spec import RefreshSpec


def small_spec(name: str = "small", **sections: dict[str, Any]) -> RefreshSpec:
    """A refresh of a few tables; `sections` override fields by section."""

    def sparse(column: str, **rest: Any) -> dict[str, Any]:
        return {"name": column, "num_embeddings": 2000, "hashing": "splitmix64", **rest}

    columns = [
        {"name": "label", "type": "float32", "role": "label"},
        {"name": "event_time", "type": "timestamp[us, tz=UTC]", "role": "event_time"},
        {"name": "household_id", "type": "int64", "role": "entity"},
        {"name": "days_since_visit", "type": "float32", "role": "dense", "min": 0, "max": 400, "transform": "log1p"},
        {"name": "basket_size", "type": "float32", "role": "dense", "min": 0, "max": 50},
        sparse("product_id", type="int64", role="categorical"),
        sparse("store_id", type="int64", role="categorical"),
        sparse("recent", type="list<element: int64 not null>", role="jagged", max_length=8, table="product_id"),
    ]
    document: dict[str, Any] = {
        "version": 1,
        "name": name,
        "data": {"root": "unused", "holdout": {"fraction": 0.1, "salt": 3}},
        "contract": {"columns": columns},
        "model": {"embedding_dim": 8, "dense_arch": [16, 8], "over_arch": [16, 8]},
        "training": {"batch_size": 32, "dense_learning_rate": 0.003, "sparse_learning_rate": 0.05, "seed": 11},
        "checkpoint": {"interval_s": 1000, "keep": 3},
        "resources": {"ranks": 2, "device": "cpu"},
    }
    for section, values in sections.items():
        document[section] = {**document.get(section, {}), **values}
    return RefreshSpec.model_validate(document)
