"""Tensors and plain values as Python expressions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any

from kernels.dtypes import DType, Kind
from kernels.spec import Shape, TensorSpec, row_major
from kernels.values import (
    MAX_INT64,
    MIN_INT64,
    Arange,
    Full,
    Listed,
    Ones,
    Randint,
    Randn,
    Text,
    Values,
    Zeros,
    bounds,
    representable,
)

DRAWN = (DType.BF16, DType.F16, DType.F32, DType.F64)
"""Types in which torch draws normal values; the others are converted to."""

LARGEST = {
    DType.F8_E4M3FN: 448.0,
    DType.F8_E4M3FNUZ: 240.0,
    DType.F8_E5M2: 57_344.0,
    DType.F8_E5M2FNUZ: 57_344.0,
    DType.F16: 65_504.0,
    DType.BF16: 2.0**128 - 2.0**120,
    DType.F32: 2.0**128 - 2.0**104,
    DType.C64: 2.0**128 - 2.0**104,
}
"""Largest finite number of a type. What is larger becomes infinite, or in eight bits this number."""


MOST_KEPT = 1024
"""Tensors whose expressions are kept."""


def literal(value: Any) -> str:
    """A plain value as Python source."""
    if isinstance(value, DType):
        return f"torch.{value.torch_name}"
    if isinstance(value, float) and not isfinite(value):
        return f'float("{value}")'
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(dict(value) if isinstance(value, Mapping) else value)


def tensor(spec: TensorSpec, values: Values | None = None, device: str = "cuda") -> str:
    """An expression that builds the tensor; without values its elements are left uninitialised.

    A view is written as the slice it most likely is: of wider rows, of a buffer's tail, of an expanded row.
    """
    values = spec.values or values
    if isinstance(values, (Listed, Text)):
        return _tensor(spec, values, device)
    # Full(1) equals Full(1.0) and is written otherwise.
    form = (spec.shape, spec.dtype, spec.strides, spec.offset, spec.device)
    return _kept(form, values, repr(values), device)


@lru_cache(MOST_KEPT)
def _kept(form: tuple[Any, ...], values: Values | None, _written: str, device: str) -> str:
    """`_tensor` of such a form: the calls of one answer, and of many, have most tensors in common."""
    return _tensor(TensorSpec(*form), values, device)


def _tensor(spec: TensorSpec, values: Values | None, device: str) -> str:
    where = f'dtype=torch.{spec.dtype}, device="{_placed(spec.device, device)}"'
    if spec.is_default:
        return _dense(spec.shape, spec.dtype, values, where)
    if values is None:
        return _view(spec, None, where)
    if isinstance(values, (Zeros, Ones, Full)):
        return _view(spec, values, where)
    if spec.numel and spec.shares_memory:  # filled once
        if spec.offset == 0:
            return _view(spec, values, where)
        behind = f"torch.empty({spec.offset + spec.extent}, {where})[{spec.offset}:]"
        dense = _dense((spec.extent,), spec.dtype, values, where)
        return f"{behind}.copy_({dense}).as_strided({spec.shape}, {spec.strides})"
    dense = _dense(spec.shape, spec.dtype, values, where)
    return f"{_view(spec, None, where)}.copy_({dense})"


def _placed(own: str, device: str) -> str:
    """The device to write: `device` in place of the caller's GPU, its index kept where it is a GPU too."""
    kind, _, index = own.partition(":")
    if kind != "cuda" or device == "cuda":
        return own
    return device if not index or not device.startswith("cuda") else f"cuda:{index}"


def sizes(shape: Shape) -> str:
    """Sizes as the arguments of a call that takes them one by one."""
    return ", ".join(map(str, shape)) if shape else "()"


def _dense(shape: Shape, dtype: DType, values: Values | None, where: str) -> str:
    device = where.rpartition(", ")[2]
    if dtype is DType.F8_E8M0 and values not in (None, Zeros()):
        # what is described of exponents is their codes
        return f"{_dense(shape, DType.U8, values, f'dtype=torch.uint8, {device}')}.view(torch.{dtype})"
    cast = _clamped(dtype, values, shape) + ("" if dtype is DType.F32 else f".to(torch.{dtype})")
    viewed = "" if len(shape) == 1 else f".view({sizes(shape)})"
    match values:
        case None:
            return f"torch.empty({sizes(shape)}, {where})"
        case Zeros():
            return f"torch.zeros({sizes(shape)}, {where})"
        case Ones():
            return f"torch.ones({sizes(shape)}, {where})"
        case Full(value=value):
            [number], stated, converted = _stated([value], dtype)
            return f"torch.full({shape}, {number}, {stated}{device}){converted}"
        case Arange(start=start, step=step):
            ramp = f"torch.arange({_count(shape)}, {device})"
            scaled = ramp if step == 1 else f"{ramp} * {literal(representable(step))}"
            moved = scaled if start == 0 else f"{scaled} + {literal(representable(start))}"
            return f"({moved}){viewed}{_clamped(dtype, values, shape)}.to(torch.{dtype})"
        case Randint():
            drawn = f"torch.randint({', '.join(map(str, values.drawn()))}, {shape}, {device})"
            return (
                drawn if dtype is DType.I64 else f"{drawn}{_clamped(dtype, values, shape)}.to(torch.{dtype})"
            )
        case Randn(mean=mean, std=std):
            plain = (mean, std) == (0, 1)
            drawn = f"torch.randn({sizes(shape)}, {where if plain and dtype in DRAWN else device})"
            if plain:
                return drawn if dtype in DRAWN else drawn + cast
            scaled = f"{drawn} * {literal(representable(std))}"
            moved = scaled + (f" + {literal(representable(mean))}" if mean else "")
            return f"({moved}){cast}"
        case Listed():
            elements, stated, converted = _stated(list(values.flat()) or [0], dtype)
            repeats = max(1, -(-_count(shape) // len(elements)))
            repeated = f".repeat({repeats})" if repeats > 1 else ""
            cut = f"[:{_count(shape)}]" if repeats * len(elements) != _count(shape) else ""
            listed = f"torch.tensor([{', '.join(elements)}], {stated}{device}){converted}"
            return f"{listed}{repeated}{cut}{viewed}"
        case Text():
            data = values.encoded()[: _count(shape)]
            zeros = _count(shape) - len(data)
            padding = f" + [0] * {zeros}" if zeros else ""
            signed = dtype is DType.I8 and not data.isascii()
            stated, converted = ("dtype=torch.uint8, ", cast) if signed else (f"dtype=torch.{dtype}, ", "")
            return f"torch.tensor(list({_encoded(data)}){padding}, {stated}{device}){converted}{viewed}"


def _encoded(data: bytes) -> str:
    """Bytes as the text that they are, encoded; as bytes where they end within a character."""
    try:
        return f"{literal(data.decode())}.encode()"
    except UnicodeDecodeError:
        return repr(data)


def _stated(numbers: Sequence[float], dtype: DType) -> tuple[list[str], str, str]:
    """Numbers as source, the type to state them in, and the conversion to their own where that refuses one
    of them: torch then converts what a call in a program would have converted.
    """
    limit = LARGEST.get(dtype)
    if dtype.itemsize == 1 and limit is not None:
        numbers = [number if number != number else max(-limit, min(number, limit)) for number in numbers]
    if all(fits(number, dtype) for number in numbers):
        return [literal(number) for number in numbers], f"dtype=torch.{dtype}, ", ""
    numbers = [representable(number) for number in numbers]
    wide = DType.I64 if all(isinstance(number, int) for number in numbers) else DType.F64
    return [literal(number) for number in numbers], f"dtype=torch.{wide}, ", f".to(torch.{dtype})"


def fits(number: float, dtype: DType) -> bool:
    """Whether torch makes a tensor of this type of the number."""
    if isinstance(number, int) and not MIN_INT64 <= number <= MAX_INT64 and dtype is not DType.U64:
        return False
    if dtype is DType.U64 and isinstance(number, float):
        return False
    if dtype.kind is Kind.INT:
        signed = dtype.torch_name.startswith("int")
        least, bits = (-(1 << dtype.bits - 1), dtype.bits - 1) if signed else (0, dtype.bits)
        return isfinite(number) and least <= number < 1 << bits
    limit = LARGEST.get(dtype)
    return not isfinite(number) or limit is None or abs(number) <= limit


def _clamped(dtype: DType, values: Values | None, shape: Shape) -> str:
    """A limit for what has to become a type of eight bits: beyond it torch's releases differ."""
    limit = LARGEST.get(dtype)
    if dtype.itemsize > 1 or limit is None:
        return ""
    proved = bounds(values, shape)
    return "" if proved is None or max(map(abs, proved)) <= limit else f".clamp({-limit}, {limit})"


def _view(spec: TensorSpec, values: Values | None, where: str) -> str:
    """A tensor of this layout: a slice of a dense buffer where that gives it, else by its strides."""

    def buffer(*shape: int) -> str:
        return _dense(shape, spec.dtype, values, where)

    shape, strides, offset = spec.shape, spec.strides, spec.offset
    if len(shape) >= 2 and strides[-1] == 1 and shape[-1] <= strides[-2] - offset and shape[-1] < strides[-2]:
        wider = (*shape[:-1], strides[-2])
        if strides == row_major(wider):
            return f"{buffer(*wider)}[..., {offset or ''}:{offset + shape[-1]}]"
    if strides == row_major(shape):
        viewed = "" if len(shape) == 1 else f".view({sizes(shape)})"
        return f"{buffer(offset + spec.numel)}[{offset}:]{viewed}"
    narrow = tuple(1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True))
    if (
        offset == 0
        and 0 in strides
        and all(
            wanted == stride or stride == 0 for wanted, stride in zip(row_major(narrow), strides, strict=True)
        )
    ):
        return f"{buffer(*narrow)}.expand({sizes(shape)})"
    if values is None and offset == 0:
        return f"torch.empty_strided({shape}, {strides}, {where})"
    return f"{buffer(offset + spec.extent)}.as_strided({shape}, {strides}, {offset})"


def _count(shape: Shape) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
