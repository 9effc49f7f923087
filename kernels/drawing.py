"""What described tensors turn out to hold: elements that are drawn are known once they are drawn."""

from __future__ import annotations

from dataclasses import replace

import torch

from kernels.call import Call
from kernels.dtypes import ROUNDS_TO_INFINITY, DType, Kind
from kernels.expressions import fits
from kernels.live import torch_dtype
from kernels.running import build_tensor, fill_tensor
from kernels.spec import TensorSpec
from kernels.values import Randint, Randn

MOST_WRITTEN = 1 << 16
"""Elements of a tensor beyond which a draw is not written out."""

DEVIATIONS = 8
"""Standard deviations that no draw is off its mean: of float32's 2^24 uniform numbers come 5.8 at most."""

Elements = tuple[float | int | bool, ...]


def drawn(call: Call) -> dict[str, Elements]:
    """The elements, in row-major order, of each tensor that is described as drawn and names its seed; of more
    than MOST_WRITTEN the smallest and the largest, where its description does not tell between what they are.
    """
    told = {name: _told(tensor) for name, tensor in call.tensors() if _is_drawn(tensor)}
    return {name: elements for name, elements in told.items() if elements}


def _is_drawn(tensor: TensorSpec) -> bool:
    return isinstance(tensor.values, (Randint, Randn)) and tensor.dtype.in_torch and tensor.numel > 0


def _told(tensor: TensorSpec) -> Elements:
    if tensor.numel <= MOST_WRITTEN:
        return tuple(_wide(_held(tensor)).flatten().tolist())
    if not _surprises(tensor):
        return ()
    held = _held(tensor)
    for dimension, stride in enumerate(tensor.strides):
        if stride == 0:  # one element, however often it is repeated
            held = held.narrow(dimension, 0, 1)
    wide = _wide(held)
    return wide.min().item(), wide.max().item()


def _surprises(tensor: TensorSpec) -> bool:
    """Whether elements may lie elsewhere than the description proves: whole numbers drawn from the normal
    distribution or wrapped around, and floats beyond their type's range.
    """
    dtype, values = tensor.dtype, tensor.values
    if dtype is DType.U64 or dtype.kind is Kind.COMPLEX:
        return False  # torch compares none of them
    if isinstance(values, Randint):
        low, high = values.drawn()
        return dtype.kind is Kind.INT and not (fits(low, dtype) and fits(high - 1, dtype))
    assert isinstance(values, Randn)
    if dtype.kind is not Kind.FLOAT:
        return True
    limit = ROUNDS_TO_INFINITY.get(dtype, ROUNDS_TO_INFINITY[DType.F32])  # it is drawn in float32
    return dtype.itemsize > 1 and not abs(values.mean) + DEVIATIONS * values.std < limit


def _held(tensor: TensorSpec) -> torch.Tensor:
    """The tensor as a run has it, on the CPU; dense where no elements share memory."""
    assert tensor.values is not None
    if tensor.shares_memory:
        return build_tensor(replace(tensor, device="cpu"), tensor.values, "cpu")
    held = torch.empty(tensor.shape, dtype=torch_dtype(tensor.dtype))
    fill_tensor(held, tensor.values)
    return held


def _wide(held: torch.Tensor) -> torch.Tensor:
    """The same numbers in a type that torch computes with; exponents as their codes."""
    if held.dtype is torch.float8_e8m0fnu:
        return held.view(torch.uint8)
    if held.is_floating_point():
        return held.float() if held.itemsize < 4 else held
    return held.to(torch.int64) if held.dtype in (torch.uint16, torch.uint32) else held
