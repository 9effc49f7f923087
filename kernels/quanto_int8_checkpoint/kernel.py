"""The qint8 linear in Triton: codes become x's type in registers, and a row's scale multiplies its sum once.

    y[t, n] = scale[n] · Σ_k x[t, k] · codes[n, k] + bias[n]        T tokens, N rows, K columns

Every sum is float32, so y differs from the float32 product by the order of additions and one rounding.
`launch.py` chooses among the kernels, and their tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def overlap():
    """Wait for the kernels in front to end, and let the next one come up, which waits likewise."""
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def widened(codes):
    """int8 codes as float32, through the mantissa of 2^23: converting instructions are eight times slower."""
    bits = (codes.to(tl.int32) & 0xFF) ^ 0x4B000080
    return bits.to(tl.float32, bitcast=True) - 8388736.0


@triton.jit
def widened_half(codes):
    """int8 codes as float16 in the same way, through the mantissa of 2^10."""
    bits = (codes.to(tl.int16) & 0xFF) ^ 0x6480
    return bits.to(tl.float16, bitcast=True) - 1152.0


@triton.jit
def dot_kernel(
    x_ptr,
    codes_ptr,
    scale_ptr,
    bias_ptr,
    y_ptr,
    rows,
    columns,
    x_stride,
    codes_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
    EVEN: tl.constexpr,
    PDL: tl.constexpr,
):
    """ROWS outputs of one token; grid (row tiles, tokens)."""
    if PDL:
        overlap()
    token = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    codes_row = codes_ptr + (tl.minimum(row, rows - 1).to(tl.int64) * codes_stride)[:, None]
    products = tl.zeros((ROWS, COLUMNS), tl.float32)
    # Stated at the loop, stages are for all its loads; else only for those that a matrix product takes.
    for first in tl.range(0, columns, COLUMNS, num_stages=STAGES):
        at = first + column
        if EVEN:
            codes = tl.load(codes_row + at[None, :])
            x = tl.load(x_ptr + token * x_stride + at)
        else:
            codes = tl.load(codes_row + at[None, :], mask=(at < columns)[None, :], other=0)
            x = tl.load(x_ptr + token * x_stride + at, mask=at < columns, other=0.0)
        products += widened(codes) * x.to(tl.float32)[None, :]
    y = tl.sum(products, 1) * tl.load(scale_ptr + row, mask=row < rows, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + row, mask=row < rows, other=0.0).to(tl.float32)
    tl.store(y_ptr + token * rows + row, y.to(y_ptr.dtype.element_ty), mask=row < rows)


@triton.jit(do_not_specialize=["tokens"])
def linear_kernel(
    x_ptr,
    codes_ptr,
    scale_ptr,
    bias_ptr,
    y_ptr,
    tokens,
    rows,
    columns,
    x_stride,
    codes_stride,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLITS: tl.constexpr,
    EVEN: tl.constexpr,
    PDL: tl.constexpr,
):
    """ROWS × TOKENS outputs, or with SPLITS their sums over a share of the columns: y is then [SPLITS, T, N].

    Grid (row tiles · token tiles, SPLITS); the tiles of a row tile are neighbours, and share its codes.
    """
    if PDL:
        overlap()
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    token_tiles = tl.cdiv(tokens, TOKENS)
    row_tile = tl.program_id(0) // token_tiles
    token_tile = tl.program_id(0) - row_tile * token_tiles
    split = tl.program_id(1)
    share = tl.cdiv(tl.cdiv(columns, COLUMNS), SPLITS) * COLUMNS
    start = split * share

    row = row_tile * ROWS + tl.arange(0, ROWS)
    token = token_tile * TOKENS + tl.arange(0, TOKENS)
    column = tl.arange(0, COLUMNS)
    codes_row = codes_ptr + (tl.minimum(row, rows - 1).to(tl.int64) * codes_stride)[:, None]
    x_row = x_ptr + (tl.minimum(token, tokens - 1).to(tl.int64) * x_stride)[:, None]
    sums = tl.zeros((TOKENS, ROWS), tl.float32)
    for first in range(start, tl.minimum(start + share, columns), COLUMNS):
        at = (first + column)[None, :]
        if EVEN:
            codes = tl.load(codes_row + at)
            x = tl.load(x_row + at)
        else:
            codes = tl.load(codes_row + at, mask=at < columns, other=0)
            x = tl.load(x_row + at, mask=at < columns, other=0.0)
        # The codes are the second operand: Hopper's matrix instruction takes that one from shared memory, and
        # is waited for. As the first, converted in registers, they gave wrong sums (triton 3.6, 8 warps).
        weight = widened_half(codes) if dtype == tl.float16 else codes.to(dtype)
        sums = tl.dot(x, tl.trans(weight), sums)

    inside = (token < tokens)[:, None] & (row < rows)[None, :]
    target = y_ptr + split.to(tl.int64) * tokens * rows + token.to(tl.int64)[:, None] * rows + row[None, :]
    if SPLITS == 1:
        sums *= tl.load(scale_ptr + row, mask=row < rows, other=0.0).to(tl.float32)[None, :]
        if bias_ptr is not None:
            sums += tl.load(bias_ptr + row, mask=row < rows, other=0.0).to(tl.float32)[None, :]
    tl.store(target, sums.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def total_kernel(
    sums_ptr,
    scale_ptr,
    bias_ptr,
    y_ptr,
    tokens,
    rows,
    ROWS: tl.constexpr,
    SPLITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Add the splits' sums in their order, scale them; grid (row tiles, tokens)."""
    if PDL:
        overlap()
    token = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    y = tl.zeros((ROWS,), tl.float32)
    for split in tl.static_range(SPLITS):
        y += tl.load(sums_ptr + (split * tokens.to(tl.int64) + token) * rows + row, mask=inside, other=0.0)
    y *= tl.load(scale_ptr + row, mask=inside, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + row, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + token * rows + row, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def weight_kernel(
    codes_ptr,
    scale_ptr,
    weight_ptr,
    rows,
    columns,
    codes_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):
    """codes · scale, both in the weight's type, rounded once; grid (row tiles, column tiles)."""
    if PDL:
        overlap()
    dtype: tl.constexpr = weight_ptr.dtype.element_ty
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (row < rows)[:, None] & (column < columns)
    scale = tl.load(scale_ptr + row, mask=row < rows, other=0.0).to(dtype).to(tl.float32)
    offset = row.to(tl.int64)[:, None]
    codes = tl.load(codes_ptr + offset * codes_stride + column, mask=inside, other=0)
    weight = (widened(codes) * scale[:, None]).to(dtype)
    tl.store(weight_ptr + offset * columns + column, weight, mask=inside)
