"""Small Triton kernels whose results torch gives too: what `interpreter.self_test()` runs.

They run on CPU tensors in interpreter mode. A probe returns None, or a sentence about the first difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

PATTERNS = tl.constexpr(1 << 16)  # every bit pattern of a 16-bit type
SIDE = tl.constexpr(32)  # of the square matrices that are multiplied

FP8_MAX = torch.finfo(torch.float8_e4m3fn).max
SIGNALLING_NAN = 0x7F810000  # as float32 bits; a bfloat16 too
LOW_HALVES = (0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF)  # ties of bfloat16, and one unit to either side


@triton.jit
def _convert(source, target, COUNT: tl.constexpr):
    index = tl.arange(0, COUNT)
    tl.store(target + index, tl.load(source + index).to(target.dtype.element_ty))


@triton.jit
def _arithmetic(a, b, total, product, less, smaller, larger):
    index = tl.arange(0, PATTERNS)
    x, y = tl.load(a + index), tl.load(b + index)
    tl.store(total + index, x + y)
    tl.store(product + index, x * y)
    tl.store(less + index, (x < y).to(tl.int8))
    tl.store(smaller + index, tl.minimum(x, y).to(tl.float32))
    tl.store(larger + index, tl.maximum(x, y).to(tl.float32))


@triton.jit
def _dot(a, b, result):
    row, column = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
    index = row * SIDE + column
    tl.store(result + index, tl.dot(tl.load(a + index), tl.load(b + index)))


@triton.jit
def _reduce(source, largest, total):
    row, column = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
    values = tl.load(source + row * SIDE + column)
    tl.store(largest + tl.arange(0, SIDE), tl.max(values, axis=1))
    tl.store(total + tl.arange(0, SIDE), tl.sum(values, axis=1))


def saturate_e4m3(values: Tensor) -> Tensor:
    """float8_e4m3fn of a floating tensor: nearest even, saturated at ±448, NaN kept."""
    return values.float().clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


def every(dtype: torch.dtype) -> Tensor:
    """Every bit pattern of an 8- or 16-bit type, in order."""
    bits = torch.int8 if dtype.itemsize == 1 else torch.int16
    return torch.arange(1 << 8 * dtype.itemsize).to(bits).view(dtype)


def difference(actual: Tensor, expected: Tensor) -> str | None:
    """The first element whose bits differ, where any NaN equals any NaN."""
    of_nan = expected.float().isnan()
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[expected.dtype.itemsize]
    wrong = torch.where(of_nan, ~actual.float().isnan(), actual.view(bits) != expected.view(bits)).flatten()
    if not wrong.any():
        return None
    at = int(wrong.nonzero()[0])
    pair = (actual.flatten()[at].item(), expected.flatten()[at].item())
    return (
        f"{int(wrong.sum())} of {wrong.numel()} differ, the first at {at}: {pair[0]!r} instead of {pair[1]!r}"
    )


def _conversion(source: Tensor, target: torch.dtype) -> str | None:
    actual = torch.empty(source.shape, dtype=target)
    _convert[(1,)](source, actual, COUNT=source.numel())
    return difference(actual, saturate_e4m3(source) if target is torch.float8_e4m3fn else source.to(target))


def _conversions(source: torch.dtype, *targets: torch.dtype) -> Callable[[], str | None]:
    return lambda: next(filter(None, (_conversion(every(source), target) for target in targets)), None)


def _float32_conversions() -> str | None:
    upper = torch.arange(PATTERNS.value) << 16
    for low in LOW_HALVES:
        source = (upper | low).to(torch.int32).view(torch.float32)
        for target in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
            if found := _conversion(source, target):
                return f"to {target}, low half 0x{low:04X}: {found}"
    return None


def _other(x: Tensor, y: Tensor, choose: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """min or max that return the operand that is not NaN; torch.fmin keeps signalling NaN."""
    return torch.where(x.isnan(), y, torch.where(y.isnan(), x, choose(x, y)))


def _bfloat16_arithmetic() -> str | None:
    a = every(torch.bfloat16)
    # An odd factor permutes the patterns: every one of them appears on both sides.
    b = (torch.arange(PATTERNS.value) * 40503 + 77).to(torch.int16).view(torch.bfloat16)
    total, product = torch.empty_like(a), torch.empty_like(a)
    less = torch.empty(a.shape, dtype=torch.int8)
    smaller, larger = torch.empty(a.shape), torch.empty(a.shape)
    _arithmetic[(1,)](a, b, total, product, less, smaller, larger)
    x, y = a.float(), b.float()
    pairs = {
        "+": (total, (x + y).to(torch.bfloat16)),
        "·": (product, (x * y).to(torch.bfloat16)),
        "<": (less, (x < y).to(torch.int8)),
        "min": (smaller + 0.0, _other(x, y, torch.minimum) + 0.0),  # + 0.0: min of ±0 may be either
        "max": (larger + 0.0, _other(x, y, torch.maximum) + 0.0),
    }
    for name, (actual, expected) in pairs.items():
        if found := difference(actual, expected):
            return f"{name}: {found}"
    return None


def _dots() -> str | None:
    side = SIDE.value
    index = torch.arange(side * side).reshape(side, side)
    # Small integers: every product and sum is exact, whatever the order.
    a, b = (index * 7 % 13 - 6).float(), (index * 5 % 11 - 5).float()
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn):
        actual = torch.empty(side, side)
        _dot[(1,)](a.to(dtype), b.to(dtype), actual)
        if found := difference(actual, a @ b):
            return f"{dtype}: {found}"
    return None


def _reductions() -> str | None:
    side = SIDE.value
    values = (torch.arange(side * side).reshape(side, side) * 7 % 13 - 6).float()
    for dtype in (torch.bfloat16, torch.float32):
        with_nan = values.clone()
        with_nan[::2, 3] = torch.nan
        with_nan.view(torch.int32)[1::4, 5] = SIGNALLING_NAN
        with_nan[1, 4] = torch.inf
        with_nan[2] = torch.nan
        largest, total = torch.empty(side), torch.empty(side)
        _reduce[(1,)](with_nan.to(dtype), largest, total)
        finite = torch.where(with_nan.isnan(), -torch.inf, with_nan).amax(1)
        if found := difference(largest, torch.where(with_nan.isnan().all(1), torch.nan, finite)):
            return f"max, {dtype}: {found}"
        if found := difference(total, with_nan.sum(1)):
            return f"sum, {dtype}: {found}"
    return None


PROBES: Mapping[str, Callable[[], str | None]] = {
    "conversion of bfloat16": _conversions(torch.bfloat16, torch.float32, torch.float16, torch.float8_e4m3fn),
    "conversion of float16": _conversions(torch.float16, torch.float32, torch.bfloat16, torch.float8_e4m3fn),
    "conversion of float8_e4m3fn": _conversions(
        torch.float8_e4m3fn, torch.float32, torch.float16, torch.bfloat16
    ),
    "conversion of float32": _float32_conversions,
    "arithmetic of bfloat16": _bfloat16_arithmetic,
    "dot": _dots,
    "reductions": _reductions,
}
