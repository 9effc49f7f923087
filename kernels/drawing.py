"""What described tensors turn out to hold: elements that are drawn are known once they are drawn."""

from __future__ import annotations

import torch

from kernels.call import Call
from kernels.live import torch_dtype
from kernels.running import fill_tensor
from kernels.spec import TensorSpec
from kernels.values import Randint, Randn

MOST_WRITTEN = 1 << 16
"""Elements of a tensor beyond which a draw is not written out."""


def drawn(call: Call) -> dict[str, tuple[float | int | bool, ...]]:
    """The elements, in row-major order, of each tensor that is described as drawn and names its seed; those
    that share memory, or are too many, are left out.
    """
    return {name: _elements(tensor) for name, tensor in call.tensors() if _is_drawn(tensor)}


def _is_drawn(tensor: TensorSpec) -> bool:
    drawn = isinstance(tensor.values, (Randint, Randn)) and tensor.dtype.in_torch
    return drawn and not tensor.shares_memory and 0 < tensor.numel <= MOST_WRITTEN


def _elements(tensor: TensorSpec) -> tuple[float | int | bool, ...]:
    assert tensor.values is not None
    held = torch.empty(tensor.shape, dtype=torch_dtype(tensor.dtype))
    fill_tensor(held, tensor.values)
    if held.dtype is torch.float8_e8m0fnu:
        held = held.view(torch.uint8)
    wide = held.float() if held.is_floating_point() and held.itemsize < 4 else held
    return tuple(wide.flatten().tolist())
