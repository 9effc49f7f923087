"""What upstream launches for a call of sparse_attn_v4_paged_decode: how many splits, and whether it compiles.

The number of splits, and of the joining step's programs, is counted from the multiprocessors: those of an
H200, where the outcomes were seen.
"""

from __future__ import annotations

from typing import Any

from kernels.dtypes import DType, Kind
from kernels.sparse_attn_v4_paged_decode.signature import SparseCall

MULTIPROCESSORS = 132
"""Of an H200."""

PROGRAMS_A_MULTIPROCESSOR = 2
MOST_SPLITS_CHOSEN = 64
HEADS_A_BLOCK = (16, 64)
"""Fewest and most heads that one program computes."""

NARROWEST = 9
"""Fewest columns a head that compile: the matrix product takes 16, to which 9 are rounded up."""

SLOTS_A_TILE, FP8_SLOTS_A_TILE = 16, 32
"""Slots that upstream's kernels take at a time, without scales and with them."""

OF_AMD = (DType.F8_E4M3FNUZ, DType.F8_E5M2FNUZ)
"""Types that Triton compiles for AMD's GPUs alone."""

UNKNOWN_TO_TRITON = (DType.F8_E8M0, DType.C64, DType.C128, DType.F4, DType.F6_E2M3, DType.F6_E3M2)


def next_power_of_two(count: int) -> int:
    """The smallest power of two that is not below `count`; 1 for less than 1."""
    return 1 << max(count - 1, 0).bit_length()


def previous_power_of_two(count: int) -> int:
    """The largest power of two that is not above `count`; 1 for less than 1."""
    return 1 << max(count.bit_length() - 1, 0) if count > 0 else 1


def padded_heads(heads: int) -> int:
    """Heads in whole blocks, for which partial results are allocated."""
    block = _head_block(heads)
    return -(-heads // block) * block


def splits(call: SparseCall) -> Any:
    """kv_splits, or what upstream chooses from tokens and heads on an H200."""
    if call.kv_splits is not None:
        return call.kv_splits
    tokens, heads, _ = call.q.shape
    programs = max(1, tokens * max(1, padded_heads(heads) // _head_block(heads)))
    wanted = PROGRAMS_A_MULTIPROCESSOR * MULTIPROCESSORS // programs
    return previous_power_of_two(min(wanted, MOST_SPLITS_CHOSEN))


def _head_block(heads: int) -> int:
    fewest, most = HEADS_A_BLOCK
    return max(fewest, next_power_of_two(min(heads, most)))


def tile(call: SparseCall) -> int:
    """Slots that a program takes at a time."""
    return SLOTS_A_TILE if call.kv_scales is None else FP8_SLOTS_A_TILE


def holds_step(call: SparseCall) -> bool:
    """Whether kv_indptr's type holds a tile of slots in every split, which is computed in that type."""
    dtype, used = call.kv_indptr.dtype, splits(call)
    if dtype.kind is not Kind.INT or not isinstance(used, int) or used <= 1:
        return True
    signed = dtype in (DType.I8, DType.I16, DType.I32, DType.I64)
    return used * tile(call) < 1 << (dtype.bits - signed)


def knows_sink(call: SparseCall) -> bool:
    """Whether Triton has attn_sink's type."""
    nvidia = call.target is None or call.target.capability is not None
    dtype = call.attn_sink.dtype
    return dtype not in UNKNOWN_TO_TRITON and not (nvidia and dtype in OF_AMD)


def converts_pool(call: SparseCall) -> bool:
    """Whether the target, where one is stated, converts an FP8 pool."""
    return call.kv_scales is None or call.target is None or call.target.compiles_e4m3


def compiles(call: SparseCall) -> bool:
    """Whether the first kernel compiles: the only one, or the one that computes the splits."""
    lists = (call.kv_indices, call.kv_indptr)
    if any(tensor.dtype.kind not in (Kind.INT, Kind.BOOL) for tensor in lists) or not converts_pool(call):
        return False
    if call.q.ndim != 3:
        return True  # what its sizes say is not asked
    fused = splits(call) == 1
    return call.q.shape[-1] >= NARROWEST and holds_step(call) and (not fused or knows_sink(call))


def joining_compiles(call: SparseCall) -> bool:
    """Whether the kernel that joins the splits compiles; with one split there is none."""
    used = splits(call)
    if not isinstance(used, int) or used == 1:
        return True
    return used == previous_power_of_two(used) and knows_sink(call)
