"""A resume continues exactly: the same bits on the same ranks, every value on another sharding plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import resume_ranks as ranks
import torch

from tests.rank_processes import run_ranks
from trainer.model.sharding import DenseBuckets

pytestmark = [pytest.mark.integration]


def differing(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> list[str]:
    assert left.keys() == right.keys()
    return [name for name in left if not torch.equal(left[name], right[name])]


def test_three_ranks_resume_to_the_same_bits_where_gradients_keep_their_layout(tmp_path: Path) -> None:
    """With the layout rebuilt after the first step, a resumed step would add three ranks up in another order."""
    whole = run_ranks(3, ranks.undisturbed, tmp_path, "table_wise", DenseBuckets.FIXED)[0]
    resumed = run_ranks(3, ranks.resumed, tmp_path, "table_wise", DenseBuckets.FIXED)[0]
    assert differing(resumed["loaded"], whole["saved"]) == []
    assert differing(resumed["end"], whole["end"]) == []


@pytest.mark.parametrize(("kind", "onto"), [("table_wise", "row_wise"), ("row_wise", "table_wise")])
def test_another_sharding_plan_loads_every_value_and_goes_on_with_the_schedule(
    tmp_path: Path, kind: str, onto: str
) -> None:
    whole = run_ranks(2, ranks.undisturbed, tmp_path, kind, DenseBuckets.REBUILT)[0]
    resumed: dict[str, Any] = run_ranks(2, ranks.resumed, tmp_path, onto, DenseBuckets.REBUILT)[0]
    assert {name.split(".")[0] for name in whole["saved"]} == {
        "model",
        "dense_optimizer",
        "sparse_optimizer",
        "schedule",
    }
    assert differing(resumed["loaded"], whole["saved"]) == []
    for name, tensor in whole["end"].items():
        torch.testing.assert_close(resumed["end"][name], tensor, rtol=1e-4, atol=1e-6)
    assert resumed["rates"] == whole["rates"][ranks.SAVED_AT :]


def test_both_rates_warm_up_in_a_line_and_then_stay(tmp_path: Path) -> None:
    rates = run_ranks(1, ranks.undisturbed, tmp_path, "table_wise", DenseBuckets.REBUILT)[0]["rates"]
    for step, (dense, sparse) in enumerate(rates):
        share = min(1.0, (step + 1) / ranks.WARMUP)
        assert dense == pytest.approx(0.05 * share)
        assert sparse == pytest.approx(0.1 * share)
