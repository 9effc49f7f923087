"""A run of tokens of one sequence: its rows are read once, with the W - 1 before them.

Those are the sequence's own as far as it reaches back, and before that the state's.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.inkling_attn_prologue.kernel import UNIT, convolved, finish

_UNIT = tl.constexpr(UNIT)


@triton.jit
def run_of_sequence(
    source,
    row_stride,
    state,
    state_stride,
    gate,
    start,
    first,
    end,
    window,
    window_token_stride,
    window_stride,
    recorded,
    loc_ptr,
    weights,
    gamma,
    eps,
    is_k,
    out_ptr,
    pool_ptr,
    pool_stride,
    scales_ptr,
    block,
    channel,
    H: tl.constexpr,
    PAGE: tl.constexpr,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    W: tl.constexpr,
    SILU: tl.constexpr,
    RESIDUAL: tl.constexpr,
    STORE: tl.constexpr,
    MXFP8: tl.constexpr,
    SATURATES: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Tokens first … first + TOKENS - 1 before `end`, of the sequence whose first token is `start`.

    source, state and window point to channel 0 of the tensor's first row, of the state's slot, and of the
    sequence's windows, which are written if `recorded`; window is None where there are none.
    """
    locs = ()
    for i in tl.static_range(TOKENS):
        locs += (tl.load(loc_ptr + tl.minimum(first + i, end - 1)),)
    behind = first - start
    rows = ()
    for i in tl.static_range(W - 1):
        kept = state + (behind + i) * state_stride * _UNIT
        earlier = source + (first - (W - 1) + i) * row_stride * _UNIT
        rows += (tl.load(tl.where(behind + i < W - 1, kept, earlier) + channel),)
    for i in tl.static_range(TOKENS):
        rows += (tl.load(source + tl.minimum(first + i, end - 1) * row_stride * _UNIT + channel),)

    values = ()
    for i in tl.static_range(W - 1):
        values += (rows[i].to(tl.float32) * tl.where(behind + i < W - 1, gate, 1.0),)
    for i in tl.static_range(TOKENS):
        values += (rows[W - 1 + i].to(tl.float32),)

    for i in tl.static_range(TOKENS):
        inside = first + i < end
        y = convolved(values, i, weights, W, SILU, RESIDUAL)
        finish(
            y,
            gamma,
            eps,
            is_k,
            out_ptr,
            pool_ptr,
            pool_stride,
            scales_ptr,
            locs[i],
            first + i,
            inside,
            block,
            channel,
            H,
            PAGE,
            HEADS,
            STORE,
            MXFP8,
            SATURATES,
            WORDS,
        )
        if window is not None:
            target = window + (behind + i) * window_token_stride * _UNIT + channel
            for w in tl.static_range(W - 1):
                tl.store(target + w * window_stride * _UNIT, rows[i + 1 + w], mask=inside & recorded)
