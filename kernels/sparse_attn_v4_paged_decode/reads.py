"""Which entries of kv_indices and which slots of the pool a described call reads, told without building it.

Ranges are half-open and count elements in row-major order. A list tells exactly; of a generator the
extremes are known, so that everything between them may be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, isfinite

from kernels.sparse_attn_v4_paged_decode.signature import SparseCall, fill
from kernels.values import Arange, Listed, Randint, Randn, Text, Values, bounds


def held(call: SparseCall, name: str) -> Values | None:
    """What an argument's tensor holds: as described, else the operation's own fill."""
    tensor = getattr(call, name)
    return None if tensor is None else tensor.values or fill(call).get(name)


def spans(call: SparseCall) -> list[range]:
    """Places of kv_indices that tokens read; what lies outside the list is cut off."""
    tokens, listed = call.q.shape[0], call.kv_indices.numel
    match held(call, "kv_indptr"):
        case Listed() as given:
            found = [_range(start, stop) for start, stop in listed_spans(given, tokens)]
        case Arange(start=start, step=step):
            found = [_range(start, _step(start, step, tokens))]
        case Randint(low=low, high=high):
            found = [range(low, high - 1)]
        case Randn() | Text():
            found = [range(listed)]
        case _:
            found = []
    return _within(found, listed)


def listed_spans(given: Listed, tokens: int) -> list[tuple[float, float]]:
    """(start, stop) of every token, distinct ones at least once: a list that is too short repeats itself."""
    flat = list(given.flat())
    return [(flat[token], flat[(token + 1) % len(flat)]) for token in range(min(tokens, len(flat)))]


def slots_read(call: SparseCall) -> list[range]:
    """Slots of the pool that tokens read; what lies outside the pool is cut off."""
    values, places = held(call, "kv_indices"), spans(call)
    if isinstance(values, Listed):
        found = [_range(slot, slot + 1) for slot in elements(values, places)]
    else:
        extremes = list(elements(values, places))
        found = [_range(min(extremes), max(extremes) + 1)] if extremes else []
    return _within(found, call.unified_kv.shape[0])


def rows_read(call: SparseCall, width: int) -> list[range]:
    """Elements of the rows that tokens read in a tensor of one row of `width` a slot."""
    return [range(slots.start * width, slots.stop * width) for slots in slots_read(call)]


def elements(values: Values | None, places: Sequence[range]) -> Iterator[float]:
    """The elements in some places: each of a list's, the extremes of a generator's, none where nothing is
    proved.
    """
    places = [place for place in places if place.stop > place.start]
    if not places:
        return
    match values:
        case Listed():
            yield from _listed(list(values.flat()) or [0], places)
        case Arange(start=start, step=step):
            yield _step(start, step, min(place.start for place in places))
            yield _step(start, step, max(place.stop for place in places) - 1)
        case Text():
            yield from (0, *values.encoded())
        case _:
            yield from bounds(values, (1,)) or ()


def _listed(flat: list[float], places: Sequence[range]) -> Iterator[float]:
    """Elements of a list, repeated for ever, in some places; in linear time, each at most once."""
    count = len(flat)
    steps = [0] * (count + 1)
    for place in places:
        length = place.stop - place.start
        if length >= count:
            yield from flat
            return
        first = place.start % count
        last = first + length
        steps[first] += 1
        steps[min(last, count)] -= 1
        if last > count:
            steps[0] += 1
            steps[last - count] -= 1
    covering = 0
    for value, step in zip(flat, steps, strict=False):
        covering += step
        if covering:
            yield value


def _step(start: float, step: float, count: int) -> float:
    try:
        return start + step * count
    except OverflowError:  # a float step, and a place that no float holds
        return inf if step > 0 else -inf


def _range(start: float, stop: float) -> range:
    """Whole numbers from one to the other, rounded towards zero as casts do; none if one is not finite."""
    return range(int(start), int(stop)) if finite(start) and finite(stop) else range(0)


def finite(value: float) -> bool:
    """Whether it is a number; a whole one may be larger than any float."""
    return isinstance(value, int) or isfinite(value)


def _within(ranges: list[range], count: int) -> list[range]:
    cut = (range(max(places.start, 0), min(places.stop, count)) for places in ranges)
    return [places for places in cut if places.stop > places.start]
