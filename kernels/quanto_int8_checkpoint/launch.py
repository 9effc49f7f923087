"""The qint8 linear's plan and launches.

Few tokens are bound by the codes' bytes: one token takes `dot_kernel`, some tokens `linear_kernel`, with the
columns split among programs until the device is full. Many tokens are bound by the matrix units, which
torch's product keeps busier: they take `weight_kernel`, upstream's own order of roundings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from kernels.devices import current, overlaps_launches, shared_memory
from kernels.offline import Variant, pointer_to
from kernels.quanto_int8_checkpoint.kernel import dot_kernel, linear_kernel, total_kernel, weight_kernel


@dataclass(frozen=True)
class Plan:
    """How a product is computed: tile of a program, splits of the columns, warps, stages of loads in flight.

    One token at a time where `tokens` is 0; where `rows` is 0 too, torch multiplies by the unpacked weight.
    """

    rows: int
    tokens: int
    columns: int
    splits: int = 1
    warps: int = 4
    stages: int = 3


UNPACKED = Plan(0, 0, 0)

DEVICE_FULL = 2 * 132
"""Programs that fill the device; splits of the columns aim at it."""

SPARE = 16 << 10
"""Bytes of shared memory that the compiler takes beside the stages of loads."""

TOTAL_ROWS = 512
"""Rows of a program of `total_kernel`."""

WEIGHT_TILE = (4, 2048)
"""Rows and columns of a program of `weight_kernel`."""


def linear(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · (codes · scale)ᵀ + bias, [.., N] in x's type; arguments as in `reference.linear`, on one device.

    Queued on the current stream of x's device. Nothing is checked here: op.py's guard has done so.
    """
    rows, columns = codes.shape
    flat = _last_dense(x.reshape(-1, columns))
    codes = _last_dense(codes)
    scale = scale.reshape(rows).contiguous()
    bias = None if bias is None else bias.contiguous()
    plan = choose_plan(
        flat.shape[0],
        rows,
        columns,
        x.itemsize,
        shared_memory(x.device),
        interpreted=x.device.type == "cpu",
    )
    with current(x.device):
        compute = _unpacked if plan is UNPACKED else _packed
        return compute(plan, flat, codes, scale, bias).reshape(*x.shape[:-1], rows)


def _packed(plan: Plan, x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """The product by `dot_kernel` or `linear_kernel`."""
    tokens, (rows, columns) = x.shape[0], codes.shape
    y = torch.empty(tokens, rows, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    pdl, even = overlaps_launches(x.device), columns % plan.columns == 0
    options = _options(plan, pdl)
    sizes = (rows, columns, x.stride(0), codes.stride(0))
    if not plan.tokens:
        grid = (triton.cdiv(rows, plan.rows), tokens)
        dot_kernel[grid](x, codes, scale, bias, y, *sizes, plan.rows, plan.columns, even, pdl, **options)
        return y
    sums = y
    if plan.splits > 1:
        sums = torch.empty(plan.splits, tokens, rows, dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(rows, plan.rows) * triton.cdiv(tokens, plan.tokens), plan.splits)
    tile = (plan.rows, plan.tokens, plan.columns, plan.splits, even, pdl)
    linear_kernel[grid](x, codes, scale, bias, sums, tokens, *sizes, *tile, **options)
    if plan.splits > 1:
        grid = (triton.cdiv(rows, TOTAL_ROWS), tokens)
        total_kernel[grid](sums, scale, bias, y, tokens, rows, TOTAL_ROWS, plan.splits, pdl, **options)
    return y


def _unpacked(plan: Plan, x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """The product by torch, from the weight that `weight_kernel` writes."""
    rows, columns = codes.shape
    pdl = overlaps_launches(x.device)
    weight = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(rows, WEIGHT_TILE[0]), triton.cdiv(columns, WEIGHT_TILE[1]))
    sizes = (rows, columns, codes.stride(0))
    weight_kernel[grid](codes, scale, weight, *sizes, *WEIGHT_TILE, pdl, **_options(plan, pdl))
    return torch.nn.functional.linear(x, weight, None if bias is None else bias.to(x.dtype))


def _options(plan: Plan, pdl: bool) -> dict[str, Any]:
    return {"num_warps": plan.warps, "num_stages": plan.stages} | ({"launch_pdl": True} if pdl else {})


def variants(dtype: torch.dtype, plan: Plan, *, pdl: bool = False) -> dict[str, Variant]:
    """What `linear` compiles with a plan, even columns and no bias, for hosts without the GPU."""
    types = dict.fromkeys(("x_ptr", "y_ptr", "weight_ptr"), pointer_to(dtype))
    types |= {"codes_ptr": "*i8", "scale_ptr": pointer_to(torch.bfloat16), "sums_ptr": "*fp32"}
    constants: dict[str, object] = {"EVEN": True, "PDL": pdl, "bias_ptr": None}
    if plan is UNPACKED:
        chosen = {weight_kernel: constants | dict(zip(("ROWS", "COLUMNS"), WEIGHT_TILE, strict=True))}
    elif not plan.tokens:
        chosen = {dot_kernel: constants | {"ROWS": plan.rows, "COLUMNS": plan.columns}}
    else:
        tile = {"ROWS": plan.rows, "TOKENS": plan.tokens, "COLUMNS": plan.columns, "SPLITS": plan.splits}
        chosen = {linear_kernel: constants | tile}
        if plan.splits > 1:
            chosen[total_kernel] = constants | {"ROWS": TOTAL_ROWS, "SPLITS": plan.splits}
    aligned = frozenset([*types, "columns", "rows", "x_stride", "codes_stride"])
    found = {}
    for kernel, given in chosen.items():
        names = set(kernel.arg_names)
        own = types | ({"y_ptr": "*fp32"} if kernel is linear_kernel and plan.splits > 1 else {})
        found[kernel.__name__] = Variant(
            kernel,
            {name: kind for name, kind in own.items() if name in names},
            {name: value for name, value in given.items() if name in names},
            aligned & names,
            plan.warps,
            plan.stages,
            pdl,
        )
    return found


@lru_cache(maxsize=4096)
def choose_plan(
    tokens: int, rows: int, columns: int, itemsize: int, shared: int, *, interpreted: bool = False
) -> Plan:
    """The plan for [tokens, columns] activations of `itemsize` bytes each and [rows, columns] codes.

    It depends on shapes and the device's shared memory alone, so a captured graph may replay it. The
    interpreter pays per program: its tiles are as large as the problem, within reason.
    """
    if interpreted:
        tile = Plan(_power(rows, 16, 64), _power(tokens, 16, 64), _power(columns, 16, 256))
        return replace(tile, tokens=0) if tokens == 1 else replace(tile, splits=min(2, -(-columns // 64)))
    if tokens == 1:
        return Plan(4, 0, 2048)
    if tokens <= 128 or itemsize == 4:
        tile = Plan(64, _power(tokens, 16, 32), 128, stages=4)
        splits = max(1, min(8, DEVICE_FULL // triton.cdiv(rows, tile.rows), columns // 512))
        return _fitting(replace(tile, splits=splits), itemsize, shared)
    return UNPACKED


def _fitting(plan: Plan, itemsize: int, shared: int) -> Plan:
    """The plan with as many stages, of those it has, as the device's shared memory holds."""
    stage = plan.columns * (plan.rows + plan.tokens * itemsize)
    return replace(plan, stages=max(1, min(plan.stages, (shared - SPARE) // stage)))


def _power(value: int, least: int, most: int) -> int:
    """The smallest power of two ≥ value, within the bounds."""
    return min(max(1 << (value - 1).bit_length(), least), most)


def _last_dense(matrix: Tensor) -> Tensor:
    """The matrix with its last stride 1, copied where it is not."""
    return matrix if matrix.stride(-1) == 1 else matrix.contiguous()
