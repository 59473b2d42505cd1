"""Makes the batches of one step equally large on every rank: the exchange of pooled embeddings wants equal shapes.

Shares differ by a row, so at the end of a stream a rank's batch is a row shorter, or empty. With the technique
`fixed_batch` every step has the full batch size, the last of a stream too, so that no size varies for the compiler. The
rows added have no ids, and their logits are cut off before anything is computed from them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainer.dpp.decode import HostBatch


def padded(batch: HostBatch, rows: int, *, keys: int) -> HostBatch:
    """`batch` of `keys` sparse keys, filled up to `rows` with zeros and no ids; its `rows` and `labels` stay.

    Raises:
        ValueError: it has more rows than that.
    """
    missing = rows - batch.rows
    if missing < 0:
        raise ValueError(f"a batch of {batch.rows} rows cannot be padded to {rows}")
    if not missing:
        return batch
    lengths = batch.lengths.reshape(keys, batch.rows)
    return replace(
        batch,
        dense=np.concatenate([batch.dense, np.zeros((missing, batch.dense.shape[1]), dtype=np.float32)]),
        lengths=np.pad(lengths, ((0, 0), (0, missing))).reshape(-1),
    )
