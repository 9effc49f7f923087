"""Sparse paged decode for Hopper in Gluon: warps with roles, so that gathers, softmax and products overlap.

A program owns one token, 64 heads and one split of the token's slots, which it walks in tiles of 32 slots.
Four groups of four warps share the work and pass it on through barriers in shared memory:

    gathering   rows of the pool → a ring of tiles; codes are dequantised on the way
    scoring     Q · Kᵀ and the softmax of a tile: its weights, and the factor by which older sums shrink
    mixing      two groups, each weights · K for half of the columns, held in registers

The product of the next tile's scores runs while the weights of this one are computed, and the mixing of a
tile beside both. Where a tile's maximum is not much above the old one the old one stays, so that sums seldom
have to shrink. Otherwise the numbers are those of kernel.py; `plan.fits_hopper` says what can be read.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kernels.sparse_attn_v4_paged_decode.hopper_gather import gather, synchronise
from kernels.sparse_attn_v4_paged_decode.plan import Plan
from kernels.sparse_attn_v4_paged_decode.reference import GROUP, LOG2E, LOWEST, SMALLEST_SUM

_LOWEST = gl.constexpr(LOWEST)
_LOG2E = gl.constexpr(LOG2E)
_SMALLEST_SUM = gl.constexpr(SMALLEST_SUM)
_GROUP = gl.constexpr(GROUP)
# Weights may reach this power of two before the maximum is renewed: no harm to sums or to float16 weights.
_SLACK = gl.constexpr(8.0)


@gluon.jit
def _dot_keys(left_query, right_query, keys, nothing):
    """Queries times keysᵀ, started; the queries' left half in registers, the right one in shared memory."""
    HALF: gl.constexpr = keys.shape[1] // 2
    running = warpgroup_mma(
        left_query, keys.slice(0, HALF, 1).permute((1, 0)), nothing, use_acc=False, is_async=True
    )
    return warpgroup_mma(right_query, keys.slice(HALF, HALF, 1).permute((1, 0)), running, is_async=True)


@gluon.jit
def _score(
    queries, sink_ptr, partials, qk_scale, span, head_block, right_query, ring_state, exchange,
    D: gl.constexpr, SPLITS: gl.constexpr,
):  # fmt: skip
    """Scores and weights of every tile, [64, ROWS]; at the end what the sums are worth."""
    q_ptr, heads, head_stride = queries
    first, last = span
    ring, full, _ = ring_state
    weights, shrinks, ends, given, taken = exchange
    BUFFERS: gl.constexpr = ring.shape[0]
    ROWS: gl.constexpr = ring.shape[1]
    HALF: gl.constexpr = ring.shape[2] // 2
    TURNS: gl.constexpr = weights.shape[0]
    BLOCK_H: gl.constexpr = weights.shape[1]
    loaded: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    product: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    by_head: gl.constexpr = gl.SliceLayout(1, product)

    row = head_block * BLOCK_H + gl.arange(0, BLOCK_H, gl.SliceLayout(1, loaded))
    column = gl.arange(0, HALF, gl.SliceLayout(0, loaded))
    source = q_ptr + (row.to(gl.int64) * head_stride)[:, None] + column[None, :]
    right_query.store(gl.load(source, mask=(row < heads)[:, None] & (column < D)[None, :], other=0.0))
    synchronise()
    left_query = right_query.load(gl.DotOperandLayout(0, product, 2))
    synchronise()
    right = gl.load(source + HALF, mask=(row < heads)[:, None] & (HALF + column < D)[None, :], other=0.0)
    right_query.store(right)
    fence_async_shared()
    synchronise()

    place = gl.arange(0, ROWS, gl.SliceLayout(0, product))
    highest = gl.full([BLOCK_H], _LOWEST, gl.float32, by_head)
    total = gl.full([BLOCK_H], 0.0, gl.float32, by_head)
    nothing = gl.full([BLOCK_H, ROWS], 0.0, gl.float32, product)
    tiles = gl.cdiv(last - first, ROWS)
    mbarrier.wait(full.index(0), 0)
    fence_async_shared()
    scored = warpgroup_mma_wait(0, [_dot_keys(left_query, right_query, ring.index(0), nothing)])
    for tile in range(tiles):
        # Past the last tile this reads an old one, and nobody looks at the result.
        following = tile + 1
        mbarrier.wait(full.index(following % BUFFERS), (following // BUFFERS) & 1, pred=following < tiles)
        fence_async_shared()
        running = _dot_keys(left_query, right_query, ring.index(following % BUFFERS), nothing)

        present = first + tile * ROWS + place < last
        scores = gl.where(present[None, :], scored * qk_scale, _LOWEST)
        # max and maximum return the operand that is not NaN: a NaN ends in `weight` and in `total`.
        higher = gl.maximum(highest, gl.max(scores, axis=1))
        higher = gl.where(higher - highest > _SLACK, higher, highest)
        shrink = gl.exp2(highest - higher)
        weight = gl.exp2(scores - higher[:, None])
        total = total * shrink + gl.sum(weight, axis=1)
        highest = higher
        turn = tile % TURNS
        mbarrier.wait(taken.index(turn), ((tile // TURNS) & 1) ^ 1)
        weights.index(turn).store(weight.to(weights.dtype))
        shrinks.index(turn).store(shrink)
        fence_async_shared()
        synchronise()
        mbarrier.arrive(given.index(turn), count=1)
        scored = warpgroup_mma_wait(0, [running])

    head = head_block * BLOCK_H + gl.arange(0, BLOCK_H, by_head)
    if SPLITS > 1:
        highest_ptr, total_ptr = partials
        gl.store(highest_ptr + head, highest)
        gl.store(total_ptr + head, total)
    else:
        sink = gl.load(sink_ptr + head, mask=head < heads, other=0.0).to(gl.float32) * _LOG2E
        joint = gl.maximum(highest, sink)
        kept = gl.exp2(highest - joint)
        total = total * kept + gl.exp2(sink - joint)
        # Where the sum is not positive, NaN included, the head's output is zero: NaN tells so.
        worth = gl.where(total > 0, kept / gl.maximum(total, _SMALLEST_SUM), float("nan"))
        ends.store(worth)
        synchronise()
        mbarrier.arrive(given.index(TURNS), count=1)


@gluon.jit
def _mix(
    target, mixed_ptr, span, head_block, ring_state, exchange, PIECE: gl.constexpr, D: gl.constexpr,
    SPLITS: gl.constexpr,
):  # fmt: skip
    """Weights times half of the columns of every tile, [64, HALF] float32 in registers."""
    out_ptr, heads, head_stride = target
    first, last = span
    ring, _, empty = ring_state
    weights, shrinks, ends, given, taken = exchange
    BUFFERS: gl.constexpr = ring.shape[0]
    ROWS: gl.constexpr = ring.shape[1]
    HALF: gl.constexpr = ring.shape[2] // 2
    TURNS: gl.constexpr = weights.shape[0]
    BLOCK_H: gl.constexpr = weights.shape[1]
    WIDTH: gl.constexpr = 128 if HALF > 128 else HALF  # noqa: FURB136 (traced)
    product: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    by_head: gl.constexpr = gl.SliceLayout(1, product)
    # Every warp holds all of it: their minimum then needs no word between warps.
    everywhere: gl.constexpr = gl.BlockedLayout([BLOCK_H // 32], [32], [4], [0])
    nothing = gl.full([BLOCK_H, HALF], 0.0, gl.float32, product)

    mbarrier.wait(given.index(0), 0)
    fence_async_shared()
    values = ring.index(0).slice(PIECE * HALF, HALF, 1)
    running = warpgroup_mma(weights.index(0), values, nothing, use_acc=False, is_async=True)
    for tile in range(1, gl.cdiv(last - first, ROWS)):
        turn = tile % TURNS
        mbarrier.wait(given.index(turn), (tile // TURNS) & 1)
        fence_async_shared()
        least = gl.min(shrinks.index(turn).load(everywhere), axis=0)
        # The tile before was mixed until here, beside the wait for the weights of this one.
        mixed = warpgroup_mma_wait(0, [running])
        synchronise()
        mbarrier.arrive(taken.index((tile - 1) % TURNS), count=1)
        mbarrier.arrive(empty.index((tile - 1) % BUFFERS), count=1)
        if least < 1:
            mixed = mixed * shrinks.index(turn).load(by_head)[:, None]
        values = ring.index(tile % BUFFERS).slice(PIECE * HALF, HALF, 1)
        running = warpgroup_mma(weights.index(turn), values, mixed, is_async=True)
    mixed = warpgroup_mma_wait(0, [running])

    head = head_block * BLOCK_H + gl.arange(0, BLOCK_H, by_head)
    column = PIECE * HALF + gl.arange(0, HALF, gl.SliceLayout(0, product))
    inside = (head < heads)[:, None] & (column < D)[None, :]
    if SPLITS > 1:
        gl.store(mixed_ptr + (head * D)[:, None] + column[None, :], mixed, mask=inside)
    else:
        mbarrier.wait(given.index(TURNS), 0)
        worth = ends.load(by_head)[:, None]
        result = gl.where(worth == worth, mixed * worth, 0.0)
        place = (head.to(gl.int64) * head_stride)[:, None] + column[None, :]
        gl.store(out_ptr + place, result.to(out_ptr.dtype.element_ty), mask=inside)


@gluon.jit
def _silence(target, head_block, D: gl.constexpr, BLOCK_D: gl.constexpr, BLOCK_H: gl.constexpr):
    """Zeros for a token without slots."""
    out_ptr, heads, head_stride = target
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    head = head_block * BLOCK_H + gl.arange(0, BLOCK_H, gl.SliceLayout(1, layout))
    column = gl.arange(0, BLOCK_D, gl.SliceLayout(0, layout))
    place = (head.to(gl.int64) * head_stride)[:, None] + column[None, :]
    zeros = gl.full([BLOCK_H, BLOCK_D], 0.0, out_ptr.dtype.element_ty, layout)
    gl.store(out_ptr + place, zeros, mask=(head < heads)[:, None] & (column < D)[None, :])


@gluon.jit(do_not_specialize=["heads"])
def hopper_decode_kernel(
    q_ptr,
    pool_ptr,
    scales_ptr,
    indices_ptr,
    indptr_ptr,
    sink_ptr,
    out_ptr,
    highest_ptr,
    total_ptr,
    mixed_ptr,
    qk_scale,
    heads,
    q_token_stride,
    q_head_stride,
    pool_row_stride,
    scales_row_stride,
    scales_column_stride,
    out_token_stride,
    out_head_stride,
    D: gl.constexpr,
    BLOCK_D: gl.constexpr,
    BLOCK_H: gl.constexpr,
    ROWS: gl.constexpr,
    HEAD_BLOCKS: gl.constexpr,
    SPLITS: gl.constexpr,
    FP8: gl.constexpr,
    BUFFERS: gl.constexpr,
    TURNS: gl.constexpr,
    AHEAD: gl.constexpr,
    PART: gl.constexpr,
    MIX_REGISTERS: gl.constexpr,
    GATHER_REGISTERS: gl.constexpr,
):
    """One token, BLOCK_H heads, one split; strides in elements, grid (T · SPLITS · HEAD_BLOCKS).

    It is launched with the four scoring warps; the other twelve join here.
    """
    query_type: gl.constexpr = q_ptr.dtype.element_ty
    program = gl.program_id(0)
    head_block = program % HEAD_BLOCKS
    split = (program // HEAD_BLOCKS) % SPLITS
    token = (program // (HEAD_BLOCKS * SPLITS)).to(gl.int64)
    start = gl.load(indptr_ptr + token).to(gl.int64)
    length = (gl.load(indptr_ptr + token + 1).to(gl.int64) - start).to(gl.int32)
    share = gl.cdiv(length, SPLITS * ROWS) * ROWS
    first = split * share
    last = gl.minimum(first + share, length)
    out_row = out_ptr + token * out_token_stride
    if first >= last:
        if SPLITS == 1:
            _silence((out_row, heads, out_head_stride), head_block, D, BLOCK_D, BLOCK_H)
        return

    tile: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    narrow: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=2 * ROWS, element_bitwidth=16, rank=2)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    ring = gl.allocate_shared_memory(query_type, [BUFFERS, ROWS, BLOCK_D], tile)
    right_query = gl.allocate_shared_memory(query_type, [BLOCK_H, BLOCK_D // 2], tile)
    weights = gl.allocate_shared_memory(query_type, [TURNS, BLOCK_H, ROWS], narrow)
    shrinks = gl.allocate_shared_memory(gl.float32, [TURNS, BLOCK_H], plain)
    ends = gl.allocate_shared_memory(gl.float32, [BLOCK_H], plain)
    full = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], barrier)
    empty = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], barrier)
    given = gl.allocate_shared_memory(gl.int64, [TURNS + 1, 1], barrier)
    taken = gl.allocate_shared_memory(gl.int64, [TURNS, 1], barrier)
    for buffer in gl.static_range(BUFFERS):
        # A copy reports from each of its lanes when it ends, a dequantised tile once.
        mbarrier.init(full.index(buffer), count=1 if FP8 else 128)
        mbarrier.init(empty.index(buffer), count=2)
    for turn in gl.static_range(TURNS):
        mbarrier.init(given.index(turn), count=1)
        mbarrier.init(taken.index(turn), count=2)
    mbarrier.init(given.index(TURNS), count=1)
    synchronise()

    plain_rows: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    if FP8:
        codes = gl.allocate_shared_memory(gl.uint8, [AHEAD + 1, ROWS, BLOCK_D], plain_rows)
        factors = gl.allocate_shared_memory(gl.float32, [AHEAD + 1, ROWS, BLOCK_D // _GROUP], plain_rows)
        staging = (codes, factors)
    else:  # tuples that nothing reads
        staging = (ring, ring)
    if SPLITS > 1:
        partial = (token * SPLITS + split) * HEAD_BLOCKS * BLOCK_H
        partials = (highest_ptr + partial, total_ptr + partial)
        mixed_row = mixed_ptr + partial * D
    else:
        partials = (sink_ptr, sink_ptr)
        mixed_row = out_row

    queries = (q_ptr + token * q_token_stride, heads, q_head_stride)
    pool = (pool_ptr, pool_row_stride)
    scales = (scales_ptr, scales_row_stride, scales_column_stride)
    target = (out_row, heads, out_head_stride)
    span = (first, last)
    listed = indices_ptr + start
    ring_state = (ring, full, empty)
    exchange = (weights, shrinks, ends, given, taken)
    # Constants are written in place: kept in a tuple's variable they would turn into run-time values.
    gl.warp_specialize(
        [
            (_score, (
                queries, sink_ptr, partials, qk_scale, span, head_block, right_query, ring_state, exchange,
                D, SPLITS,
            )),
            (_mix, (target, mixed_row, span, head_block, ring_state, exchange, 0, D, SPLITS)),
            (_mix, (target, mixed_row, span, head_block, ring_state, exchange, 1, D, SPLITS)),
            (gather, (pool, scales, listed, span, ring_state, staging, D, PART, FP8)),
        ],
        [4, 4, 4],
        [MIX_REGISTERS, MIX_REGISTERS, GATHER_REGISTERS],
    )  # fmt: skip


def constants(chosen: Plan, width: int, *, fp8: bool) -> dict[str, int]:
    """The switches of hopper_decode_kernel in its order; how they were found is in docs/measurements.md.

    The registers of the four groups of warps add up to 512 a lane at most: scoring has what is left.
    """
    return {
        "D": width,
        "BLOCK_D": chosen.block_d,
        "BLOCK_H": chosen.block_h,
        "ROWS": chosen.block_k,
        "HEAD_BLOCKS": chosen.head_blocks,
        "SPLITS": chosen.splits,
        "FP8": fp8,
        "BUFFERS": 4 if fp8 else 5,
        "TURNS": 2,
        "AHEAD": 1,
        "PART": 16,
        "MIX_REGISTERS": 160,
        "GATHER_REGISTERS": 48 if fp8 else 24,
    }
