"""From live tensors to specs, so that one set of checks serves both running code and a described call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from kernels.call import Call
from kernels.checking import Stages
from kernels.dtypes import DType
from kernels.examining import guard
from kernels.spec import BASE_ALIGNMENT, TensorSpec
from kernels.target import Target

C = TypeVar("C", bound=Call)

_aimed: ContextVar[Target | None] = ContextVar("aimed", default=None)
_stated: ContextVar[Mapping[int, str]] = ContextVar("stated", default=MappingProxyType({}))

PASSED_LIMIT = 4096
"""Signatures a guard remembers as passed before it starts over; bounds the memory of a long-lived process."""


@contextmanager
def stated_devices(devices: Mapping[int, str], target: Target | None = None) -> Iterator[None]:
    """Within it, tensors whose id() is listed count as being on the device stated, wherever they are, and
    calls are for the target where one is given.

    For the worker alone: a host without the caller's GPU emulates it, and says so.
    """
    token, aim = _stated.set(devices), _aimed.set(target)
    try:
        yield
    finally:
        _stated.reset(token)
        _aimed.reset(aim)


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Describe a live tensor; the offset is its address modulo the base alignment, in elements, rounded
    down.
    """
    itemsize = tensor.element_size()
    return TensorSpec(
        shape=tuple(tensor.shape),
        dtype=dtype_of(tensor.dtype),
        strides=tensor.stride(),
        offset=tensor.data_ptr() % BASE_ALIGNMENT // itemsize if tensor.device.type != "meta" else 0,
        device=_stated.get().get(id(tensor)) or str(tensor.device),
    )


@cache
def dtype_of(dtype: torch.dtype) -> DType:
    """torch's dtype as ours."""
    return DType.parse(str(dtype))


@cache
def torch_dtype(dtype: DType) -> torch.dtype:
    """Our dtype as torch's; raises ValueError where torch has none."""
    found = getattr(torch, dtype.torch_name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"this torch has no tensors of {dtype}")
    return found


def described(call: type[C], arguments: Mapping[str, Any]) -> C:
    """The call that live arguments make: tensors become specs, torch dtypes ours, the rest stays; its target
    is the one stated, else the first GPU among them.
    """
    devices = (value.device for value in arguments.values() if isinstance(value, torch.Tensor))
    gpu = next((device for device in devices if device.type == "cuda"), None)
    values = {name: _described(value) for name, value in arguments.items()}
    return call(**values, target=_aimed.get() or (None if gpu is None else target_of(gpu)))


@cache
def target_of(device: torch.device) -> Target:
    """The architecture of a CUDA or HIP device."""
    if torch.version.hip is not None:
        return Target(torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0])
    major, minor = torch.cuda.get_device_capability(device)
    return Target.of_capability(f"{major}.{minor}")


class Guard:
    """Raises what upstream would for live arguments; a signature that passed once is not examined again.

    Checks are pure functions of shapes, dtypes, strides, alignments, devices and plain values, so the
    verdict for equal
    signatures is equal.
    """

    def __init__(self, call: type[Call], stages: Stages) -> None:
        self._call = call
        self._stages = stages
        self._passed: set[tuple[object, ...]] = set()

    def __call__(self, arguments: Mapping[str, Any]) -> None:
        """Raise the first violation as upstream's exception."""
        signature = (_aimed.get(), *(_key(value) for value in arguments.values()))
        if signature in self._passed:
            return
        guard(self._stages, described(self._call, arguments))
        if len(self._passed) >= PASSED_LIMIT:
            self._passed.clear()
        self._passed.add(signature)


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return spec_of(value)
    return dtype_of(value) if isinstance(value, torch.dtype) else value


def _key(value: Any) -> object:
    if isinstance(value, torch.Tensor):
        device = _stated.get().get(id(value)) or value.device
        return value.shape, value.stride(), value.dtype, value.data_ptr() % BASE_ALIGNMENT, device
    return type(value), value
