"""The verify prologue's kernel: drafted tokens, whose windows are recorded; the state stays."""

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
def verify_kernel(
    qkvr_ptr,
    k_cache_ptr,
    v_cache_ptr,
    cache_indices_ptr,
    cache_mask_ptr,
    k_inter_ptr,
    v_inter_ptr,
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
    inter_stride,
    window_token_stride,
    window_stride,
    DRAFTED: tl.constexpr,
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
    """First the programs of k and v, runs of TOKENS of each sequence's DRAFTED tokens; then those of q."""
    if PDL:
        overlap()
    program = tl.program_id(0)
    blocks: tl.constexpr = H // HEADS
    runs: tl.constexpr = (DRAFTED + TOKENS - 1) // TOKENS
    programs = tokens // DRAFTED * runs * (2 * blocks)
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
    sequence = (run // runs).to(tl.int64)
    start = sequence * DRAFTED
    slot = tl.load(cache_indices_ptr + sequence).to(tl.int32)
    present = slot != _PADDING
    gate = (present & (tl.load(cache_mask_ptr + sequence) != 0)).to(tl.float32)
    channel = channels(block, HEADS)
    run_of_sequence(
        qkvr_ptr + tl.where(is_k, k_off, v_off) * _UNIT,
        row_stride,
        tl.where(is_k, k_cache_ptr, v_cache_ptr) + tl.maximum(slot, 0).to(tl.int64) * slot_stride * _UNIT,
        state_stride,
        gate,
        start,
        start + (run - sequence * runs) * TOKENS,
        start + DRAFTED,
        tl.where(is_k, k_inter_ptr, v_inter_ptr) + sequence * inter_stride * _UNIT,
        window_token_stride,
        window_stride,
        present,
        loc_ptr,
        taps_of(tl.where(is_k, k_weight_ptr, v_weight_ptr), channel, weight_stride, W, PACKED),
        tl.load(k_gamma_ptr + channel % _HEAD).to(tl.float32),
        eps,
        is_k,
        tl.where(is_k, k_out_ptr, v_out_ptr),
        tl.where(is_k, k_buf_ptr, v_buf_ptr),
        pool_stride,
        tl.where(is_k, sfk_ptr, sfv_ptr) if MXFP8 else None,
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
