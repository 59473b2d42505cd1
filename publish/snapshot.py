"""The inference snapshot: a folder that says all it takes to score with it, and holds plain tensors, no code."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import pydantic
import torch
from torch import nn

from publish.errors import SnapshotError
from trainer.checkpoint.durable import FileRecord, HashedFile, check_content, seal, unseal, write_atomically
from trainer.checkpoint.errors import CheckpointError
from trainer.checkpoint.manifest import Lineage
from trainer.model.factory import build_model
from trainer.spec import RefreshSpec

MANIFEST_NAME = "manifest.json"
MODEL_NAME = "model.pt"
FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """The anchor checkpoint that a snapshot was made from. `save_id` is unique to the save."""

    path: str
    save_id: str
    step: int
    cursor: int


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """What validation found over the holdout: AUC, rows, and the largest |probability - the trainer's probability|."""

    holdout_auc: float
    holdout_rows: int
    max_prediction_difference: float


@dataclass(frozen=True, kw_only=True)
class SnapshotManifest:
    """What a snapshot is. `metrics` is None until it has passed validation; only then is it registered."""

    version: str
    lineage: Lineage
    anchor: Anchor
    spec: RefreshSpec
    files: Mapping[str, FileRecord]
    metrics: Metrics | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    created_unix_ns: int = field(default_factory=time.time_ns)

    def write(self, folder: Path) -> None:
        """Write it into the snapshot's folder, over an earlier one, in one step."""
        document = {
            "snapshot": self.version,
            "lineage": asdict(self.lineage),
            "anchor": asdict(self.anchor),
            "spec": self.spec.model_dump(mode="json", exclude_none=True),
            "files": {name: asdict(record) for name, record in self.files.items()},
            "metrics": asdict(self.metrics) if self.metrics else None,
            "versions": dict(self.versions),
            "created_unix_ns": self.created_unix_ns,
        }
        write_atomically(folder / MANIFEST_NAME, seal(document, version=FORMAT_VERSION))

    @classmethod
    def read(cls, folder: Path) -> SnapshotManifest:
        """Raises SnapshotError: no snapshot, damaged, or of another version."""
        path = folder / MANIFEST_NAME
        if not path.is_file():
            raise SnapshotError(folder, f"is no snapshot: it has no {MANIFEST_NAME}")
        try:
            return cls._from_document(unseal(path, version=FORMAT_VERSION))
        except CheckpointError as error:
            raise SnapshotError(path, f"{error}. Publish the run again") from None
        except (KeyError, TypeError, ValueError, pydantic.ValidationError) as error:
            raise SnapshotError(path, f"is damaged ({type(error).__name__}: {error}); publish the run again") from None

    @classmethod
    def _from_document(cls, document: dict[str, Any]) -> SnapshotManifest:
        lineage = {**document["lineage"], "window": tuple(document["lineage"]["window"])}
        return cls(
            version=document["snapshot"],
            lineage=Lineage(**lineage),
            anchor=Anchor(**document["anchor"]),
            spec=RefreshSpec.model_validate(document["spec"]),
            files={name: FileRecord(**record) for name, record in document["files"].items()},
            metrics=Metrics(**document["metrics"]) if document["metrics"] else None,
            versions=document["versions"],
            created_unix_ns=document["created_unix_ns"],
        )


def write_snapshot(
    folder: Path, module: nn.Module, *, version: str, lineage: Lineage, anchor: Anchor, spec: RefreshSpec
) -> None:
    """Write the model and the manifest, not yet validated, into a new folder."""
    tensors = {name: tensor.detach().contiguous() for name, tensor in module.state_dict().items()}
    with HashedFile(folder / MODEL_NAME) as stream:
        torch.save(tensors, cast(IO[bytes], stream))
    SnapshotManifest(
        version=version,
        lineage=lineage,
        anchor=anchor,
        spec=spec,
        files={MODEL_NAME: stream.record()},
        versions={"torch": torch.__version__},
    ).write(folder)


def verify_snapshot(folder: Path) -> SnapshotManifest:
    """The manifest, once every file has the size and the SHA-256 that it says.

    Raises:
        SnapshotError: names the first file that has not.
    """
    manifest = SnapshotManifest.read(folder)
    for name, record in manifest.files.items():
        try:
            check_content(folder / name, record)
        except CheckpointError as error:
            raise SnapshotError(folder / name, f"{error}. Publish the run again") from None
    return manifest


def load_model(folder: Path) -> nn.Module:
    """The snapshot's model on the CPU, ready to predict: `(dense, sparse) -> logits`.

    Raises:
        SnapshotError: damaged, or its tensors are not those of the model that its spec describes.
    """
    manifest = verify_snapshot(folder)
    module = build_model(manifest.spec, device="cpu")
    tensors = torch.load(folder / MODEL_NAME, weights_only=True, mmap=True)
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        raise SnapshotError(
            folder, f"its tensors are not those of {manifest.spec.model.factory}: {error}; has the code changed?"
        ) from None
    return module.eval()
