"""Messages found in a text, put together: equal ones, nested ones, and those that report another."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from catalog.match import context
from catalog.match.clean import AROUND, Pasted, key
from catalog.match.context import Raised
from catalog.match.extent import REPEATED, Extent
from catalog.match.origin import UNKNOWN, Origin, origin, time_above
from catalog.match.prepared import GRAM
from catalog.match.stamps import Stamp, earlier
from catalog.match.wrapped import Wrapped

VARIANTS: Final = 8
"""Different values of one message that are told apart; the rest is dropped and said to be."""
SAYING: Final = 12
"""Literal characters from which what stands in a value is a message of its own."""
RANKED: Final = 4096
"""Occurrences of one message whose rank is read."""


@dataclass(slots=True)
class Tally:
    """How often something occurs in a text, on which ranks and hosts, and the earliest time it carries.

    What another exception's message quotes is the one that its own rank, or no rank, reports itself.
    """

    ranks: dict[int | str, None] = field(default_factory=dict)
    hosts: dict[str, None] = field(default_factory=dict)
    first: Stamp | None = None
    _object: Wrapped | None = None
    _seen: int = 0
    _reported: Counter[int | str | None] = field(default_factory=Counter)
    _quoted: Counter[int | str | None] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        reported = self._reported.total()
        count = reported
        for rank, quoted in self._quoted.items():
            known = reported if rank is None else self._reported[rank] + self._reported[None]
            count += max(0, quoted - known)
        return max(count, len(self.ranks))

    def add(
        self, pasted: Pasted, start: int, end: int, known: Origin | None = None, *, quoted: bool = False
    ) -> None:
        """One more, between two offsets; its origin, where that is known already."""
        around = pasted.wraps.at(start)
        if around is not None and around is self._object:
            return  # a logger's message and the traceback beside it are one report
        self._object = around
        repeated = REPEATED.match(pasted.data[end : end + 64].lstrip(b"\x00\x01 \t"))
        self._seen += 1
        found = UNKNOWN if self._seen > RANKED else known or origin(pasted, start)
        counts = self._quoted if quoted else self._reported
        counts[found.rank] += 1 + (int(repeated[1]) if repeated else 0)
        if found.rank is not None:
            self.ranks[found.rank] = None
        if found.host is not None:
            self.hosts[found.host] = None
        if self.first is None or earlier(found.stamp, self.first):
            self.first = found.stamp

    def told(self, pasted: Pasted, start: int) -> dict[str, Any]:
        """What a match says of it; `start` is where it occurs first."""
        return {
            "count": self.count,
            "ranks": in_order(self.ranks),
            "hosts": tuple(self.hosts),
            "first_seen": self.first.printed if self.first else None,
            "moment": self.first or time_above(pasted, start),
        }


def in_order(ranks: Iterable[int | str]) -> tuple[int | str, ...]:
    """Ranks by number, then those with several dimensions."""
    return tuple(sorted(ranks, key=lambda rank: (isinstance(rank, str), rank)))


def without_rank(message: str, rank: int | str) -> str:
    """A message without the number of the rank that prints it, where it is called so."""
    number = re.escape(str(rank))
    return re.sub(rf"(?i)((?<![\w.])(?:rank[ =:]{{0,2}}|cuda:|gpu )){number}(?!\w)", r"\1", message)


@dataclass(slots=True)
class Occurrence:
    """One message with the same values, wherever it occurs; `extent` is its first place."""

    extent: Extent
    tally: Tally = field(default_factory=Tally)
    wraps: bool = False
    spans: list[tuple[int, int]] = field(default_factory=list)


def together(
    pasted: Pasted, places: Iterable[Extent], raised: Sequence[Raised] = ()
) -> tuple[list[Occurrence], bool]:
    """Equal messages as one, and whether some were left out; a traceback's source lines are no messages."""
    occurrences: dict[tuple[int, bool, bytes], Occurrence] = {}
    variants: Counter[tuple[int, bool]] = Counter()
    markers = list(context.chain_markers(pasted))
    whose: dict[tuple[int, bool, str], tuple[int, bool, bytes]] = {}
    """The messages by their text without the rank that prints it."""
    for place, wraps, inside in outermost(places):
        kind = (place.found.group.number, context.in_source(pasted, place.start))
        identity = (*kind, key(pasted.data[place.start : place.end]))
        whence = origin(pasted, place.start) if identity not in occurrences else None
        if whence is not None and whence.rank is not None:
            alike = without_rank(pasted.shown(place.start, place.end), whence.rank)
            identity = whose.setdefault((*kind, alike), identity)
        if identity not in occurrences:
            variants[kind] += 1
            if variants[kind] > VARIANTS:
                continue
            occurrences[identity] = Occurrence(place)
        occurrence = occurrences[identity]
        occurrence.wraps = occurrence.wraps or wraps
        occurrence.spans.append((place.start, place.end))
        again = len(occurrence.spans) > 1 and _is_again(pasted, markers, occurrence.spans[-2][1], place.start)
        quoted = inside or again or _is_quoted(pasted, raised, place.start)
        occurrence.tally.add(pasted, place.start, place.end, whence, quoted=quoted)
    told = [
        occurrence
        for (group, source, _), occurrence in occurrences.items()
        if not source or (group, False) not in variants
    ]
    return told, any(count > VARIANTS for count in variants.values())


def _is_again(pasted: Pasted, markers: Sequence[int], end: int, start: int) -> bool:
    """Whether the later block of a chain ends with what its earlier block ended with, between two offsets."""
    at = bisect_left(markers, end)
    if bisect_left(markers, start) - at != 1:
        return False
    return (
        context.tracebacks_between(pasted, end, markers[at]) == 0
        and context.tracebacks_between(pasted, markers[at], start) == 1
    )


def _is_quoted(pasted: Pasted, raised: Sequence[Raised], start: int) -> bool:
    """Whether what starts at an offset stands behind other words of an exception's message."""
    at = bisect_right(raised, start, key=lambda known: known.start) - 1
    if at < 0 or not raised[at].message <= start <= raised[at].end:
        return False
    if at and raised[at - 1].end >= start:
        return True  # an exception inside another one's message
    words = pasted.data[context.after_launcher(pasted.data, raised[at].message, start) : start]
    return bool(words.strip(AROUND + b"\"'`(["))


def outermost(places: Iterable[Extent]) -> Iterator[tuple[Extent, bool, bool]]:
    """The messages in order, without those that only look like one inside a longer one's own words.

    A message inside a value of another stays; the other then only wraps it (the flag), and quotes it (the
    second flag, of the message inside).
    """
    kept: list[tuple[Extent, bool, bool]] = []
    active: list[int] = []
    beaten: set[int] = set()
    for place in sorted(places, key=lambda place: (place.start, -place.end)):
        active = [number for number in active if kept[number][0].end > place.start]
        weight = place.found.group.weight
        lost = inside = False
        for number in list(active):
            other, _, within = kept[number]
            if other.holds(place):
                if place.found.group.weight < SAYING:
                    lost = True  # a word or two that some other message consists of
                else:
                    kept[number] = (other, True, within)
                    inside = True
            elif other.found.group.weight > weight or other.found.group is place.found.group:
                lost = True
            elif other.found.group.weight < weight:
                beaten.add(number)
                active.remove(number)
        if not lost:
            active.append(len(kept))
            kept.append((place, False, inside))
    return (found for number, found in enumerate(kept) if number not in beaten)


def mark_wrappers(pasted: Pasted, occurrences: Sequence[Occurrence], raised: Sequence[Raised]) -> None:
    """Find the messages that report another one: the later block of a chained traceback."""
    places = sorted(occurrences, key=lambda occurrence: occurrence.extent.start)
    starts = [occurrence.extent.start for occurrence in places]
    for marker in context.chain_markers(pasted):
        at = bisect_left(starts, marker)
        if at == len(places) or context.tracebacks_between(pasted, marker, starts[at]) > 1:
            continue
        later, earlier = places[at], places[at - 1] if at else None
        cause = raised_before(raised, marker)
        if earlier is not None and context.tracebacks_between(pasted, earlier.extent.end, marker):
            earlier = None
        if cause is not None and cause.exception.endswith("CalledProcessError"):
            # That a compiler failed is no cause: what it printed is in the block that follows.
            if earlier is not None:
                earlier.wraps = True
        elif earlier is not None:
            later.wraps = True
        elif cause is not None:
            said = key(pasted.data[cause.message : cause.end])[:60]
            values = (key(pasted.data[start:end]) for start, end in later.extent.pieces)
            later.wraps = later.wraps or (len(said) > GRAM and any(said in value for value in values))


def raised_before(raised: Sequence[Raised], offset: int) -> Raised | None:
    """The last exception whose class stands before an offset."""
    at = bisect_left(raised, offset, key=lambda known: known.start)
    return raised[at - 1] if at else None
