"""The fused interaction computes what the reference does, as far as that can be seen without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from triton_process import run_with_triton

from trainer.kernels.configs import Kernel

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2}
"""Relative to the largest value: the reference itself rounds to these dtypes on its way."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    found = run_with_triton("interpreted_interaction.py", cache=tmp_path_factory.mktemp("triton"))
    assert found["interpreted"]
    return found


def test_output_and_gradients_are_the_references(seen: Any) -> None:
    assert len(seen["cases"]) == 10
    wrong = {
        f"{what} of {name}": error
        for name, errors in seen["cases"].items()
        for what, error in errors.items()
        if not error <= TOLERANCE.get(name, 1e-6)
    }
    assert not wrong


def test_an_expanded_gradient_is_read_by_its_strides(seen: Any) -> None:
    assert seen["summed gradient"] <= 1e-6


@pytest.mark.parametrize(
    ("case", "told"),
    [
        (
            "batches differ",
            "dense [3, 8] float32 on cpu and embedded [4, 2, 8] float32 on cpu: B and E must be the same",
        ),
        ("widths differ", "B and E must be the same"),
        ("no feature dimension", "expected dense [B, E] and embedded [B, F, E]"),
        ("no features", "the kernel takes 1 to 127 features"),
        ("too many features", "the kernel takes 1 to 127 features"),
        ("dtypes differ", "the same dtype"),
        ("no kernel for the dtype", "one of torch.float32, torch.bfloat16, torch.float16"),
        ("devices differ", "on one device"),
    ],
)
def test_inputs_that_do_not_go_together_are_refused(seen: Any, case: str, told: str) -> None:
    assert told in seen["wrong"][case]


def test_every_configuration_computes_the_same(seen: Any) -> None:
    assert len(seen["configurations"]) == 18
    assert [name for name, right in seen["configurations"].items() if not right] == []


def test_tuning_does_not_take_a_kernel_that_computes_something_else(seen: Any) -> None:
    assert seen["broken kernel is noticed"]


def test_a_search_times_every_configuration_of_each_kernel(seen: Any) -> None:
    assert seen["searched"].pop("timed") == 4
    assert max(seen["searched"].values()) <= 1e-6


def test_the_module_takes_the_kernel_for_tensors_of_a_gpu(seen: Any) -> None:
    assert seen["as module"] <= 1e-6


@pytest.mark.parametrize("source", ["committed", "searched"])
def test_the_compiler_sees_the_kernels_and_what_they_write(tmp_path: Path, source: str) -> None:
    traced = run_with_triton("traced_interaction.py", source, cache=tmp_path)
    forward, backward = traced["graphs"]
    # What is not in this graph is not in AOTAutograd's key either.
    (plan,) = traced["plans"]
    assert len(plan.split()[0]) == 16
    assert plan.split()[1:] == ["searched"] or [part.split("=")[0] for part in plan.split()[1:]] == list(Kernel)
    assert ("searched" in plan) == (source == "searched")
    # What a graph does not know to be read only it copies before the kernel, at every step.
    assert (forward["written"], backward["written"]) == ([["crossed"]], [["grad_dense", "grad_embedded"]])
    for graph in (forward, backward):
        assert graph["batch"][0].startswith("s"), "the batch became a constant: the next size compiles anew"
        assert not graph["grid"][0].isdigit()


@pytest.mark.parametrize("shape", [("16", "32", "float32"), ("32", "64", "float32"), ("32", "128", "bfloat16")])
def test_committed_configurations_fit_real_gpus(tmp_path: Path, shape: tuple[str, str, str]) -> None:
    built = run_with_triton("built_interaction.py", *shape, cache=tmp_path)
    assert {(one["kernel"], one["capability"]) for one in built} == {
        (f"interaction_{kernel}", capability) for kernel in ("forward", "backward") for capability in (80, 90)
    }
    for one in built:
        assert one["spilled_bytes"] == 0, one
        assert one["resident"] >= 2, one
