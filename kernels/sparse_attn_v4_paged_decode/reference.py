"""Sparse paged decode attention in plain torch: the numbers the kernel must produce, on any device.

Symbols: T tokens, H heads, D head width, P pool slots, L slots that one token reads. Any strides. Float32
throughout, except where the kernel rounds on purpose; README.md here says where that is.
"""

from __future__ import annotations

from math import e, log2
from typing import Literal

import torch
from torch import Tensor

Mode = Literal["kernel", "doc"]

GROUP = 64  # pool columns that share one scale
LOG2E = log2(e)
LOWEST = torch.finfo(torch.float32).min  # the kernel's maximum of no scores
SMALLEST_SUM = 1e-30  # keeps the division finite where every weight underflowed


def decode(
    q: Tensor,
    unified_kv: Tensor,
    kv_indices: Tensor,
    kv_indptr: Tensor,
    attn_sink: Tensor,
    softmax_scale: float,
    kv_scales: Tensor | None = None,
    *,
    mode: Mode = "kernel",
) -> Tensor:
    """Attention of every token over its own slots: [T, H, D] in q's dtype and memory order.

    q            [T, H, D] bfloat16 or float16
    unified_kv   [P, D]: key and value at once; q's dtype, or float8_e4m3fn with kv_scales
    kv_indices   [N] int32 or int64, slots; other integers as well
    kv_indptr    [T + 1] int32 or int64: token t reads kv_indices[kv_indptr[t]:kv_indptr[t + 1]]
    attn_sink    [H] or longer, natural-log units
    kv_scales    [P, D / 64] float32
    mode         how FP8 slots are dequantised: "kernel" as the kernel does, "doc" as its comments say

    A span outside kv_indices, a slot outside the pool, or a pool of another width raises torch's or Python's
    own error: nothing is read elsewhere.
    """
    tokens, heads, width = q.shape
    out = torch.empty_like(q)
    sink = attn_sink.flatten()[:heads].view(heads).float() * LOG2E
    starts, listed = kv_indptr.tolist(), kv_indices.long()  # the kernel takes integers of any width
    for token in range(tokens):
        start, stop = starts[token], starts[token + 1]
        if stop <= start:
            out[token] = 0
            continue
        place = torch.arange(start, stop, device=listed.device)
        slots = listed.index_select(0, place)
        rows = _gather(unified_kv, slots, width)
        if kv_scales is not None:
            rows = dequantize(rows, kv_scales.index_select(0, slots), q.dtype, mode)
        out[token] = _attend(q[token].float(), rows.float(), sink, float(softmax_scale))
    return out


def dequantize(codes: Tensor, scales: Tensor, dtype: torch.dtype, mode: Mode = "kernel") -> Tensor:
    """FP8 rows [L, D] times their scales [L, D / 64], as `dtype`.

    The kernel rounds each scale to `dtype` before it multiplies, and the product again; its comments describe
    one rounding of a float32 product.
    """
    spread = scales.repeat_interleave(GROUP, dim=-1)
    if mode == "doc":
        return (codes.float() * spread).to(dtype)
    return codes.to(dtype) * spread.to(dtype)


def _gather(pool: Tensor, slots: Tensor, width: int) -> Tensor:
    """Rows of the pool, [L, D]; index_select refuses a slot outside it, which indexing would wrap."""
    held = pool.view(torch.uint8) if pool.dtype.itemsize == 1 else pool
    rows = held.index_select(0, slots).view(pool.dtype)
    length, _ = rows.shape  # a pool of other dimensions ends here
    return rows.view(length, width)


def _attend(q: Tensor, rows: Tensor, sink: Tensor, scale: float) -> Tensor:
    """[H, D] float32 from q [H, D], rows [L, D] and sink [H], the latter in log2 units.

    The sink is one more key whose value is zero. Where the sum is not positive, which includes NaN, the
    result is zero: a NaN anywhere in a head's scores silences that head.
    """
    scores = (q @ rows.T) * (scale * LOG2E)
    highest = scores.amax(-1).clamp_min(LOWEST)
    weights = torch.exp2(scores - highest.unsqueeze(-1))
    total, mixed = weights.sum(-1), weights @ rows

    joint = torch.fmax(highest, sink)
    kept = torch.exp2(highest - joint)
    total = total * kept + torch.exp2(sink - joint)
    mixed = mixed * kept.unsqueeze(-1) / total.clamp_min(SMALLEST_SUM).unsqueeze(-1)
    return torch.where((total > 0).unsqueeze(-1), mixed, 0.0)
