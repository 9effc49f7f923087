"""What the three prologue kernels share, in Triton: norm, convolution, MXFP8, the queries, the pool's rows.

Tiles are [HEADS, 128] channels of one token, so that addresses of rows are scalars and a tile's accesses are
16 bytes a thread. Strides of rows, caches, windows and pools, and offsets in rows, are given in units of
UNIT elements, which keeps that known to the compiler. A token is an int64; so are addresses.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.inkling_attn_prologue.mxfp8 import AMAX_FLOOR, BLOCK, BLOCKS, FP8_MAX, HEAD, LARGEST_BYTE

UNIT = 8

_UNIT = tl.constexpr(UNIT)
_HEAD = tl.constexpr(HEAD)
_BLOCK = tl.constexpr(BLOCK)
_BLOCKS = tl.constexpr(BLOCKS)
_FP8_MAX = tl.constexpr(FP8_MAX)
_AMAX_FLOOR = tl.constexpr(AMAX_FLOOR)
_INFINITY_BITS = tl.constexpr(0x7F800000)
_LARGEST_BYTE = tl.constexpr(LARGEST_BYTE)
# Added to float32 bits, a mantissa above 1.75 carries into the exponent.
_ABOVE_SEVEN_QUARTERS = tl.constexpr(0x1FFFFF)


@triton.jit
def overlap():
    """Wait for the kernels in front to end, and let the next one come up, which waits likewise."""
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def channels(block, HEADS: tl.constexpr):
    """Channels of the block's heads, [HEADS, 128]."""
    head = block * HEADS + tl.arange(0, HEADS)
    return (head * _HEAD)[:, None] + tl.arange(0, _HEAD)[None, :]


@triton.jit
def key_or_value(program, BLOCKS: tl.constexpr):
    """Run of tokens, whether of k, and block of heads: programs of a run are first k's blocks, then v's."""
    run = program // (2 * BLOCKS)
    place = program - run * (2 * BLOCKS)
    is_k = place < BLOCKS
    return run, is_k, tl.where(is_k, place, place - BLOCKS)


@triton.jit
def normalised(x, gamma, eps):
    """Root mean square norm of each head, in bfloat16."""
    mean = tl.sum(x * x, 1) * (1.0 / _HEAD)
    return ((x * tl.rsqrt(mean + eps)[:, None]) * gamma).to(tl.bfloat16)


@triton.jit
def quantized(x, HEADS: tl.constexpr, SATURATES: tl.constexpr):
    """E4M3 codes [HEADS, 128] and scale bytes, int32 [HEADS, 4], of bfloat16 values.

    The byte is that of the smallest 2^k with amax <= 448 · 2^k: of amax = m · 2^e, k = e - 8, or one more
    where m > 1.75. amax has a bfloat16's eight bits, or is the floor. Only an infinity exceeds 448 scales; a
    conversion that SATURATES takes care of it.
    """
    blocks = tl.reshape(x.to(tl.float32), (HEADS, _BLOCKS, _BLOCK))
    # max and min return the operand that is not NaN: it does not count here, and becomes -448 below.
    amax = tl.maximum(tl.max(tl.abs(blocks), 2), _AMAX_FLOOR)
    bits = amax.to(tl.int32, bitcast=True)
    byte = tl.where(bits == _INFINITY_BITS, _LARGEST_BYTE, ((bits + _ABOVE_SEVEN_QUARTERS) >> 23) - 8)
    # 2^(127 - byte); that of byte 254 is subnormal.
    factor = tl.where(byte == _LARGEST_BYTE, 1 << 22, (254 - byte) << 23).to(tl.float32, bitcast=True)
    scaled = tl.maximum(blocks * factor[:, :, None], -_FP8_MAX)
    if not SATURATES:
        scaled = tl.minimum(scaled, _FP8_MAX)
    return tl.reshape(scaled.to(tl.float8e4nv), (HEADS, _HEAD)), byte


@triton.jit
def store_scales(bytes_ptr, first, apart, byte, present, HEADS: tl.constexpr, WORDS: tl.constexpr):
    """Write each head's four bytes, as a word where aligned; `first` and `apart` count words."""
    at = tl.arange(0, HEADS) * (apart * _BLOCKS)
    place = tl.arange(0, _BLOCKS)
    target = bytes_ptr + first * _BLOCKS
    if WORDS:
        word = tl.sum(byte << (8 * place)[None, :], 1)
        tl.store((target + at).to(tl.pointer_type(tl.int32)), word, mask=present)
    else:
        tl.store(target + at[:, None] + place[None, :], byte.to(tl.uint8), mask=present)


@triton.jit
def taps_of(weight_ptr, channel, stride, W: tl.constexpr, PACKED: tl.constexpr):
    """The W weights of each channel, oldest tap first, in float32; PACKED: four bfloat16 to a dense word."""
    if PACKED:
        word = tl.load(weight_ptr.to(tl.pointer_type(tl.int64)) + channel)
        low = word.to(tl.int32)
        high = (word >> 32).to(tl.int32)
        weights = (
            (low << 16).to(tl.float32, bitcast=True),
            (low & -0x10000).to(tl.float32, bitcast=True),
            (high << 16).to(tl.float32, bitcast=True),
            (high & -0x10000).to(tl.float32, bitcast=True),
        )
    else:
        first = weight_ptr + channel.to(tl.int64) * stride
        weights = ()
        for tap in tl.static_range(W):
            weights += (tl.load(first + tap).to(tl.float32),)
    return weights


@triton.jit
def convolved(
    values, start: tl.constexpr, weights, W: tl.constexpr, SILU: tl.constexpr, RESIDUAL: tl.constexpr
):
    """bfloat16 of the convolution over values[start … start + W - 1], float32, the token's own last."""
    x = values[start + W - 1]
    # From +0.0, which a sum of negative zeros does not keep.
    total = values[start] * weights[0] + 0.0
    for tap in tl.static_range(1, W):
        total += values[start + tap] * weights[tap]
    if SILU:
        total = total / (1.0 + tl.exp(-total))
    if RESIDUAL:
        total += x
    return total.to(tl.bfloat16)


@triton.jit
def queries(
    qkvr_ptr,
    row_stride,
    q_off,
    gamma_ptr,
    tau_ptr,
    q_out_ptr,
    q_scale_ptr,
    eps,
    program,
    tokens,
    HQ: tl.constexpr,
    HEADS: tl.constexpr,
    TOKENS: tl.constexpr,
    MXFP8: tl.constexpr,
    SATURATES: tl.constexpr,
):
    """Norm, tau and quantisation of a program's HEADS heads of TOKENS tokens."""
    blocks: tl.constexpr = HQ // HEADS
    run = program // blocks
    block = program - run * blocks
    first = run.to(tl.int64) * TOKENS
    channel = channels(block, HEADS)
    source = qkvr_ptr + q_off * _UNIT
    rows = ()
    for i in tl.static_range(TOKENS):
        rows += (tl.load(source + tl.minimum(first + i, tokens - 1) * row_stride * _UNIT + channel),)
    gamma = tl.load(gamma_ptr + channel % _HEAD).to(tl.float32)
    for i in tl.static_range(TOKENS):
        token = first + i
        inside = token < tokens
        q = normalised(rows[i].to(tl.float32), gamma, eps)
        if tau_ptr is not None:
            tau = tl.load(tau_ptr + tl.minimum(token, tokens - 1)).to(tl.float32)
            q = (q.to(tl.float32) * tau).to(tl.bfloat16)
        target = q_out_ptr + token * (HQ * _HEAD) + channel
        if MXFP8:
            codes, byte = quantized(q, HEADS, SATURATES)
            tl.store(target, codes, mask=inside)
            store_scales(q_scale_ptr, token * HQ + block * HEADS, 1, byte, inside, HEADS, True)
        else:
            tl.store(target, q, mask=inside)


@triton.jit
def finish(
    y,
    gamma,
    eps,
    is_k,
    out_ptr,
    pool_ptr,
    pool_stride,
    scales_ptr,
    slot,
    token,
    inside,
    block,
    channel,
    H: tl.constexpr,
    PAGE: tl.constexpr,
    HEADS: tl.constexpr,
    STORE: tl.constexpr,
    MXFP8: tl.constexpr,
    SATURATES: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Norm of a key, then the row of k_out or v_out and, for a slot >= 0, the pool's row and its scales."""
    if is_k:
        y = normalised(y.to(tl.float32), gamma, eps)
    tl.store(out_ptr + token * (H * _HEAD) + channel, y, mask=inside)
    if STORE:
        stored = inside & (slot >= 0)
        target = pool_ptr + slot * pool_stride * _UNIT + channel
        if MXFP8:
            codes, byte = quantized(y, HEADS, SATURATES)
            tl.store(target, codes, mask=stored)
            slot = slot.to(tl.int32)
            page = slot // PAGE
            place = slot - page * PAGE
            word = block * (HEADS * PAGE) + place % _BLOCK * (PAGE // _BLOCK) + place // _BLOCK
            word += page.to(tl.int64) * (H * PAGE)
            store_scales(scales_ptr, word, PAGE, byte, stored, HEADS, WORDS)
        else:
            tl.store(target, y, mask=stored)
