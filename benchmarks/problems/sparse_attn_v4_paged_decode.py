"""Sparse paged decode of 128 heads of width 512: bfloat16 slots, or FP8 codes with a scale for 64 columns."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.problems import Function, Problem, by_name, from_upstream

HEADS, WIDTH, GROUP = 128, 512, 64
SLOTS = 65_536
SIZES = ((1, 512), (8, 1152), (32, 2048), (128, 1152), (512, 2048))
"""(tokens, slots that each of them reads)"""


def build(generator: torch.Generator, *, tokens: int, length: int, fp8: bool) -> dict[str, Any]:
    """Queries and pool of half the unit normal, slots drawn at random."""
    device = generator.device

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device) * 0.5

    pool, scales = normal(SLOTS, WIDTH), None
    if fp8:
        groups = pool.view(SLOTS, WIDTH // GROUP, GROUP)
        scales = groups.abs().amax(-1) / 448
        pool = (groups / scales.unsqueeze(-1)).clamp(-448, 448).view(SLOTS, WIDTH)
    return {
        "q": normal(tokens, HEADS, WIDTH).to(torch.bfloat16),
        "unified_kv": pool.to(torch.float8_e4m3fn if fp8 else torch.bfloat16),
        "kv_indices": torch.randint(
            SLOTS, (tokens * length,), generator=generator, device=device, dtype=torch.int32
        ),
        "kv_indptr": torch.arange(tokens + 1, device=device, dtype=torch.int32) * length,
        "attn_sink": normal(HEADS),
        "softmax_scale": WIDTH**-0.5,
        "kv_scales": scales,
    }


def ours() -> Function:
    """Our kernels, without the checks in front of them."""
    from kernels.sparse_attn_v4_paged_decode.launch import launch

    return by_name(launch)


def upstream() -> Function:
    """Upstream's public function."""
    decode = from_upstream(
        "sglang.kernels.ops.attention.dsv4.unified_kv_kernels.paged_decode", "sparse_attn_v4_paged_decode"
    )
    return by_name(decode)


def _all() -> Iterator[Problem]:
    for fp8 in (False, True):
        slot = WIDTH + WIDTH // GROUP * 4 if fp8 else WIDTH * 2
        for tokens, length in SIZES:
            yield Problem(
                operation="sparse_attn_v4_paged_decode",
                size=f"{'FP8' if fp8 else 'bfloat16'}, T={tokens}, L={length}",
                build=partial(build, tokens=tokens, length=length, fp8=fp8),
                ours=ours,
                upstream=upstream,
                moved=2 * tokens * HEADS * WIDTH * 2
                + min(tokens * length, SLOTS) * slot
                + tokens * length * 4,
                flops=4 * tokens * HEADS * length * WIDTH,
            )


PROBLEMS = tuple(_all())
