"""What a call of sparse_attn_v4_paged_decode compiles."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.live import torch_dtype
from kernels.offline import SHARED_MEMORY, Variant
from kernels.sparse_attn_v4_paged_decode.launch import join_variant, variant
from kernels.sparse_attn_v4_paged_decode.launches import splits
from kernels.sparse_attn_v4_paged_decode.signature import SparseCall


def variants(call: SparseCall, target: str) -> Iterator[tuple[str, Variant]]:
    """(kernel, compilation) of a call that passes its checks; on sm90 the kernel written for it."""
    tokens, heads, width = call.q.shape
    if not tokens or not heads:
        return
    used = splits(call)
    dtype = torch_dtype(call.q.dtype)
    yield (
        "paged_decode_kernel",
        variant(
            dtype,
            fp8=call.kv_scales is not None,
            shared_bytes=SHARED_MEMORY[target],
            tokens=tokens,
            heads=heads,
            width=width,
            splits=used,
            hopper=target == "sm90",
        ),
    )
    if used > 1:
        yield "join_splits_kernel", join_variant(dtype, width=width, splits=used)
