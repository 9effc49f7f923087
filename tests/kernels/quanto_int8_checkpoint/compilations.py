"""What the linear compiles for a target: each kind of plan, on two architectures in each activation type."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernels.offline import OVERLAPPING, SHARED_MEMORY, Variant
from kernels.quanto_int8_checkpoint import launch
from kernels.quanto_int8_checkpoint.plan import choose_plan


def variants(target: str) -> Iterator[tuple[str, Variant]]:
    """(name, compilation)"""
    sizes = [(torch.bfloat16, 64), (torch.float16, 1024)]
    if target in ("sm90", "gfx950"):
        sizes += [
            (torch.bfloat16, 1),
            (torch.bfloat16, 16),
            (torch.float16, 127),
            (torch.float32, 1),
            (torch.float32, 64),
        ]
    for dtype, tokens in sizes:
        plan = choose_plan(tokens, 4096, 4096, dtype.itemsize, SHARED_MEMORY[target])
        for name, variant in launch.variants(dtype, plan, pdl=target in OVERLAPPING).items():
            yield f"{name}, {dtype}, {tokens} tokens", variant
