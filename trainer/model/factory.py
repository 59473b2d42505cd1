"""Finds the model factory that a spec names and builds the model with it."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trainer.spec import RefreshSpec

ModelFactory = Callable[..., nn.Module]

_DRAWING = threading.Lock()  # factories draw from the process's one generator


class ModelFactoryError(Exception):
    """A model factory that cannot be used; says which part of `package.module:function` is at fault and what to do.

    Attributes:
        factory: what the spec names.
    """

    def __init__(self, factory: str, message: str) -> None:
        super().__init__(f"model.factory {factory!r}: {message}")
        self.factory = factory


def load_factory(name: str) -> ModelFactory:
    """The function behind `package.module:function`.

    Raises:
        ModelFactoryError: no such module, an error while importing it, no such function.
    """
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ModelFactoryError(name, f"no module named {error.name!r}; install it beside the trainer") from error
    except Exception as error:
        raise ModelFactoryError(name, f"importing {module_name} failed: {type(error).__name__}: {error}") from error
    factory: Any = getattr(module, function_name, None)
    if factory is None:
        raise ModelFactoryError(name, f"{module_name} has no {function_name!r}; it is one of {_functions(module)}?")
    if not callable(factory):
        raise ModelFactoryError(name, f"{function_name} is a {type(factory).__name__}, not a function")
    loaded: ModelFactory = factory
    return loaded


def build_model(spec: RefreshSpec, *, device: str | torch.device = "meta") -> nn.Module:
    """The unsharded model, taking `(dense [B, D], sparse KeyedJaggedTensor)` to logits `[B]`.

    `device` is where the embedding tables are: `meta` (the default) leaves them without storage until they are sharded.
    All other parameters are on the CPU, drawn from `training.seed`, so that every rank starts from the same ones. Two
    models may be built at once, but nothing may be compiled meanwhile: Dynamo sets the generator back when it is done.

    Raises:
        ModelFactoryError: the factory is missing, failed, or returned something else than a module.
    """
    name = spec.model.factory
    factory = load_factory(name)
    with _DRAWING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.training.seed)
        try:
            model = factory(spec, device=torch.device(device))
        except Exception as error:
            raise ModelFactoryError(name, f"it raised {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ModelFactoryError(name, f"it returned a {type(model).__name__}; return a torch.nn.Module")
    return model


def _functions(module: Any) -> str:
    local = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    return ", ".join(sorted(local)) or "none"
