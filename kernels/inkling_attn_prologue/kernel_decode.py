"""The decode prologue's kernel: every token's history is its state slot, which is shifted in place."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.inkling_attn_prologue.kernel import (
    UNIT,
    channels,
    convolved,
    finish,
    key_or_value,
    overlap,
    queries,
    taps_of,
)
from kernels.inkling_attn_prologue.mxfp8 import HEAD
from kernels.inkling_attn_prologue.reference import PADDING

_UNIT = tl.constexpr(UNIT)
_HEAD = tl.constexpr(HEAD)
_PADDING = tl.constexpr(PADDING)


@triton.jit(do_not_specialize=["tokens"])
def decode_kernel(
    qkvr_ptr,
    k_cache_ptr,
    v_cache_ptr,
    cache_indices_ptr,
    cache_mask_ptr,
    track_mask_ptr,
    track_indices_ptr,
    k_weight_ptr,
    v_weight_ptr,
    q_gamma_ptr,
    k_gamma_ptr,
    tau_ptr,
    loc_ptr,
    k_buf_ptr,
    v_buf_ptr,
    sfk_ptr,
    sfv_ptr,
    q_out_ptr,
    k_out_ptr,
    v_out_ptr,
    q_scale_ptr,
    eps,
    tokens,
    row_stride,
    q_off,
    k_off,
    v_off,
    slot_stride,
    state_stride,
    weight_stride,
    pool_stride,
    track_stride,
    HQ: tl.constexpr,
    H: tl.constexpr,
    PAGE: tl.constexpr,
    W: tl.constexpr,
    SILU: tl.constexpr,
    RESIDUAL: tl.constexpr,
    STORE: tl.constexpr,
    MXFP8: tl.constexpr,
    SATURATES: tl.constexpr,
    PACKED: tl.constexpr,
    WORDS: tl.constexpr,
    Q_HEADS: tl.constexpr,
    Q_TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    PDL: tl.constexpr,
):
    """First the programs of k and v, then those of q; a program has HEADS heads of TOKENS tokens."""
    if PDL:
        overlap()
    program = tl.program_id(0)
    blocks: tl.constexpr = H // HEADS
    programs = tl.cdiv(tokens, TOKENS) * (2 * blocks)
    if program >= programs:
        queries(
            qkvr_ptr,
            row_stride,
            q_off,
            q_gamma_ptr,
            tau_ptr,
            q_out_ptr,
            q_scale_ptr,
            eps,
            program - programs,
            tokens,
            HQ,
            Q_HEADS,
            Q_TOKENS,
            MXFP8,
            SATURATES,
        )
        return

    run, is_k, block = key_or_value(program, blocks)
    first = run.to(tl.int64) * TOKENS
    channel = channels(block, HEADS)
    source = qkvr_ptr + tl.where(is_k, k_off, v_off) * _UNIT + channel
    cache = tl.where(is_k, k_cache_ptr, v_cache_ptr) + channel

    slots = ()
    kept = ()
    locs = ()
    for i in tl.static_range(TOKENS):
        token = tl.minimum(first + i, tokens - 1)
        slots += (tl.load(cache_indices_ptr + token).to(tl.int32),)
        kept += (tl.load(cache_mask_ptr + token) != 0,)
        locs += (tl.load(loc_ptr + token),)

    # W values of each token: its state, oldest first, and itself.
    rows = ()
    for i in tl.static_range(TOKENS):
        state = cache + tl.maximum(slots[i], 0).to(tl.int64) * slot_stride * _UNIT
        for w in tl.static_range(W - 1):
            rows += (tl.load(state + w * state_stride * _UNIT),)
        rows += (tl.load(source + tl.minimum(first + i, tokens - 1) * row_stride * _UNIT),)

    weights = taps_of(tl.where(is_k, k_weight_ptr, v_weight_ptr), channel, weight_stride, W, PACKED)
    gamma = tl.load(k_gamma_ptr + channel % _HEAD).to(tl.float32)
    # Every thread has read what another may overwrite below.
    tl.debug_barrier()

    for i in tl.static_range(TOKENS):
        token = first + i
        inside = token < tokens
        present = inside & (slots[i] != _PADDING)
        gate = kept[i].to(tl.float32)
        values = ()
        for w in tl.static_range(W - 1):
            values += (rows[i * W + w].to(tl.float32) * gate,)
        values += (rows[i * W + W - 1].to(tl.float32),)
        y = convolved(values, 0, weights, W, SILU, RESIDUAL)
        finish(
            y,
            gamma,
            eps,
            is_k,
            tl.where(is_k, k_out_ptr, v_out_ptr),
            tl.where(is_k, k_buf_ptr, v_buf_ptr),
            pool_stride,
            tl.where(is_k, sfk_ptr, sfv_ptr) if MXFP8 else None,
            tl.where(present, locs[i], -1),
            token,
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

        state = cache + slots[i].to(tl.int64) * slot_stride * _UNIT
        for w in tl.static_range(W - 2):
            # A select, not the convolution's product: NaN in a masked state ends here.
            shifted = tl.where(kept[i], rows[i * W + w + 1], 0.0)
            tl.store(state + w * state_stride * _UNIT, shifted, mask=present)
        tl.store(state + (W - 2) * state_stride * _UNIT, rows[i * W + W - 1], mask=present)
        if track_mask_ptr is not None:
            at = tl.minimum(token, tokens - 1)
            if present & (tl.load(track_mask_ptr + at) != 0):
                tracked = cache + tl.load(track_indices_ptr + at * track_stride) * slot_stride * _UNIT
                for w in tl.static_range(W - 2):
                    shifted = tl.where(kept[i], rows[i * W + w + 1], 0.0)
                    tl.store(tracked + w * state_stride * _UNIT, shifted)
                tl.store(tracked + (W - 2) * state_stride * _UNIT, rows[i * W + W - 1])
