"""Whether places of one tensor share memory, told from sizes and strides alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Places:
    """One dimension of places: what it is called, how many there are, elements from one to the next."""

    name: str
    count: int
    stride: int


def first_overlap(block: int, *dimensions: Places) -> tuple[str, int, int] | None:
    """(name, its stride, elements it spans) of the first dimension whose places share an element, or None.

    A place is `block` elements side by side; there may be two dimensions of them. Exact, in logarithmic time:
    strides need not nest, so rows may be interleaved with experts.
    """
    several = sorted((places for places in dimensions if places.count > 1), key=lambda places: places.stride)
    span = block
    for places in several:
        if places.stride < span and (places is several[0] or _meet(block, several[0], places)):
            return places.name, places.stride, span
        span += (places.count - 1) * places.stride
    return None


def _meet(block: int, inner: Places, outer: Places) -> bool:
    """Whether |i·outer - j·inner| < block for some 1 <= i < outer.count and 1 <= j < inner.count.

    j is the multiple of the inner stride just below or just above i·outer; each case bounds i.
    """
    step, modulus = outer.stride, inner.stride
    below = min(outer.count - 1, (inner.count * modulus - 1) // step)
    above = min(outer.count - 1, ((inner.count - 1) * modulus - 1) // step)
    return _residues(below, step, modulus, 0, block) + _residues(above, step, modulus, 1 - block, 0) > 0


def _residues(count: int, step: int, modulus: int, low: int, high: int) -> int:
    """How many of i·step, 1 <= i <= count, lie in [low, high) of a multiple of `modulus`; high - low at most
    that.
    """
    return _floors(count, step, step - low, modulus) - _floors(count, step, step - high, modulus)


def _floors(count: int, step: int, start: int, modulus: int) -> int:
    """Sum of (start + i·step) // modulus over 0 <= i < count, by Euclid's algorithm."""
    total = 0
    while count > 0:
        total += count * (count - 1) // 2 * (step // modulus) + count * (start // modulus)
        step, start = step % modulus, start % modulus
        count, start = divmod(count * step + start, modulus)
        step, modulus = modulus, step
    return total
