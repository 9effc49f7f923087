"""Live arguments of sparse_attn_v4_paged_decode on any device, and what counts as close to the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import torch
from torch import Tensor

from kernels.dtypes import DType
from kernels.running import compare
from kernels.sparse_attn_v4_paged_decode import reference
from kernels.sparse_attn_v4_paged_decode.op import tolerance
from kernels.sparse_attn_v4_paged_decode.signature import VALID

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@dataclass
class Problem:
    """Live arguments of one call."""

    q: Tensor
    unified_kv: Tensor
    kv_indices: Tensor
    kv_indptr: Tensor
    attn_sink: Tensor
    softmax_scale: float
    kv_scales: Tensor | None = None

    def to(self, device: str) -> Problem:
        """The same problem on another device."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Problem(**{n: v.to(device) if isinstance(v, Tensor) else v for n, v in values.items()})

    def run(self, mode: reference.Mode = "kernel") -> Tensor:
        return reference.decode(**vars(self), mode=mode)


def problem(
    lengths: Sequence[int],
    heads: int = 16,
    width: int = 128,
    slots: int = 8,
    dtype: torch.dtype = BF16,
    *,
    fp8: bool = False,
    seed: int = 0,
) -> Problem:
    """Queries and pool of half the unit normal, slots drawn at random."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.5

    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    indices = torch.randint(0, slots, (int(starts[-1]),), generator=generator, dtype=torch.int32)
    pool, scales = normal(slots, width), None
    if fp8:
        groups = pool.view(slots, width // 64, 64)
        scales = groups.abs().amax(-1) / 448
        pool = (groups / scales.unsqueeze(-1)).clamp(-448, 448).reshape(slots, width)
    return Problem(
        normal(len(lengths), heads, width).to(dtype),
        pool.to(torch.float8_e4m3fn if fp8 else dtype),
        indices,
        starts,
        torch.randn(heads, generator=generator),
        width**-0.5,
        scales,
    )


def mixed_magnitudes(p: Problem) -> Tensor:
    """Σ pⱼ·|kⱼ| over the slots of each token, [T, H, D] float32: what rounded weights are a share of."""
    mixed = []
    for token, (start, stop) in enumerate(pairwise(p.kv_indptr.tolist())):
        rows = p.unified_kv[p.kv_indices[start:stop].long()].float()
        scores = p.q[token].float() @ rows.T * p.softmax_scale
        sink = p.attn_sink[: scores.shape[0], None].float()
        weights = torch.softmax(torch.cat((scores, sink), 1), 1)[:, :-1]
        mixed.append(weights @ rows.abs())
    return torch.stack(mixed)


def close(actual: Tensor, expected: Tensor) -> None:
    spec = VALID.with_dtype("q", DType.F16 if actual.dtype is FP16 else DType.BF16)
    comparison = compare("out", actual, expected.to(actual.dtype), tolerance("out", spec))
    assert comparison.within, comparison
