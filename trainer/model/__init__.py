"""The model: architectures, how they are built from a spec, and how they are sharded over ranks."""

from trainer.model.factory import ModelFactoryError, build_model

__all__ = ["ModelFactoryError", "build_model"]
