"""The extend prologue's kernels: runs of tokens of sequences of any length, and the state they leave."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.inkling_attn_prologue.kernel import UNIT, channels, key_or_value, overlap, queries, taps_of
from kernels.inkling_attn_prologue.kernel_run import run_of_sequence
from kernels.inkling_attn_prologue.mxfp8 import HEAD
from kernels.inkling_attn_prologue.reference import PADDING

_UNIT = tl.constexpr(UNIT)
_HEAD = tl.constexpr(HEAD)
_PADDING = tl.constexpr(PADDING)


@triton.jit(do_not_specialize=["tokens"])
def extend_kernel(
    qkvr_ptr,
    k_cache_ptr,
    v_cache_ptr,
    cache_indices_ptr,
    cache_mask_ptr,
    cu_ptr,
    si_ptr,
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
    """First the programs of k and v, runs of TOKENS tokens wherever sequences begin; then those of q."""
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
    source = qkvr_ptr + tl.where(is_k, k_off, v_off) * _UNIT
    cache = tl.where(is_k, k_cache_ptr, v_cache_ptr)
    out = tl.where(is_k, k_out_ptr, v_out_ptr)
    pool = tl.where(is_k, k_buf_ptr, v_buf_ptr)
    scales = tl.where(is_k, sfk_ptr, sfv_ptr) if MXFP8 else None
    channel = channels(block, HEADS)
    weights = taps_of(tl.where(is_k, k_weight_ptr, v_weight_ptr), channel, weight_stride, W, PACKED)
    gamma = tl.load(k_gamma_ptr + channel % _HEAD).to(tl.float32)

    first = run.to(tl.int64) * TOKENS
    last = tl.minimum(first + TOKENS, tokens) - 1
    sequence = tl.load(si_ptr + first).to(tl.int64)
    if sequence == tl.load(si_ptr + last):
        slot = tl.maximum(tl.load(cache_indices_ptr + sequence).to(tl.int32), 0).to(tl.int64)
        run_of_sequence(
            source,
            row_stride,
            cache + slot * slot_stride * _UNIT,
            state_stride,
            (tl.load(cache_mask_ptr + sequence) != 0).to(tl.float32),
            tl.load(cu_ptr + sequence),
            first,
            last + 1,
            None,
            0,
            0,
            False,
            loc_ptr,
            weights,
            gamma,
            eps,
            is_k,
            out,
            pool,
            pool_stride,
            scales,
            block,
            channel,
            H,
            PAGE,
            HEADS,
            TOKENS,
            W,
            SILU,
            RESIDUAL,
            STORE,
            MXFP8,
            SATURATES,
            WORDS,
        )
    else:
        for token in range(first, last + 1):
            owner = tl.load(si_ptr + token).to(tl.int64)
            slot = tl.maximum(tl.load(cache_indices_ptr + owner).to(tl.int32), 0).to(tl.int64)
            run_of_sequence(
                source,
                row_stride,
                cache + slot * slot_stride * _UNIT,
                state_stride,
                (tl.load(cache_mask_ptr + owner) != 0).to(tl.float32),
                tl.load(cu_ptr + owner),
                token,
                token + 1,
                None,
                0,
                0,
                False,
                loc_ptr,
                weights,
                gamma,
                eps,
                is_k,
                out,
                pool,
                pool_stride,
                scales,
                block,
                channel,
                H,
                PAGE,
                HEADS,
                1,
                W,
                SILU,
                RESIDUAL,
                STORE,
                MXFP8,
                SATURATES,
                WORDS,
            )


@triton.jit
def state_kernel(
    qkvr_ptr,
    k_cache_ptr,
    v_cache_ptr,
    cache_indices_ptr,
    has_initial_state_ptr,
    cu_ptr,
    track_rows_ptr,
    track_mask_ptr,
    track_dst_ptr,
    row_stride,
    k_off,
    v_off,
    slot_stride,
    state_stride,
    track_stride,
    H: tl.constexpr,
    W: tl.constexpr,
    HEADS: tl.constexpr,
    PDL: tl.constexpr,
):
    """What extend leaves in the caches; grid (sequences, k's and v's blocks of HEADS heads)."""
    if PDL:
        overlap()
    blocks: tl.constexpr = H // HEADS
    sequence = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1)
    is_k = place < blocks
    channel = channels(tl.where(is_k, place, place - blocks), HEADS)
    source = qkvr_ptr + tl.where(is_k, k_off, v_off) * _UNIT
    cache = tl.where(is_k, k_cache_ptr, v_cache_ptr)

    slot = tl.load(cache_indices_ptr + sequence).to(tl.int32)
    start = tl.load(cu_ptr + sequence)
    length = tl.load(cu_ptr + sequence + 1) - start
    if (slot != _PADDING) & (length > 0):
        state = cache + slot.to(tl.int64) * slot_stride * _UNIT
        old = tl.load(has_initial_state_ptr + sequence) != 0
        rows = ()
        for w in tl.static_range(W - 1):
            at = length + w
            own = at >= W - 1
            row = source + (start + at - (W - 1)) * row_stride * _UNIT
            value = tl.load(tl.where(own, row, state + at * state_stride * _UNIT) + channel)
            rows += (tl.where(own | old, value, 0.0),)
        # Every thread has read what another may overwrite.
        tl.debug_barrier()
        for w in tl.static_range(W - 1):
            tl.store(state + w * state_stride * _UNIT + channel, rows[w])
    if track_mask_ptr is not None:  # noqa: SIM102 (decided when compiled)
        if tl.load(track_mask_ptr + sequence) != 0:
            # After the state: of one slot, the tracked rows remain.
            tl.debug_barrier()
            tracked = cache + tl.load(track_dst_ptr + sequence * track_stride) * slot_stride * _UNIT
            for w in tl.static_range(W - 1):
                row = tl.load(track_rows_ptr + sequence * (W - 1) + w)
                value = tl.load(source + row * row_stride * _UNIT + channel)
                tl.store(tracked + w * state_stride * _UNIT + channel, value)
