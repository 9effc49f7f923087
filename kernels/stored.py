"""What described numbers are once the type that they are stored in has rounded them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from math import copysign, inf, nan

from kernels.checkpoint import Header
from kernels.values import Listed, bounds

FORMATS = {"F16": "<e", "F32": "<f", "F64": "<d"}
"""Types that Python packs itself; bfloat16 is the upper half of float32."""

ROUNDED = ("BF16", *FORMATS)


def proved(header: Header | None) -> Iterator[tuple[float, float]]:
    """(described, stored) of each element that the description proves: all of a list, the extremes of a
    generator; nothing where values are left open or the type is none of ROUNDED.
    """
    if header is None or header.values is None or header.dtype not in ROUNDED:
        return
    if isinstance(header.values, Listed):
        described: Iterator[float] = islice(header.values.flat(), header.numel)
    else:
        described = iter(bounds(header.values, header.shape) or ())
    for value in map(_float, described):
        yield value, stored(value, header.dtype)


def stored(value: float, dtype: str) -> float:
    """The nearest number of a type, ties to even; by way of float32, as torch builds its tensors."""
    value = _float(value)
    if value != value:
        return nan
    if dtype != "F64":
        value = _packed(value, "<f")
    return _bfloat16(value) if dtype == "BF16" else _packed(value, FORMATS[dtype])


def _float(value: float) -> float:
    """A number as float64: huge whole ones become infinite, and every NaN is the same one."""
    try:
        value = float(value)
    except OverflowError:
        return inf if value > 0 else -inf
    return nan if value != value else value


def _packed(value: float, form: str) -> float:
    try:
        return float(struct.unpack(form, struct.pack(form, value))[0])
    except OverflowError:
        return copysign(inf, value)


def _bfloat16(value: float) -> float:
    """A float32 rounded to its upper 16 bits."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])
