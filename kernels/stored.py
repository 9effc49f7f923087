"""What described numbers are once the type that they are stored in has rounded them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import copysign, inf, nan

from kernels.checkpoint import Header
from kernels.values import Listed, as_whole, bounds

FORMATS = {"F16": "<e", "F32": "<f", "F64": "<d"}
"""Types that Python packs itself; bfloat16 is the upper half of float32."""

ROUNDED = ("BF16", *FORMATS)

MOST_ROWS = 4096
"""Rows that a repeated list of scales is matched with."""


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


def proved_rows(scale: Header | None) -> Iterator[tuple[Sequence[int | None], float, float]]:
    """(rows, described, stored) of each scale that the description proves, one a row: the rows that have it,
    of a list that repeats those within MOST_ROWS; (None,) where it is not known which have it.
    """
    found = list(proved(scale))
    listed = scale is not None and isinstance(scale.values, Listed)
    for place, (described, held) in enumerate(found):
        last = min(scale.numel, max(len(found), MOST_ROWS)) if scale is not None else 0
        yield range(place, last, len(found)) if listed else (None,), described, held


def largest_code(codes: Header | None, unknown: int) -> Callable[[int | None], int]:
    """Row of a whole-numbered matrix, None for all of it → largest magnitude described there, `unknown` where
    that is left open.
    """
    if codes is None or codes.values is None or not codes.numel:
        return lambda row: unknown
    extremes = bounds(codes.values, codes.shape) or (0, 0)
    of_all = max(abs(as_whole(extreme)) for extreme in extremes)
    if not isinstance(codes.values, Listed) or len(codes.shape) != 2:
        return lambda row: of_all
    width, held = codes.shape[1], [abs(as_whole(code)) for code in codes.values.flat()] or [0]

    def of_row(row: int | None) -> int:
        if row is None or width >= len(held):
            return of_all
        start = row * width % len(held)
        return max(held[start : start + width] + held[: max(0, start + width - len(held))])

    return of_row


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
