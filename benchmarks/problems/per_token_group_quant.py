"""Group quantisation of bfloat16 rows of 7168 in groups of 128 to fp8 codes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.problems import Function, Problem, by_name, from_upstream

HIDDEN, GROUP_SIZE = 7168, 128
GROUPS = HIDDEN // GROUP_SIZE
TOKENS = (1, 128, 1024, 8192, 65_536)


def build(generator: torch.Generator, *, tokens: int, packed: bool) -> dict[str, Any]:
    """Normal rows; float32 scales row-major, or packed exponents column-major."""
    device = generator.device
    words = GROUPS // 4 if packed else GROUPS
    strides = (1, -(-tokens // 4) * 4) if packed else (words, 1)
    return {
        "input": torch.randn(tokens, HIDDEN, generator=generator, device=device, dtype=torch.bfloat16),
        "output_q": torch.empty(tokens, HIDDEN, dtype=torch.float8_e4m3fn, device=device),
        "output_s": torch.empty_strided(
            (tokens, words), strides, dtype=torch.int32 if packed else torch.float32, device=device
        ),
        "group_size": GROUP_SIZE,
        "scale_ue8m0": packed,
    }


def ours() -> Function:
    """Our kernel, without the checks in front of it."""
    from kernels.per_token_group_quant.kernel import launch

    return by_name(launch)


def upstream() -> Function:
    """Upstream's public function."""
    quantize = from_upstream("sglang.kernels.ops.quantization.per_token_group_quant", "per_token_group_quant")
    return by_name(quantize)


def _all() -> Iterator[Problem]:
    for packed, layout in ((False, "float32 row-major"), (True, "UE8M0 column-major")):
        for tokens in TOKENS:
            yield Problem(
                operation="per_token_group_quant",
                size=f"{layout}, T={tokens}",
                build=partial(build, tokens=tokens, packed=packed),
                ours=ours,
                upstream=upstream,
                moved=tokens * (HIDDEN * 3 + GROUPS * (1 if packed else 4)),
                outputs=("output_q", "output_s"),
            )


PROBLEMS = tuple(_all())
