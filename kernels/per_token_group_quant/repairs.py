"""Repairs that several checks of per_token_group_quant offer."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.checking import Fix
from kernels.dtypes import DType
from kernels.per_token_group_quant.signature import (
    DEFAULT_GROUP_SIZE,
    GROUP_SIZES,
    QuantCall,
    packed_columns,
    scale_form,
    width_of,
)
from kernels.spec import TensorSpec


def divides(group_size: object) -> bool:
    return type(group_size) is int and group_size > 0


def whole_group_size(call: QuantCall) -> Iterator[Fix[QuantCall]]:
    size = int(call.group_size)
    if size == call.group_size:
        yield Fix(f"Pass group_size={size} as an int", call.replace(group_size=size), safe=True)


def group_sizes(call: QuantCall) -> Iterator[Fix[QuantCall]]:
    """Supported sizes that divide the width, the one nearest to what was asked first, scales sized to fit."""
    if not call.input.ndim or call.hidden == 0:
        return
    asked = call.group_size if isinstance(call.group_size, (int, float)) and call.group_size else 128
    for size in sorted(GROUP_SIZES, key=lambda size: (abs(size - asked), size)):
        if call.hidden % size == 0:
            changed = call.replace(group_size=size)
            if call.output_q is not None and call.output_s is not None and call.output_s.ndim:
                groups = width_of(call.output_q) // size
                columns = packed_columns(groups) if call.output_s.dtype is DType.I32 else groups
                if columns != call.output_s.shape[-1]:
                    changed = changed.with_tensor("output_s", shape=(*call.output_s.shape[:-1], columns))
            yield Fix(
                f"Use group_size={size}",
                changed,
                safe=False,
                note="scales are shared by another number of elements",
            )


def padded_rows(call: QuantCall, size: int) -> Iterator[Fix[QuantCall]]:
    """Rows filled up with zeros to whole groups of `size`: no scale of a whole group changes by them."""
    width = call.hidden
    target = -(-width // size) * size
    if not call.input.ndim or not width or width * call.ways != width_of(call.input) or target == width:
        return
    rows = call.input.shape[:-1]
    padded = call.replace(group_size=size, input=call.input.with_shape(*rows, target * call.ways))
    if call.output_q is not None and call.output_s is not None:
        columns, _ = scale_form(target // size, ue8m0=call.output_s.dtype is DType.I32)
        padded = padded.with_tensor("output_q", shape=(*call.output_q.shape[:-1], target), offset=0)
        padded = padded.with_tensor("output_s", shape=(*call.output_s.shape[:-1], columns), offset=0)
    part = "both halves of each row" if call.fuse_silu_and_mul else "the rows"
    with_size = "" if size == call.group_size else f" and use group_size={size}"
    yield Fix(
        f"Pad {part} from {width} to {target} columns{with_size}",
        padded,
        safe=False,
        note=f"one copy of the input, {target - width} columns of zeros more in each row and in its codes; "
        "whoever reads the codes has to know of them",
    )


def no_size_divides(call: QuantCall) -> str:
    """What to do where a width has no supported group size; empty where it has one."""
    width = call.hidden if call.input.ndim else 0
    if not width or any(width % size == 0 for size in GROUP_SIZES):
        return ""
    size = call.group_size if call.group_size in GROUP_SIZES else DEFAULT_GROUP_SIZE
    target = -(-width // size) * size
    return (
        f"{width} columns are no multiple of any supported group size: pad them to {target}, or leave this "
        "layer unquantized"
    )


def rebuilt_scales(call: QuantCall, *, ue8m0: bool) -> Iterator[Fix[QuantCall]]:
    """A scale buffer of the type that `ue8m0` asks for, in the shape and order of the one given."""
    if not divides(call.group_size) or call.output_q is None or call.scales.ndim < 2:
        return
    groups = call.groups
    columns, dtype = scale_form(groups, ue8m0=ue8m0)
    shape = (*call.scales.shape[:-1], columns)
    strides = () if call.row_major else _transposed(shape)
    scales = TensorSpec(shape, dtype, strides, device=call.scales.device)
    yield Fix(
        f"Allocate output_s as {dtype} {list(shape)}",
        call.replace(output_s=scales, scale_ue8m0=ue8m0),
        safe=False,
        note="whoever reads the scales must expect this type",
    )


def _transposed(shape: tuple[int, ...]) -> tuple[int, ...]:
    *experts, tokens, columns = shape
    return (*((columns * tokens,) * len(experts)), 1, tokens)
