"""Group-wise 8-bit quantisation in Triton: each input byte is read once, each output byte written once.

A program owns a tile of ROWS × GROUPS groups, so amax, scale and codes stay in registers. Scale addresses
come from the strides of output_s alone: one code covers the row- and column-major layouts of README.md.
Division is Triton's plain `/` (the GPU's approximate one): on Hopper the codes then equal upstream's bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.devices import launch as start
from kernels.devices import overlaps_launches
from kernels.offline import Variant, pointer_to

FP8_MAX = tl.constexpr(448.0)
INT8_MAX = tl.constexpr(127.0)
AMAX_FLOOR = tl.constexpr(1e-10)
DIVISOR_LIMIT = tl.constexpr(2.0**126)
INFINITY = tl.constexpr(float("inf"))
# 2^(127 - e) overflows float16 when e is at most this.
FP16_OVERFLOW_EXPONENT = tl.constexpr(127 - 16)


@triton.jit(do_not_specialize=["rows"])
def per_token_group_quant_kernel(
    input_ptr,
    output_q_ptr,
    output_s_ptr,
    masked_m_ptr,
    rows,
    input_expert_stride,
    input_row_stride,
    output_q_expert_stride,
    output_q_row_stride,
    output_s_expert_stride,
    output_s_row_stride,
    output_s_group_stride,
    groups: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    UE8M0: tl.constexpr,
    SILU: tl.constexpr,
    DENSE: tl.constexpr,
    MASKED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Quantise one tile; strides in elements, grid (row tiles · group tiles, experts)."""
    if PDL:
        # The next kernel may come up now: like this one, it waits for those before it to have ended.
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    input_type: tl.constexpr = input_ptr.dtype.element_ty
    to_int8: tl.constexpr = output_q_ptr.dtype.element_ty == tl.int8

    group_tiles: tl.constexpr = (groups + GROUPS - 1) // GROUPS
    row_tile = tl.program_id(0) // group_tiles
    first_group = (tl.program_id(0) - row_tile * group_tiles) * GROUPS
    first_row = row_tile * ROWS
    expert = tl.program_id(1).to(tl.int64)

    if MASKED:
        # Of an int64 count upstream reads the low word. The bound keeps a wrong count inside the expert.
        rows = tl.minimum(tl.load(masked_m_ptr + expert).to(tl.int32), rows)
        if first_row >= rows:
            return

    row = first_row + tl.arange(0, ROWS)
    group = first_group + tl.arange(0, GROUPS)
    row_offset = row.to(tl.int64)
    column = (group * GROUP_SIZE)[None, :, None] + tl.arange(0, GROUP_SIZE)[None, None, :]
    inside = (row < rows)[:, None]
    if groups % GROUPS != 0:
        inside &= (group < groups)[None, :]
    inside = tl.broadcast_to(inside, (ROWS, GROUPS))

    source = (
        input_ptr + expert * input_expert_stride + (row_offset * input_row_stride)[:, None, None] + column
    )
    y = tl.load(source, mask=inside[:, :, None], other=0.0).to(tl.float32)
    if SILU:
        up = tl.load(source + groups * GROUP_SIZE, mask=inside[:, :, None], other=0.0).to(tl.float32)
        y = y / (1.0 + tl.exp(-y))
        if not DENSE:
            y = y.to(input_type).to(tl.float32)
        y = (y * up).to(input_type).to(tl.float32)

    # max and min return the operand that is not NaN, here and below.
    amax = tl.maximum(tl.max(tl.abs(y), axis=2), AMAX_FLOOR)
    largest: tl.constexpr = INT8_MAX if to_int8 else FP8_MAX
    scale = amax * (1.0 / largest)
    if UE8M0:
        bits = scale.to(tl.int32, bitcast=True)
        exponent = ((bits >> 23) & 0xFF) + ((bits & 0x7FFFFF) != 0).to(tl.int32)
        # A power of two scales float32 and bfloat16 exactly: no product needs rounding to the input's type.
        multiplier = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
        if input_type == tl.float16:
            multiplier = tl.where(exponent <= FP16_OVERFLOW_EXPONENT, INFINITY, multiplier)
    else:
        # The approximate quotient is 0 there already; an exact division, as in the interpreter, is not.
        multiplier = tl.where(amax > DIVISOR_LIMIT, 0.0, largest / amax)

    product = y * multiplier[:, :, None]
    if to_int8:
        code = tl.minimum(tl.maximum(product, -128.0), INT8_MAX).to(tl.int32).to(tl.int8)
    else:
        code = tl.maximum(tl.minimum(product, FP8_MAX), -FP8_MAX).to(tl.float8e4nv)
    target = output_q_ptr + expert * output_q_expert_stride
    target += (row_offset * output_q_row_stride)[:, None, None] + column
    tl.store(target, code, mask=inside[:, :, None])

    scale_row = (output_s_ptr + expert * output_s_expert_stride + row_offset * output_s_row_stride)[:, None]
    if UE8M0:
        # Groups past the end of the last word put zeros into its pad bytes.
        word = scale_row + ((group // 4).to(tl.int64) * output_s_group_stride)[None, :]
        byte = word.to(tl.pointer_type(tl.uint8)) + (group % 4)[None, :]
        padded: tl.constexpr = (groups + 3) // 4 * 4
        code = tl.where((group < groups)[None, :], exponent, 0).to(tl.uint8)
        tl.store(byte, code, mask=(row < rows)[:, None] & (group < padded)[None, :])
    else:
        tl.store(scale_row + (group.to(tl.int64) * output_s_group_stride)[None, :], scale, mask=inside)


FEW_PROGRAMS = 1024
"""Programs that an H200 brings up at once."""


@dataclass(frozen=True)
class Tile:
    """What one program covers: ROWS rows of GROUPS groups each, both powers of two, with `warps` warps."""

    rows: int
    groups: int
    warps: int


def launch(
    input: Tensor,  # noqa: A002 (upstream's name)
    output_q: Tensor,
    output_s: Tensor,
    group_size: int,
    *,
    scale_ue8m0: bool = False,
    fuse_silu_and_mul: bool = False,
    masked_m: Tensor | None = None,
    silu_and_mul_mode: str = "legacy",
) -> None:
    """Start the kernel on the current stream of the tensors' device; arguments as in `reference.quantize`.

    Nothing is checked here: op.py's guard has done so. With no row, expert or group nothing is launched.
    """
    masked = masked_m is not None
    prepared = _prepared(
        output_q.shape,
        input.stride(),
        output_q.stride(),
        output_s.stride(),
        group_size,
        scale_ue8m0,
        fuse_silu_and_mul,
        silu_and_mul_mode,
        masked,
        overlaps_launches(input.device),
        input.device.type == "cpu",
    )
    if prepared is not None:
        grid, numbers, options = prepared
        tensors = (input, output_q, output_s, masked_m)
        start(input.device, per_token_group_quant_kernel, grid, tensors, numbers, **options)


@lru_cache(maxsize=4096)
def _prepared(
    shape: tuple[int, ...],
    input_strides: tuple[int, ...],
    code_strides: tuple[int, ...],
    scale_strides: tuple[int, ...],
    group_size: int,
    packed: bool,
    silu: bool,
    mode: str,
    masked: bool,
    pdl: bool,
    interpreted: bool,
) -> tuple[tuple[int, int, int], tuple[int, ...], dict[str, Any]] | None:
    """Grid, numbers and options of a launch for codes of this shape; None where there is nothing to do."""
    rows, width = shape[-2:]
    experts = shape[0] if masked else 1
    groups = width // group_size
    if rows == 0 or experts == 0 or groups == 0:
        return None
    tile = choose_tile(rows, groups, group_size, packed=packed, interpreted=interpreted)
    flags = _flags(packed, silu, mode, masked=masked, pdl=pdl)
    numbers = (
        rows,
        *_strides(input_strides)[:2],
        *_strides(code_strides)[:2],
        *_strides(scale_strides),
        groups,
        group_size,
        tile.rows,
        tile.groups,
        *flags.values(),
    )
    programs = -(-rows // tile.rows) * -(-groups // tile.groups)
    options = {"num_warps": tile.warps} | ({"launch_pdl": True} if pdl else {})
    return (programs, experts, 1), numbers, options


def variant(
    input_type: torch.dtype,
    output_type: torch.dtype,
    *,
    rows: int,
    groups: int,
    group_size: int = 128,
    scale_ue8m0: bool = False,
    fuse_silu_and_mul: bool = False,
    silu_and_mul_mode: str = "legacy",
    masked: bool = False,
    pdl: bool = False,
) -> Variant:
    """The compilation that `launch` asks for with such tensors, for hosts without the GPU."""
    tile = choose_tile(rows, groups, group_size, packed=scale_ue8m0)
    pointers = {
        "input_ptr": pointer_to(input_type),
        "output_q_ptr": pointer_to(output_type),
        "output_s_ptr": pointer_to(torch.int32 if scale_ue8m0 else torch.float32),
    }
    if masked:
        pointers["masked_m_ptr"] = pointer_to(torch.int32)
    constants: dict[str, object] = {"groups": groups, "GROUP_SIZE": group_size}
    constants |= {"ROWS": tile.rows, "GROUPS": tile.groups}
    constants |= _flags(scale_ue8m0, fuse_silu_and_mul, silu_and_mul_mode, masked=masked, pdl=pdl)
    if not masked:
        constants["masked_m_ptr"] = None
    return Variant(
        kernel=per_token_group_quant_kernel,
        types=pointers,
        constants=constants,
        aligned=frozenset([*pointers, "input_row_stride", "output_q_row_stride"]),
        warps=tile.warps,
        overlapped=pdl,
    )


def _flags(
    scale_ue8m0: bool, fuse_silu_and_mul: bool, mode: str, *, masked: bool, pdl: bool
) -> dict[str, bool]:
    """The kernel's switches, in the order of its parameters."""
    return {
        "UE8M0": scale_ue8m0,
        "SILU": fuse_silu_and_mul,
        "DENSE": fuse_silu_and_mul and mode == "dense",
        "MASKED": masked,
        "PDL": pdl,
    }


def choose_tile(rows: int, groups: int, group_size: int, *, packed: bool, interpreted: bool = False) -> Tile:
    """The tile for a problem of `rows` rows (an expert) of `groups` groups.

    On a GPU: up to 1024 elements of a row, 16 a thread. The groups are the power of two that leaves the
    fewest lanes idle, but at least 128 elements, so that accesses stay contiguous; packed scales need whole
    words of four groups. Where programs are many, two rows each: launches that overlap bring up fewer
    programs a microsecond (docs/measurements.md). The interpreter pays per program: its tiles are as large
    as the problem, within reason.
    """
    fewest = max(4 if packed else 1, 128 // group_size)
    if interpreted:
        return Tile(
            rows=_power_of_two(min(rows, 64)), groups=_power_of_two(max(fewest, min(groups, 64))), warps=4
        )
    options = [1 << power for power in range(7) if fewest <= 1 << power <= max(fewest, 1024 // group_size)]
    best = min(options, key=lambda option: (-(-groups // option) * option, -option))
    row_elements = best * group_size
    tile_rows = max(1, 1024 // row_elements)
    if rows * -(-groups // best) > FEW_PROGRAMS * tile_rows:
        tile_rows *= 2
    tile_rows = min(tile_rows, _power_of_two(rows))
    return Tile(rows=tile_rows, groups=best, warps=max(1, tile_rows * row_elements // 512))


def _strides(strides: tuple[int, ...]) -> tuple[int, int, int]:
    """Strides of experts, rows and the last dimension, in elements; a flat tensor is one expert."""
    row, last = strides[-2:]
    return (strides[0] if len(strides) == 3 else 0), row, last


def _power_of_two(value: int) -> int:
    """The smallest power of two ≥ value ≥ 1."""
    return 1 << (value - 1).bit_length()
