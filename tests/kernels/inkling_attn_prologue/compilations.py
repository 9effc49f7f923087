"""What the prologues compile for a target: each kernel everywhere, its options on two architectures."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.inkling_attn_prologue.launch import variant
from kernels.offline import OVERLAPPING, Variant

REFUSED = {
    (target, "verify, MXFP8"): "type fp8e4nv not supported in this architecture"
    for target in ("sm70", "sm75", "sm80", "sm86")
}
"""(target, name) → words of the compiler."""

MOST_SHARED = 4096
"""Bytes of shared memory; more would mean that rows left the registers."""


def variants(target: str) -> Iterator[tuple[str, Variant]]:
    """(name, compilation)"""
    pdl = target in OVERLAPPING
    yield "decode", variant("decode", tokens=2048, pdl=pdl)
    yield "verify, MXFP8", variant("verify", tokens=64, mxfp8=True, pdl=pdl)
    yield "extend", variant("extend", tokens=4096, pdl=pdl)
    yield "state", variant("state", tokens=4096, track=True, pdl=pdl)
    if target not in ("sm90", "gfx950"):
        return
    yield "verify", variant("verify", tokens=64, pdl=pdl)
    yield "extend, MXFP8", variant("extend", tokens=4096, mxfp8=True, pdl=pdl)
    yield (
        "decode of one head, tracked, with tau and SiLU",
        variant("decode", tokens=1, q_heads=3, heads=1, silu=True, track=True, tau=True, mxfp8=True),
    )
    yield "extend of three taps", variant("extend", tokens=5, q_heads=5, heads=2, taps=3, packed=False)
