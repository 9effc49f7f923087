"""One tensor made of another: what to write after a caller's own definition to get the layout of a fix."""

from __future__ import annotations

from kernels.dtypes import DType
from kernels.expressions import sizes
from kernels.spec import TensorSpec, row_major

BYTES = (DType.U8, DType.I8)
"""Types as which the codes of 8-bit floats are kept: what is meant then are the bits."""


def converted(name: str, before: TensorSpec, after: TensorSpec) -> str | None:
    """An expression of `name` that turns a tensor of the first form into one of the second, its elements
    kept; None where only its owner knows how: other sizes, other values, a view of other memory.
    """
    alike = before.values == after.values and before.numel == after.numel and before.dtype.in_torch
    if not alike or after.offset:
        return None
    steps = [*_shaped(before, after)]
    if not steps and before.shape != after.shape:
        return None
    if before.dtype is not after.dtype and _by_bits(before.dtype, after.dtype):
        steps.append(f".view(torch.{after.dtype})")
    elif before.dtype is not after.dtype:
        steps.append(f".to(torch.{after.dtype})")
    if before.device_index != after.device_index:
        steps.append(f'.to(device="{after.device}")')
    if not _laid_out(after, steps):
        shape, strides = after.shape, after.strides
        made = f'torch.empty_strided({shape}, {strides}, dtype=torch.{after.dtype}, device="{after.device}")'
        return f"{made}.copy_({name}{''.join(steps)})"
    relaid = before.shape == after.shape and before.strides != after.strides
    copied = any(step.startswith((".to(", ".contiguous(")) for step in steps)
    if not before.is_contiguous and (relaid or _reshapes(steps)):
        steps.append(".contiguous()")
    elif relaid or (before.offset and not copied):
        steps.append(".clone(memory_format=torch.contiguous_format)")
    return f"{name}{''.join(steps)}" if steps else None


def _shaped(before: TensorSpec, after: TensorSpec) -> list[str]:
    """The steps from one shape to another of as many elements; sizes that change places are transposed."""
    if before.shape == after.shape:
        return []
    if before.ndim == after.ndim == 2 and before.shape == after.shape[::-1] and 1 not in before.shape:
        dense = after.strides != before.strides[::-1]
        return [".t()", *([".contiguous()"] if dense else [])]
    return [f".reshape({sizes(after.shape)})"] if after.strides == row_major(after.shape) else []


def _reshapes(steps: list[str]) -> bool:
    return bool(steps) and steps[0].startswith(".reshape(")


def _laid_out(after: TensorSpec, steps: list[str]) -> bool:
    """Whether the layout is one that the steps, or a dense copy, give."""
    return after.strides == row_major(after.shape) or steps == [".t()"]


def _by_bits(before: DType, after: DType) -> bool:
    return before.bits == after.bits == 8 and (before in BYTES) != (after in BYTES)
