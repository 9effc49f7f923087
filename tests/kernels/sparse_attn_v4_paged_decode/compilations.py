"""What the decode compiles for a target: the portable kernel everywhere, Hopper's own on sm90."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernels.offline import SHARED_MEMORY, Variant
from kernels.sparse_attn_v4_paged_decode.launch import join_variant, variant

REFUSED = {
    (target, "codes"): "type fp8e4nv not supported in this architecture"
    for target in ("sm70", "sm75", "sm80", "sm86")
}
"""(target, name) → words of the compiler."""


def variants(target: str) -> Iterator[tuple[str, Variant]]:
    """(name, compilation)"""
    shared = SHARED_MEMORY[target]
    yield "rows", variant(torch.bfloat16, fp8=False, shared_bytes=shared)
    yield "codes", variant(torch.bfloat16, fp8=True, shared_bytes=shared)
    yield "joining", join_variant(torch.bfloat16)
    if target not in ("sm90", "gfx950"):
        return
    yield (
        "split rows of width 448",
        variant(torch.float16, fp8=False, shared_bytes=shared, width=448, splits=4, heads=40),
    )
    yield "rows of width 1024", variant(torch.bfloat16, fp8=False, shared_bytes=shared, width=1024)
    if target == "sm90":
        for fp8 in (False, True):
            for splits, width in ((1, 512), (4, 448)):
                yield (
                    f"Hopper, {'codes' if fp8 else 'rows'}, {width}, {splits}",
                    variant(
                        torch.bfloat16, fp8=fp8, shared_bytes=shared, splits=splits, width=width, hopper=True
                    ),
                )
