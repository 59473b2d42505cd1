"""Normalized entropy and AUC against the libraries that others compute them with."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score

from trainer.metrics import QualityAccumulator, quality_of


def predictions(rows: int = 5000, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, generator=generator) * 1.5 - 1
    labels = (torch.rand(rows, generator=generator) < torch.sigmoid(logits * 0.8)).float()
    return logits, labels


def test_quality_is_that_of_the_libraries():
    logits, labels = predictions()
    accumulator = QualityAccumulator()
    for start in range(0, len(logits), 700):
        accumulator.add(logits[start : start + 700], labels[start : start + 700])
    quality = accumulator.quality()
    base = labels.mean().expand(len(labels))
    expected = log_loss(labels, torch.sigmoid(logits)) / log_loss(labels, base)
    assert quality.ne == pytest.approx(expected, rel=1e-5)
    assert quality.auc == pytest.approx(roc_auc_score(labels, logits), abs=2e-4)
    assert (quality.rows, quality.positives) == (len(labels), int(labels.sum()))


def test_ties_count_half():
    accumulator = QualityAccumulator()
    accumulator.add(torch.zeros(4), torch.tensor([0.0, 1.0, 0.0, 1.0]))
    assert accumulator.quality().auc == 0.5


def test_sums_of_ranks_add_up_to_the_whole():
    logits, labels = predictions()
    whole, left, right = QualityAccumulator(), QualityAccumulator(), QualityAccumulator()
    whole.add(logits, labels)
    left.add(logits[:1234], labels[:1234])
    right.add(logits[1234:], labels[1234:])
    merged = quality_of(left.sums + right.sums)
    assert merged.auc == whole.quality().auc
    assert merged.ne == pytest.approx(whole.quality().ne)


@pytest.mark.parametrize("labels", [[], [1.0, 1.0], [0.0]])
def test_one_kind_of_label_has_no_quality_but_a_count(labels: list[float]):
    accumulator = QualityAccumulator()
    accumulator.add(torch.zeros(len(labels)), torch.tensor(labels))
    quality = accumulator.quality()
    assert (quality.ne, quality.auc, quality.rows) == (None, None, len(labels))


def test_an_infinite_logit_spoils_no_bin():
    accumulator = QualityAccumulator()
    accumulator.add(torch.tensor([float("nan"), float("inf"), -float("inf")]), torch.tensor([0.0, 1.0, 0.0]))
    assert accumulator.quality().rows == 3


def test_sums_of_another_release_are_refused():
    with pytest.raises(ValueError, match="this release has"):
        QualityAccumulator().load([0.0, 1.0])
