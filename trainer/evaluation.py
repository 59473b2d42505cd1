"""Predictions on the holdout: the run's quality, and the reference that a snapshot is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from trainer.attempt import Rank
from trainer.checkpoint import reference_table
from trainer.columns import Contract
from trainer.dpp.batch import to_tensors
from trainer.dpp.cursor import Interval
from trainer.dpp.decode import HostBatch
from trainer.dpp.errors import DppError
from trainer.dpp.plan import ReadPlan
from trainer.dpp.reader import PartitionReader, read_holdout
from trainer.metrics import Quality, QualityAccumulator, quality_of
from trainer.model.trainee import Trainee
from trainer.padding import padded
from trainer.ranks import shared_data_failure

EVALUATION_ROWS = 2048  # per rank and batch: no gradients, so larger than a training batch


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Quality over all ranks' rows, and this rank's part of the reference."""

    quality: Quality
    reference: pa.Table


def evaluate_holdout(
    trainee: Trainee,
    plan: ReadPlan,
    contract: Contract,
    *,
    keys: Sequence[str],
    place: Rank,
    device: torch.device,
    control: dist.ProcessGroup,
    progressed: Callable[[], None],
) -> Evaluation:
    """Predict every holdout row once. Collective: ranks take the same number of batches, the last ones may be empty.

    `progressed` is called after every batch.

    Raises:
        DppError: a rank's data failed; every rank raises.
    """
    accumulator = QualityAccumulator(device)
    rows: list[Interval] = []
    labels: list[NDArray[np.float32]] = []
    logits: list[NDArray[np.float32]] = []
    trainee.dmp.eval()
    with read_holdout(
        plan, contract, rank=place.rank, world_size=place.world_size, batch_size=EVALUATION_ROWS
    ) as reader:
        while (host := _next_of_all(reader, control)) is not None:
            largest = torch.tensor(host.rows)
            dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=control)
            batch = to_tensors(padded(host, int(largest), keys=len(keys)), keys, device)
            predicted = trainee.predict(batch)
            accumulator.add(predicted, batch.labels)
            rows.extend(host.consumed)
            labels.append(host.labels)
            logits.append(predicted.float().cpu().numpy())
            progressed()
    trainee.dmp.train()
    sums = accumulator.sums.cpu()
    dist.all_reduce(sums, group=control)
    reference = reference_table(rows=rows, labels=_joined(labels), logits=_joined(logits))
    return Evaluation(quality=quality_of(sums), reference=reference)


def _next_of_all(reader: PartitionReader, control: dist.ProcessGroup) -> HostBatch | None:
    """This rank's next batch; None at the end, which all ranks reach together. Collective.

    Raises:
        DppError: a rank's data failed; every rank raises.
    """
    batch, failure = None, None
    try:
        batch = next(reader, None)
    except DppError as error:
        failure = error
    failed = torch.tensor(int(failure is not None))
    dist.all_reduce(failed, group=control)
    if failed:
        raise shared_data_failure(failure, control)
    return batch


def _joined(parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.float32)
