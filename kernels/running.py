"""Running an operation on described tensors: build them, call the guarded function, compare with the
reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal

import torch

from kernels.call import Call
from kernels.dtypes import DType
from kernels.guarding import guarded, row_major_bytes
from kernels.live import torch_dtype
from kernels.spec import TensorSpec
from kernels.values import Arange, Full, Listed, Ones, Randint, Randn, Text, Values, Zeros, representable

Arguments = dict[str, Any]
Outputs = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far an output may be from its reference: |a - b| <= atol + rtol·|b|, except for a share of
    elements.

    share   fraction of elements that may lie outside; of few elements, as many as chance makes of it
    step    largest difference allowed for those, in codes (8-bit outputs) or units (others)
    """

    atol: float = 0.0
    rtol: float = 0.0
    share: float = 0.0
    step: float = 0.0


@dataclass(frozen=True, slots=True)
class Runner:
    """How the worker runs one operation.

    function        the public function on live tensors: guards, then launches
    outputs         (arguments, returned value) → every tensor the call wrote, by name
    reference       arguments → the same tensors from plain torch; never calls the kernel
    tolerance       (output name, call) → how far it may be from the reference
    implementation  what `function` runs on this host
    build           (call, fill, device) → live arguments; `materialise` unless an argument is not a tensor
    """

    function: Callable[..., Any]
    outputs: Callable[[Arguments, Any], Outputs]
    reference: Callable[[Arguments], Outputs]
    tolerance: Callable[[str, Any], Tolerance]
    implementation: Literal["triton", "reference", "library"] = "triton"
    build: Callable[[Call, Mapping[str, Values], str], Arguments] | None = None


def materialise(call: Call, fill: Mapping[str, Values], device: str) -> Arguments:
    """Live arguments of a call: tensors built on `device` with the described layout, other values as they
    are.

    A tensor holds its described values, else its fill, else poison bytes.
    """
    arguments: Arguments = {}
    for parameter in call.arguments():
        value = getattr(call, parameter.name)
        if isinstance(value, TensorSpec):
            arguments[parameter.name] = build_tensor(value, value.values or fill.get(parameter.name), device)
        else:
            arguments[parameter.name] = _live(value)
    return arguments


def build_tensor(spec: TensorSpec, values: Values | None, device: str) -> torch.Tensor:
    """One tensor with the spec's shape, strides, dtype and alignment; poisoned where no values are given."""
    dtype = torch_dtype(spec.dtype)
    storage = guarded(spec.storage_bytes, device).view(dtype)
    tensor = storage.as_strided(spec.shape, spec.strides, storage.storage_offset() + spec.offset)
    if values is not None and spec.numel:
        # Memory that elements share is filled once, in order.
        fill_tensor(storage[spec.offset :] if spec.shares_memory else tensor, values)
    return tensor


def fill_tensor(tensor: torch.Tensor, values: Values) -> None:
    """Write the described values, in row-major order; drawn in float64 or int64 on the CPU, so that
    devices agree.
    """
    match values:
        case Zeros():
            drawn = torch.zeros((), dtype=torch.float64)
        case Ones():
            drawn = torch.ones((), dtype=torch.float64)
        case Full(value=value):
            drawn = _wide([value])[0]
        case Arange(start=start, step=step):
            ramp = torch.arange(tensor.numel())
            drawn = (ramp * _wide([step]) + _wide([start])).reshape(tensor.shape)
        case Randint(seed=seed):
            drawn = torch.randint(*values.drawn(), tensor.shape, generator=_generator(seed))
        case Randn(mean=mean, std=std, seed=seed):
            drawn = torch.randn(tensor.shape, generator=_generator(seed))
            drawn = drawn * representable(std) + representable(mean)
        case Listed():
            flat = _wide(list(values.flat()) or [0])
            repeats = -(-tensor.numel() // flat.numel())
            drawn = flat.repeat(repeats)[: tensor.numel()].reshape(tensor.shape)
        case Text():
            written = torch.tensor(list(values.encoded()[: tensor.numel()]), dtype=torch.uint8)
            drawn = torch.zeros(tensor.numel(), dtype=torch.uint8)
            drawn[: written.numel()] = written
            drawn = drawn.reshape(tensor.shape)
    drawn = drawn.to(tensor.device)
    if tensor.dtype.itemsize == 1 and tensor.dtype.is_floating_point:
        limit = torch.finfo(tensor.dtype).max
        drawn = drawn.to(torch.float32).clamp(-limit, limit)
    target = tensor.view(torch.uint8) if tensor.dtype is torch.float8_e8m0fnu else tensor
    target.copy_(drawn.expand(tensor.shape).to(target.dtype))


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output against its reference, largest differences over finite elements."""

    name: str
    max_abs_error: float
    max_rel_error: float
    mismatches: int
    elements: int
    within: bool


def compare(name: str, actual: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance) -> Comparison:
    """Element-wise difference; equal NaNs agree, and 8-bit floats may differ by `step` neighbouring codes."""
    if actual.numel() == 0:
        return Comparison(name, 0.0, 0.0, 0, 0, actual.shape == expected.shape)
    if _same_bytes(actual, expected):
        return Comparison(name, 0.0, 0.0, 0, actual.numel(), True)
    a, b = _widened(actual), _widened(expected)
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, torch.zeros_like(a), (a - b).abs())
    relative = torch.where(
        same, torch.zeros_like(a), difference / b.abs().clamp_min(torch.finfo(torch.float64).tiny)
    )
    outside = ~same & ~(difference <= tolerance.atol + tolerance.rtol * b.abs())
    mismatches = int(outside.sum())
    steps = _steps(actual, expected) if actual.dtype.itemsize == 1 else difference
    expected_mismatches = tolerance.share * a.numel()
    # Four standard deviations of a rare event's count: 1,000 elements vary more than a million do.
    few = mismatches <= expected_mismatches + 4 * sqrt(expected_mismatches)
    allowed = few and not bool((outside & ~(steps <= tolerance.step)).any())
    return Comparison(
        name,
        _largest(difference),
        _largest(relative),
        mismatches,
        a.numel(),
        mismatches == 0 or allowed,
    )


def _same_bytes(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether nothing is left to measure, as it is most often; equal NaNs are equal bytes here."""
    if (actual.shape, actual.dtype, actual.device) != (expected.shape, expected.dtype, expected.device):
        return False
    held, wanted = (row_major_bytes(tensor.detach()) for tensor in (actual, expected))
    return torch.equal(held, wanted)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype is torch.float8_e8m0fnu:
        tensor = tensor.view(torch.uint8)
    return tensor.detach().to("cpu").to(torch.float64)


def _steps(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Distance in codes: sign-magnitude floats are unfolded so that neighbours differ by one."""
    return (_ordinal(actual) - _ordinal(expected)).abs()


def _ordinal(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.dtype.is_floating_point or tensor.dtype is torch.float8_e8m0fnu:
        return _widened(tensor)
    codes = tensor.detach().to("cpu").contiguous().view(torch.uint8).to(torch.float64)
    return torch.where(codes >= 128, -(codes - 128), codes)


def _largest(values: torch.Tensor) -> float:
    finite = values[values.isfinite()]
    return float(finite.max()) if finite.numel() else float("inf") if values.numel() else 0.0


def _wide(numbers: list[float]) -> torch.Tensor:
    """Numbers in the type that loses least of them: int64 or bool, or float64 where one is a float."""
    numbers = [representable(number) for number in numbers]
    return torch.tensor(numbers, dtype=torch.float64 if any(isinstance(x, float) for x in numbers) else None)


def _generator(seed: int | None) -> torch.Generator:
    return torch.Generator().manual_seed(0 if seed is None else seed)


def _live(value: Any) -> Any:
    return torch_dtype(value) if isinstance(value, DType) else value
