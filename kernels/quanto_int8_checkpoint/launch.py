"""The qint8 linear's launches.

Few tokens are bound by the codes' bytes: one token takes `dot_kernel`, some tokens `linear_kernel`, with the
columns split among programs until the device is full. Many tokens are bound by the matrix units, which
torch's product keeps busier: they take `weight_kernel`, upstream's own order of roundings.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.devices import launch, overlaps_launches, shared_memory
from kernels.offline import Variant, pointer_to
from kernels.quanto_int8_checkpoint.kernel import dot_kernel, linear_kernel, total_kernel, weight_kernel
from kernels.quanto_int8_checkpoint.plan import UNPACKED, Plan, choose_plan

TOTAL_ROWS = 512
"""Rows of a program of `total_kernel`."""

WEIGHT_TILE = (8, 1024)
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
    row_tiles = -(-rows // plan.rows)
    if not plan.tokens:
        tile = (plan.rows, plan.columns, plan.stages, even, pdl)
        grid = (row_tiles, tokens, 1)
        launch(x.device, dot_kernel, grid, (x, codes, scale, bias, y), (*sizes, *tile), **options)
        return y
    sums = y
    if plan.splits > 1:
        sums = torch.empty(plan.splits, tokens, rows, dtype=torch.float32, device=x.device)
    grid = (row_tiles * -(-tokens // plan.tokens), plan.splits, 1)
    numbers = (tokens, *sizes, plan.rows, plan.tokens, plan.columns, plan.splits, even, pdl)
    launch(x.device, linear_kernel, grid, (x, codes, scale, bias, sums), numbers, **options)
    if plan.splits > 1:
        grid = (-(-rows // TOTAL_ROWS), tokens, 1)
        added = (tokens, rows, TOTAL_ROWS, plan.splits, pdl)
        launch(x.device, total_kernel, grid, (sums, scale, bias, y), added, **options)
    return y


def _unpacked(plan: Plan, x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """The product by torch, from the weight that `weight_kernel` writes."""
    rows, columns = codes.shape
    pdl = overlaps_launches(x.device)
    weight = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    if weight.numel():
        grid = (-(-rows // WEIGHT_TILE[0]), -(-columns // WEIGHT_TILE[1]), 1)
        numbers = (rows, columns, codes.stride(0), *WEIGHT_TILE, pdl)
        launch(x.device, weight_kernel, grid, (codes, scale, weight), numbers, **_options(plan, pdl))
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
        tile = {"ROWS": plan.rows, "COLUMNS": plan.columns, "STAGES": plan.stages}
        chosen = {dot_kernel: constants | tile}
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


def _last_dense(matrix: Tensor) -> Tensor:
    """The matrix with its last stride 1, copied where it is not."""
    return matrix if matrix.stride(-1) == 1 else matrix.contiguous()
