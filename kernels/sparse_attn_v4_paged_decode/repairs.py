"""Repairs of the pool's codes and of its scales."""

from __future__ import annotations

from dataclasses import replace

from kernels.dtypes import DType
from kernels.sparse_attn_v4_paged_decode.signature import GROUP
from kernels.spec import Shape, TensorSpec

CONVERTED = {
    DType.F8_E4M3FNUZ: (
        "one pass over the pool: a byte means half as much in this type, so the scales double; 0x80 (-0) has "
        "to become 0, for it is NaN there"
    ),
    DType.F8_E4M3FN: (
        "one pass over the pool: a byte means twice as much in this type, so the scales halve; 0x80 (NaN) "
        "has to become 0x7F, for it is -0 there"
    ),
}
"""What a conversion between the two E4M3 types takes."""


def rearranged(scales: TensorSpec, wanted: Shape) -> tuple[str, TensorSpec, str] | None:
    """The same scales in the shape wanted, where no scale is lost by it: title, tensor, what it means."""
    slots, groups = wanted
    if scales.shape == (groups, slots):
        transposed = replace(scales, shape=wanted, strides=scales.strides[::-1], values=None)
        return "Transpose kv_scales", transposed, "a view; its rows are copied when the call needs them dense"
    fresh = scales.with_shape(*wanted)
    if scales.shape == (fresh.numel,) or _without_units(scales.shape) == _without_units(wanted):
        return f"Reshape kv_scales to {list(wanted)}", fresh, ""
    if scales.numel == 1:
        return f"Expand the one scale to {list(wanted)}", fresh, "right where the whole pool shares it"
    if scales.ndim in (1, 2) and scales.shape[0] == slots and scales.numel:
        held = scales.numel // slots
        if groups % held == 0:
            return (
                f"Repeat each scale for its {groups // held} groups of {GROUP} columns",
                fresh,
                f"right where a scale was shared by {groups // held * GROUP} columns",
            )
    return None


def _without_units(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)
