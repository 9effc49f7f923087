"""What a call of per_token_group_quant compiles."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.live import torch_dtype
from kernels.offline import OVERLAPPING, Variant
from kernels.per_token_group_quant.kernel import variant
from kernels.per_token_group_quant.signature import QuantCall


def variants(call: QuantCall, target: str) -> Iterator[tuple[str, Variant]]:
    """(kernel, compilation) of a call that passes its checks."""
    whole = call.allocated()
    rows = whole.codes.numel // max(whole.codes.shape[-1], 1)
    if not rows or not whole.groups:
        return
    yield (
        "per_token_group_quant_kernel",
        variant(
            torch_dtype(whole.input.dtype),
            torch_dtype(whole.codes.dtype),
            rows=rows,
            groups=whole.groups,
            group_size=whole.group_size,
            scale_ue8m0=whole.scale_ue8m0,
            fuse_silu_and_mul=whole.fuse_silu_and_mul,
            silu_and_mul_mode=whole.silu_and_mul_mode,
            masked=whole.masked,
            pdl=target in OVERLAPPING,
        ),
    )
