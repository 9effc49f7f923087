"""Sparse paged decode in Triton: gathered rows of the pool are key and value at once, so each is read once.

A program owns one token, a block of heads and one split of the token's slots: it walks the slots in tiles,
with the softmax kept online. Several splits leave float32 partials, which a second kernel joins; it serves
the kernel of hopper.py too.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.sparse_attn_v4_paged_decode.reference import GROUP, LOG2E, LOWEST, SMALLEST_SUM

_LOWEST = tl.constexpr(LOWEST)
_LOG2E = tl.constexpr(LOG2E)
_SMALLEST_SUM = tl.constexpr(SMALLEST_SUM)
_GROUP = tl.constexpr(GROUP)


@triton.jit
def _columns(
    row, present, row_stride, column_stride, FIRST: tl.constexpr, COLUMNS: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """Offsets of columns FIRST … FIRST + COLUMNS of rows, and which of the elements exist."""
    column = FIRST + tl.arange(0, COLUMNS)
    inside = present[:, None]
    if FIRST + COLUMNS > D:
        inside = inside & (column < D)[None, :]
    offset = (row.to(tl.int64) * row_stride)[:, None] + (column.to(tl.int64) * column_stride)[None, :]
    return offset, inside


@triton.jit
def _gather(
    pool_ptr,
    scales_ptr,
    slots,
    present,
    pool_row_stride,
    pool_column_stride,
    scales_row_stride,
    scales_column_stride,
    FIRST: tl.constexpr,
    COLUMNS: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    FP8: tl.constexpr,
    query_type: tl.constexpr,
):
    """Columns FIRST … FIRST + COLUMNS of the slots' rows, [ROWS, COLUMNS] in the queries' type; 0 past D."""
    offset, inside = _columns(slots, present, pool_row_stride, pool_column_stride, FIRST, COLUMNS, D)
    source = pool_ptr + offset
    if FP8:
        rows = tl.load(source, mask=inside, other=0).to(tl.float8e4nv, bitcast=True).to(query_type)
        group = FIRST // _GROUP + tl.arange(0, COLUMNS // _GROUP)
        factor_source = scales_ptr + (slots * scales_row_stride)[:, None]
        factor_source += (group.to(tl.int64) * scales_column_stride)[None, :]
        known = present[:, None]
        if FIRST + COLUMNS > D:
            known = known & (group * _GROUP < D)[None, :]
        factor = tl.load(factor_source, mask=known, other=0.0).to(query_type)
        grouped = tl.reshape(rows, (ROWS, COLUMNS // _GROUP, _GROUP)) * factor[:, :, None]
        rows = tl.reshape(grouped, (ROWS, COLUMNS))
    else:
        rows = tl.load(source, mask=inside, other=0.0)
    return rows


@triton.jit
def _load_queries(
    q_ptr, row, present, head_stride, column_stride, FIRST: tl.constexpr, COLUMNS: tl.constexpr,
    D: tl.constexpr,
):  # fmt: skip
    offset, inside = _columns(row, present, head_stride, column_stride, FIRST, COLUMNS, D)
    return tl.load(q_ptr + offset, mask=inside, other=0.0)


@triton.jit
def _store(
    out_ptr, values, row, present, row_stride, column_stride, FIRST: tl.constexpr, COLUMNS: tl.constexpr,
    D: tl.constexpr,
):  # fmt: skip
    offset, inside = _columns(row, present, row_stride, column_stride, FIRST, COLUMNS, D)
    tl.store(out_ptr + offset, values.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["heads"])
def paged_decode_kernel(
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
    q_column_stride,
    pool_row_stride,
    pool_column_stride,
    scales_row_stride,
    scales_column_stride,
    out_token_stride,
    out_head_stride,
    out_column_stride,
    D: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr,
    COLUMNS: tl.constexpr,
    HALVES: tl.constexpr,
    HEAD_BLOCKS: tl.constexpr,
    SPLITS: tl.constexpr,
    FP8: tl.constexpr,
):
    """One token, BLOCK_H heads, one split; strides in elements, grid (T · SPLITS · HEAD_BLOCKS).

    The row of width D is held in HALVES pieces of COLUMNS, each with an accumulator of its own: the matrix
    units' tiles then stay small enough to be fed from registers.
    """
    query_type: tl.constexpr = q_ptr.dtype.element_ty
    program = tl.program_id(0)
    head_block = program % HEAD_BLOCKS
    split = (program // HEAD_BLOCKS) % SPLITS
    token = (program // (HEAD_BLOCKS * SPLITS)).to(tl.int64)

    head = head_block * BLOCK_H + tl.arange(0, BLOCK_H)
    is_head = head < heads
    start = tl.load(indptr_ptr + token).to(tl.int64)
    length = (tl.load(indptr_ptr + token + 1).to(tl.int64) - start).to(tl.int32)
    tiles = tl.cdiv(length, SPLITS * BLOCK_K)
    first = split * tiles * BLOCK_K
    last = tl.minimum(first + tiles * BLOCK_K, length)
    if SPLITS > 1 and first >= last:
        return

    q_row = q_ptr + token * q_token_stride
    q0 = _load_queries(q_row, head, is_head, q_head_stride, q_column_stride, 0, COLUMNS, D)
    if HALVES == 2:
        q1 = _load_queries(q_row, head, is_head, q_head_stride, q_column_stride, COLUMNS, COLUMNS, D)
    highest = tl.full((BLOCK_H,), _LOWEST, tl.float32)
    total = tl.zeros((BLOCK_H,), tl.float32)
    mixed0 = tl.zeros((BLOCK_H, COLUMNS), tl.float32)
    mixed1 = tl.zeros((BLOCK_H, COLUMNS if HALVES == 2 else 16), tl.float32)

    for tile in tl.range(first, last, BLOCK_K, num_stages=3):
        place = tile + tl.arange(0, BLOCK_K)
        present = place < last
        slots = tl.load(indices_ptr + start + place, mask=present, other=0).to(tl.int64)
        k0 = _gather(
            pool_ptr, scales_ptr, slots, present, pool_row_stride, pool_column_stride,
            scales_row_stride, scales_column_stride, 0, COLUMNS, D, BLOCK_K, FP8, query_type,
        )  # fmt: skip
        scores = tl.dot(q0, tl.trans(k0))
        if HALVES == 2:
            k1 = _gather(
                pool_ptr, scales_ptr, slots, present, pool_row_stride, pool_column_stride,
                scales_row_stride, scales_column_stride, COLUMNS, COLUMNS, D, BLOCK_K, FP8, query_type,
            )  # fmt: skip
            scores = tl.dot(q1, tl.trans(k1), scores)
        scores = tl.where(present[None, :], scores * qk_scale, _LOWEST)
        # max and maximum return the operand that is not NaN: a NaN ends in `weights` and in `total`.
        higher = tl.maximum(highest, tl.max(scores, axis=1))
        shrink = tl.exp2(highest - higher)
        weights = tl.exp2(scores - higher[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        weights = weights.to(query_type)
        mixed0 = tl.dot(weights, k0, mixed0 * shrink[:, None])
        if HALVES == 2:
            mixed1 = tl.dot(weights, k1, mixed1 * shrink[:, None])
        highest = higher

    if SPLITS > 1:
        partial = (token * SPLITS + split) * HEAD_BLOCKS * BLOCK_H
        tl.store(highest_ptr + partial + head, highest)
        tl.store(total_ptr + partial + head, total)
        mixed_row = mixed_ptr + partial * D
        _store(mixed_row, mixed0, head, is_head, D, 1, 0, COLUMNS, D)
        if HALVES == 2:
            _store(mixed_row, mixed1, head, is_head, D, 1, COLUMNS, COLUMNS, D)
    else:
        sink = tl.load(sink_ptr + head, mask=is_head, other=0.0).to(tl.float32) * _LOG2E
        joint = tl.maximum(highest, sink)
        kept = tl.exp2(highest - joint)
        total = total * kept + tl.exp2(sink - joint)
        # Where the sum is not positive, NaN included, the head's output is zero.
        some = (total > 0)[:, None]
        below = tl.maximum(total, _SMALLEST_SUM)[:, None]
        out_row = out_ptr + token * out_token_stride
        result0 = tl.where(some, mixed0 * kept[:, None] / below, 0.0)
        _store(out_row, result0, head, is_head, out_head_stride, out_column_stride, 0, COLUMNS, D)
        if HALVES == 2:
            result1 = tl.where(some, mixed1 * kept[:, None] / below, 0.0)
            _store(out_row, result1, head, is_head, out_head_stride, out_column_stride, COLUMNS, COLUMNS, D)


@triton.jit(do_not_specialize=["heads"])
def join_splits_kernel(
    highest_ptr,
    total_ptr,
    mixed_ptr,
    indptr_ptr,
    sink_ptr,
    out_ptr,
    heads,
    out_token_stride,
    out_head_stride,
    out_column_stride,
    D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CHUNK: tl.constexpr,
    PADDED_HEADS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Join the splits of one token and head, CHUNK columns; grid (T · heads, column chunks)."""
    token = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    column = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    start = tl.load(indptr_ptr + token).to(tl.int64)
    length = (tl.load(indptr_ptr + token + 1).to(tl.int64) - start).to(tl.int32)
    # Splits past the end of the list wrote nothing.
    span = tl.maximum(tl.cdiv(length, SPLITS * BLOCK_K) * BLOCK_K, 1)
    live = tl.cdiv(tl.maximum(length, 0), span)

    split = tl.arange(0, SPLITS)
    partial = (token * SPLITS + split) * PADDED_HEADS + head
    highest = tl.load(highest_ptr + partial, mask=split < live, other=_LOWEST)
    total = tl.load(total_ptr + partial, mask=split < live, other=0.0)
    sink = tl.load(sink_ptr + head).to(tl.float32) * _LOG2E
    joint = tl.maximum(tl.max(highest, axis=0), sink)
    whole = tl.sum(total * tl.exp2(highest - joint), axis=0) + tl.exp2(sink - joint)

    inside = column < D
    mixed = tl.zeros((CHUNK,), tl.float32)
    for each in tl.range(0, live, num_stages=4):
        row = (token * SPLITS + each) * PADDED_HEADS + head
        share = tl.exp2(tl.load(highest_ptr + row) - joint)
        mixed += share * tl.load(mixed_ptr + row * D + column, mask=inside, other=0.0)
    result = tl.where(whole > 0, mixed / tl.maximum(whole, _SMALLEST_SUM), 0.0)
    target = (
        out_ptr + token * out_token_stride + head * out_head_stride + column.to(tl.int64) * out_column_stride
    )
    tl.store(target, result.to(out_ptr.dtype.element_ty), mask=inside)
