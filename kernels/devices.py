"""How our kernels are launched: on the tensors' device, overlapping, past Triton's binder."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from kernels.interpreter import is_interpreting

MOST_KEPT = 1 << 14
"""Launches whose kernel is kept; sizes are part of what tells them apart."""

_kept: dict[tuple[Any, ...], Any] = {}


def launch(
    device: torch.device,
    kernel: Any,
    grid: tuple[int, int, int],
    tensors: Sequence[torch.Tensor | None],
    numbers: Sequence[float],
    **options: Any,
) -> None:
    """Start a Triton kernel on the current stream of a device; all its arguments in order, constants too.

    Triton's binder works out at every call what to compile for, which takes longer than small kernels run.
    Here it does so once for equal types, alignments and numbers; after that the compiled kernel is called.
    """
    if device.type != "cuda" or torch.version.hip is not None:
        kernel[grid](*tensors, *numbers, **options)
        return
    if device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            launch(device, kernel, grid, tensors, numbers, **options)
        return
    forms = [None if tensor is None else (tensor.dtype, tensor.data_ptr() % 16) for tensor in tensors]
    key = (id(kernel), device.index, *forms, tuple(numbers), *options.values())
    compiled = _kept.get(key)
    if compiled is not None:
        compiled[grid](*tensors, *numbers)
        return
    if len(_kept) >= MOST_KEPT:
        _kept.clear()
    _kept[key] = kernel[grid](*tensors, *numbers, **options)


@lru_cache
def overlaps_launches(device: torch.device) -> bool:
    """Whether a kernel may be launched before the one in front of it ends: programmatic dependent launch.

    Such a kernel waits by itself before it touches memory. sm90 brought it; AMD's devices have none.
    """
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


@lru_cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may have there; unlimited where kernels are interpreted."""
    if device.type != "cuda":
        return sys.maxsize
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block))


def runs_kernels(device: torch.device) -> bool:
    """Whether this process runs kernels on tensors there: on a GPU, and on the CPU where it interprets them.

    Asking imports no triton: its mode is fixed by that, and may not be chosen yet.
    """
    return device.type == "cuda" or ("triton" in sys.modules and is_interpreting())
