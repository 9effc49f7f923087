"""The gathering warps of hopper.py: rows of the pool into a ring of tiles in shared memory.

A tile is handed over through the barrier `full` of its buffer and comes back through `empty`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, fence_async_shared, mbarrier

from kernels.sparse_attn_v4_paged_decode.reference import GROUP

_GROUP = gl.constexpr(GROUP)
synchronise = getattr(gl, "barrier", None) or gl.thread_barrier  # renamed between triton 3.6 and 3.7


@gluon.jit
def _inside(row, rows, column, D: gl.constexpr, BLOCK_D: gl.constexpr):
    """Which elements of a block of rows [.., BLOCK_D] exist."""
    inside = (row < rows)[:, None]
    if D < BLOCK_D:
        inside = inside & (column < D)[None, :]
    return inside


@gluon.jit
def _gather_rows(pool, listed, span, ring_state, D: gl.constexpr):
    """Copy the listed rows, a tile of the ring at a time; each lane copies 16 bytes of two rows."""
    pool_ptr, row_stride = pool
    first, last = span
    ring, full, empty = ring_state
    BUFFERS: gl.constexpr = ring.shape[0]
    ROWS: gl.constexpr = ring.shape[1]
    BLOCK_D: gl.constexpr = ring.shape[2]
    copied: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    row = gl.arange(0, ROWS, gl.SliceLayout(1, copied))
    column = gl.arange(0, BLOCK_D, gl.SliceLayout(0, copied))
    slots = gl.load(listed + first + row, mask=first + row < last, other=0)
    for tile in range(gl.cdiv(last - first, ROWS)):
        place = first + tile * ROWS + row
        source = pool_ptr + (slots.to(gl.int64) * row_stride)[:, None] + column[None, :]
        slots = gl.load(listed + place + ROWS, mask=place + ROWS < last, other=0)
        buffer = tile % BUFFERS
        mbarrier.wait(empty.index(buffer), ((tile // BUFFERS) & 1) ^ 1)
        inside = _inside(place, last, column, D, BLOCK_D)
        async_copy.async_copy_global_to_shared(ring.index(buffer), source, mask=inside)
        async_copy.mbarrier_arrive(full.index(buffer), increment_count=False)


@gluon.jit
def _dequantise(codes, factors, target):
    """Codes times factors, from and to shared memory: codes [R, D], factors [R, D / 64], target [R, D]."""
    ROWS: gl.constexpr = codes.shape[0]
    BLOCK_D: gl.constexpr = codes.shape[1]
    stored: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    code = gl.reshape(codes.load(stored), [ROWS, BLOCK_D // _GROUP, _GROUP])
    by_group: gl.constexpr = gl.SliceLayout(2, code.type.layout)
    # Code and rounded factor are exact in float32 and so is their product: it is rounded once, as a product
    # in the queries' type would be.
    factor = factors.load(by_group).to(target.dtype).to(gl.float32)
    value = code.to(gl.float8e4nv, bitcast=True).to(gl.float32) * factor[:, :, None]
    target.store(gl.reshape(value.to(target.dtype), [ROWS, BLOCK_D]))


@gluon.jit
def _gather_codes(pool, scales, listed, span, ring_state, staging, D: gl.constexpr, PART: gl.constexpr):
    """Copy the listed codes and their factors AHEAD tiles early, dequantise them into the ring."""
    pool_ptr, row_stride = pool
    scales_ptr, scales_row_stride, scales_column_stride = scales
    first, last = span
    ring, full, empty = ring_state
    codes, factors = staging
    BUFFERS: gl.constexpr = ring.shape[0]
    ROWS: gl.constexpr = ring.shape[1]
    BLOCK_D: gl.constexpr = ring.shape[2]
    STAGES: gl.constexpr = codes.shape[0]
    AHEAD: gl.constexpr = STAGES - 1
    GROUPS: gl.constexpr = BLOCK_D // _GROUP
    copied: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [4, 1], [1, 0])
    scaled: gl.constexpr = gl.BlockedLayout([1, 1], [32 // GROUPS, GROUPS], [4, 1], [1, 0])
    row = gl.arange(0, ROWS, gl.SliceLayout(1, copied))
    column = gl.arange(0, BLOCK_D, gl.SliceLayout(0, copied))
    scale_row = gl.arange(0, ROWS, gl.SliceLayout(1, scaled))
    group = gl.arange(0, GROUPS, gl.SliceLayout(0, scaled))
    slots = gl.load(listed + first + row, mask=first + row < last, other=0)
    scale_slots = gl.load(listed + first + scale_row, mask=first + scale_row < last, other=0)
    for step in range(gl.cdiv(last - first, ROWS) + AHEAD):
        place = first + step * ROWS + row
        scale_place = first + step * ROWS + scale_row
        source = pool_ptr + (slots.to(gl.int64) * row_stride)[:, None] + column[None, :]
        scale_source = scales_ptr + (scale_slots.to(gl.int64) * scales_row_stride)[:, None]
        scale_source += (group * scales_column_stride)[None, :]
        slots = gl.load(listed + place + ROWS, mask=place + ROWS < last, other=0)
        scale_slots = gl.load(listed + scale_place + ROWS, mask=scale_place + ROWS < last, other=0)
        inside = _inside(place, last, column, D, BLOCK_D)
        known = _inside(scale_place, last, group * _GROUP, D, BLOCK_D)
        async_copy.async_copy_global_to_shared(codes.index(step % STAGES), source, mask=inside)
        async_copy.async_copy_global_to_shared(factors.index(step % STAGES), scale_source, mask=known)
        async_copy.commit_group()
        tile = step - AHEAD
        if tile >= 0:
            async_copy.wait_group(AHEAD)
            synchronise()
            buffer = tile % BUFFERS
            mbarrier.wait(empty.index(buffer), ((tile // BUFFERS) & 1) ^ 1)
            for part in gl.static_range(ROWS // PART):
                _dequantise(
                    codes.index(tile % STAGES).slice(part * PART, PART, 0),
                    factors.index(tile % STAGES).slice(part * PART, PART, 0),
                    ring.index(buffer).slice(part * PART, PART, 0),
                )
            fence_async_shared()
            synchronise()
            mbarrier.arrive(full.index(buffer), count=1)


@gluon.jit
def gather(
    pool, scales, listed, span, ring_state, staging, D: gl.constexpr, PART: gl.constexpr, FP8: gl.constexpr
):  # fmt: skip
    """The pool's rows as they are, or dequantised."""
    if FP8:
        _gather_codes(pool, scales, listed, span, ring_state, staging, D, PART)
    else:
        _gather_rows(pool, listed, span, ring_state, D)
