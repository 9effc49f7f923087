"""What the quantisation compiles for a target: its formats on two architectures, two of them everywhere."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernels.offline import OVERLAPPING, Variant
from kernels.per_token_group_quant import kernel

FP8, INT8 = torch.float8_e4m3fn, torch.int8
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

MOST_SHARED = 4096
"""Bytes of shared memory; more would mean that data left the registers."""

REFUSED = {
    ("sm70", "ue8m0"): "type fp8e4nv not supported in this architecture",
    ("sm75", "ue8m0"): "type fp8e4nv not supported in this architecture",
    ("sm80", "ue8m0"): "type fp8e4nv not supported in this architecture",
    ("sm86", "ue8m0"): "type fp8e4nv not supported in this architecture",
}
"""(target, name) → words of the compiler."""


def variants(target: str) -> Iterator[tuple[str, Variant]]:
    """(name, compilation)"""
    pdl = target in OVERLAPPING
    yield "ue8m0", kernel.variant(FP16, FP8, rows=4096, groups=56, scale_ue8m0=True, pdl=pdl)
    yield "int8, group 256", kernel.variant(BF16, INT8, rows=3, groups=4, group_size=256, pdl=pdl)
    if target not in ("sm90", "gfx950"):
        return
    yield "fp32 scales", kernel.variant(BF16, FP8, rows=4096, groups=56, pdl=pdl)
    yield (
        "float32 input, group 16",
        kernel.variant(FP32, FP8, rows=64, groups=5, group_size=16, scale_ue8m0=True),
    )
    silu = {"rows": 4096, "groups": 56, "fuse_silu_and_mul": True}
    yield "masked silu", kernel.variant(BF16, FP8, scale_ue8m0=True, masked=True, **silu)
    yield "dense silu", kernel.variant(BF16, FP8, silu_and_mul_mode="dense", **silu)
