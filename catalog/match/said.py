"""Lines without an exception that say something known: of a driver, a watchdog, a server about its worker."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from catalog.match.clean import Pasted
from catalog.match.context import Raised
from catalog.match.known import known_places, without_numbers
from catalog.match.occurrences import Tally
from catalog.match.redact import SHOWN

_BLANK: Final = "\x00\x01 \t\r"


def known_lines(
    pasted: Pasted, raised: Sequence[Raised], covered: Sequence[tuple[int, int]], limit: int
) -> tuple[list[tuple[Raised, Tally]], bool]:
    """Each line once, whatever its numbers, as an exception without a class, and whether some were left out.

    A line in which an exception or a record was found (`covered`, in order) is told by that.
    """
    listed: dict[str, tuple[Raised, Tally]] = {}
    more = False
    starts = [each.start for each in raised]
    for start, stop in pasted.regions:
        for place in known_places(pasted.data, start, stop):
            at = bisect_right(covered, (place, len(pasted.data)))
            before = bisect_right(starts, place)
            if (at and covered[at - 1][1] > place) or (before and raised[before - 1].end > place):
                continue
            begin, end = pasted.line_start(place), pasted.line_end(place)
            text = pasted.data[begin : min(end, begin + SHOWN)].decode("latin-1")
            begin += len(text) - len(text.lstrip(_BLANK))
            alike = without_numbers(text.strip(_BLANK))
            if alike not in listed and len(listed) == limit:
                more = True
                continue
            _, tally = listed.setdefault(alike, (Raised("", begin, begin, end), Tally()))
            tally.add(pasted, place, end)
    return list(listed.values()), more
