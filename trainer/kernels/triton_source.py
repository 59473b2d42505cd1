# mypy: allow-untyped-defs
"""Triton source of the fused pairwise interaction.

Nothing but kernels: Inductor copies their source into what it generates, so parameters carry no annotations of ours.
A program computes `ROWS` rows of the batch. `NODES` is the dense row and the features, `BLOCK_N` is that rounded up.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def stacked(
    dense,
    embedded,
    row,
    n,
    e,
    inside,
    dense_b,
    dense_e,
    embedded_b,
    embedded_f,
    embedded_e,
):
    """Columns `e` of the dense row (node 0) above the embedded features (nodes 1 to F), zero where not `inside`."""
    top = (n == 0)[:, None]
    dense_at = dense + row * dense_b + (n * 0)[:, None] + (e * dense_e)[None, :]
    embedded_at = embedded + row * embedded_b + ((n - 1) * embedded_f)[:, None] + (e * embedded_e)[None, :]
    first = tl.load(dense_at, mask=inside & top, other=0.0)
    rest = tl.load(embedded_at, mask=inside & (n > 0)[:, None], other=0.0)
    return tl.where(top, first, rest)


@triton.jit
def interaction_forward(
    dense,
    embedded,
    crossed,
    batch,
    dense_b,
    dense_e,
    embedded_b,
    embedded_f,
    embedded_e,
    NODES: tl.constexpr,  # noqa: N803 - constants are upper case in Triton
    WIDTH: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    TF32: tl.constexpr,  # noqa: N803
    BLOCK_E: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
):
    """`crossed` `[B, WIDTH + NODES * (NODES - 1) / 2]`, contiguous: dense, then the upper triangle row by row."""
    n = tl.arange(0, BLOCK_N)
    i, j = n[:, None], n[None, :]
    place = WIDTH + i * NODES - i * (i + 1) // 2 + j - i - 1
    out_b: tl.constexpr = WIDTH + NODES * (NODES - 1) // 2
    for step in range(ROWS):
        row = tl.program_id(0).to(tl.int64) * ROWS + step
        products = tl.zeros((BLOCK_N, BLOCK_N), dtype=tl.float32)
        for start in range(0, WIDTH, BLOCK_E):
            e = start + tl.arange(0, BLOCK_E)
            inside = (row < batch) & (n < NODES)[:, None] & (e < WIDTH)[None, :]
            x = stacked(dense, embedded, row, n, e, inside, dense_b, dense_e, embedded_b, embedded_f, embedded_e)
            products = tl.dot(x, tl.trans(x), products, input_precision="tf32" if TF32 else "ieee")
            tl.store(crossed + row * out_b + (n * 0)[:, None] + e[None, :], x, mask=inside & (n == 0)[:, None])
        kept = (row < batch) & (i < j) & (j < NODES)
        tl.store(crossed + row * out_b + place, products.to(crossed.dtype.element_ty), mask=kept)


@triton.jit
def interaction_backward(
    grad,
    dense,
    embedded,
    grad_dense,
    grad_embedded,
    batch,
    grad_b,
    grad_p,
    dense_b,
    dense_e,
    embedded_b,
    embedded_f,
    embedded_e,
    NODES: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    TF32: tl.constexpr,  # noqa: N803
    BLOCK_E: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
):
    """The gradients, contiguous: every node gets its partners, each weighed by the gradient of their product."""
    n = tl.arange(0, BLOCK_N)
    i, j = n[:, None], n[None, :]
    low, high = tl.minimum(i, j), tl.maximum(i, j)
    place = WIDTH + low * NODES - low * (low + 1) // 2 + high - low - 1
    for step in range(ROWS):
        row = tl.program_id(0).to(tl.int64) * ROWS + step
        paired = (row < batch) & (i != j) & (high < NODES)
        weights = tl.load(grad + row * grad_b + place * grad_p, mask=paired, other=0.0)
        for start in range(0, WIDTH, BLOCK_E):
            e = start + tl.arange(0, BLOCK_E)
            inside = (row < batch) & (n < NODES)[:, None] & (e < WIDTH)[None, :]
            top = inside & (n == 0)[:, None]
            x = stacked(dense, embedded, row, n, e, inside, dense_b, dense_e, embedded_b, embedded_f, embedded_e)
            passed_on = tl.load(grad + row * grad_b + (n * 0)[:, None] + (e * grad_p)[None, :], mask=top, other=0.0)
            learned = tl.dot(weights, x, passed_on.to(tl.float32), input_precision="tf32" if TF32 else "ieee")
            tl.store(
                grad_dense + row * WIDTH + (n * 0)[:, None] + e[None, :],
                learned.to(grad_dense.dtype.element_ty),
                mask=top,
            )
            tl.store(
                grad_embedded + row * (NODES - 1) * WIDTH + ((n - 1) * WIDTH)[:, None] + e[None, :],
                learned.to(grad_embedded.dtype.element_ty),
                mask=inside & (n > 0)[:, None],
            )
