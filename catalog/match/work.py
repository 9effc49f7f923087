"""What is found out about one pasted text."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from catalog.match import context
from catalog.match.clean import REACH, Chunk, Pasted, key
from catalog.match.context import Frame, Raised
from catalog.match.extent import REPEATED, Extent, extent
from catalog.match.fuzzy import GRAM
from catalog.match.literals import Index, siblings
from catalog.match.model import POSSIBLE, Capture, Entry, Match, MatchType, Role, Site, Unmatched
from catalog.match.redact import SHOWN, redact
from catalog.match.score import judge
from catalog.match.values import captures, rendered, values

if TYPE_CHECKING:
    from catalog.match.matcher import Matcher

VARIANTS: Final = 8
"""Different values of one message that are told apart; the rest is dropped and said to be."""
EXCEPTIONS: Final = 20_000
"""Exceptions looked at in one text."""
RANKED: Final = 4096
"""Occurrences of one message whose rank is read."""
LISTED: Final = 25
GUESSED: Final = 8
"""Messages without a record that the fuzzy tier is asked about, and the guesses it may make in all."""
LEAST_LIKE: Final = 0.3
SHORT: Final = 2048
"""A text up to this long without any exception in it is taken as a message itself."""
_WORD: Final = re.compile(r"[\w.-]{3,80}")
_TRIM: Final = b"\x00\x01 \t\r\n"


@dataclass(slots=True)
class _Occurrence:
    """One message with the same values, wherever it occurs; `extent` is its first place."""

    extent: Extent
    count: int = 0
    ranks: dict[int | str, None] = field(default_factory=dict)
    first_seen: str | None = None
    wraps: bool = False
    spans: list[tuple[int, int]] = field(default_factory=list)


class Work:
    """What is found out about one pasted text."""

    def __init__(self, matcher: Matcher, pasted: Pasted, repo: str | None) -> None:
        self.matcher = matcher
        self.pasted = pasted
        self.repo = repo
        self.truncated = False
        self.covered: list[tuple[int, int]] = []
        """Where something at least possible was found."""
        self.raised = list(self._exceptions())

    def _exceptions(self) -> Iterator[Raised]:
        found = (raised for region in self.pasted.regions for raised in context.raised(self.pasted, *region))
        yield from islice(found, EXCEPTIONS)
        self.truncated = self.truncated or next(found, None) is not None

    def patterns(self) -> list[Match]:
        """Matches of complete messages, each record and set of values once."""
        occurrences = self._occurrences()
        self._chains(occurrences)
        return [match for occurrence in occurrences for match in self._judged(occurrence)]

    def _extents(self) -> Iterator[Extent]:
        short = len(self.pasted.data) <= SHORT * 8
        tried: Counter[int] = Counter()
        for chunk, until in self.pasted.chunks():
            for found in self.matcher.index.find(chunk, tried, short=short):
                if (place := extent(self.pasted, chunk, found)) is not None and place.start < until:
                    yield place
        self.truncated = self.truncated or Index.exhausted(tried)
        for start, stop in self._messages():
            chunk = Chunk(self.pasted.data, start, stop)
            for found in self.matcher.index.whole(chunk.key):
                if (place := extent(self.pasted, chunk, found)) is not None and place.end <= stop:
                    yield place

    def _messages(self) -> list[tuple[int, int]]:
        """Whole messages, each once: those of exceptions, or a short text that has no exception in it."""
        if not self.raised and len(self.pasted.data) <= SHORT:
            return [(0, len(self.pasted.data))]
        distinct: dict[bytes, tuple[int, int]] = {}
        for raised in self.raised:
            distinct.setdefault(self.pasted.data[raised.message : raised.end], (raised.message, raised.end))
        return list(distinct.values())[:LISTED]

    def _occurrences(self) -> list[_Occurrence]:
        """The messages found, equal ones together; what a traceback prints of the source is no message."""
        occurrences: dict[tuple[int, bool, bytes], _Occurrence] = {}
        variants: Counter[tuple[int, bool]] = Counter()
        for place, wraps in _outermost(self._extents()):
            kind = (place.found.group.number, context.in_source(self.pasted, place.start))
            identity = (*kind, key(self.pasted.data[place.start : place.end]))
            if identity not in occurrences:
                variants[kind] += 1
                if variants[kind] > VARIANTS:
                    self.truncated = True
                    continue
                occurrences[identity] = _Occurrence(place)
            occurrence = occurrences[identity]
            occurrence.wraps = occurrence.wraps or wraps
            occurrence.spans.append((place.start, place.end))
            self._count(occurrence, place)
        return [
            occurrence
            for (group, source, _), occurrence in occurrences.items()
            if not source or (group, False) not in variants
        ]

    def _count(self, occurrence: _Occurrence, place: Extent) -> None:
        repeated = REPEATED.match(self.pasted.data[place.end : place.end + 64].lstrip(_TRIM))
        occurrence.count += 1 + (int(repeated[1]) if repeated else 0)
        if occurrence.count > RANKED:
            return
        rank, time = context.rank_and_time(self.pasted, place.start)
        if rank is not None:
            occurrence.ranks[rank] = None
        occurrence.first_seen = occurrence.first_seen or time

    def _chains(self, occurrences: list[_Occurrence]) -> None:
        """Find the messages that report another one: the later block of a chained traceback."""
        places = sorted(occurrences, key=lambda occurrence: occurrence.extent.start)
        starts = [occurrence.extent.start for occurrence in places]
        for marker in context.chain_markers(self.pasted):
            at = bisect_left(starts, marker)
            if at == len(places) or context.tracebacks_between(self.pasted, marker, starts[at]) > 1:
                continue
            later, earlier = places[at], places[at - 1] if at else None
            cause = self._raised_before(marker)
            if earlier is not None and context.tracebacks_between(self.pasted, earlier.extent.end, marker):
                earlier = None
            if cause is not None and cause.exception.endswith("CalledProcessError"):
                # That a compiler failed is no cause: what it printed is in the block that follows.
                if earlier is not None:
                    earlier.wraps = True
            elif earlier is not None:
                later.wraps = True
            elif cause is not None:
                said = key(self.pasted.data[cause.message : cause.end])[:60]
                values = (key(self.pasted.data[start:end]) for start, end in later.extent.pieces)
                later.wraps = later.wraps or (len(said) > GRAM and any(said in value for value in values))

    def _raised_before(self, offset: int) -> Raised | None:
        at = bisect_left(self.raised, offset, key=lambda raised: raised.start)
        return self.raised[at - 1] if at else None

    def _judged(self, occurrence: _Occurrence) -> Iterator[Match]:
        place = occurrence.extent
        group = place.found.group
        members = group.within(self.repo)
        raised = self._raised_before(place.start + 1)
        lead = 0
        if raised is not None and place.start <= raised.end and self._is_own(raised):
            # A KeyError prints nothing but a key, unless a package raises one with a sentence of its own.
            members = [member for member in members if _raises_key_error(member.entry, raised)]
        if not members:
            return
        head = context.head(self.pasted, place.start)
        if head.launcher is not None and raised is not None:
            # The launcher's own first line belongs to the message.
            lead = min(place.start - raised.start, REACH)
        frames: list[Frame] = []
        # The same message may come without its traceback first.
        for start, end in occurrence.spans[:3]:
            frames += context.frames_above(self.pasted.data, start)
            frames += context.frames_below(self.pasted.data, end)
        inside = context.frames_inside(self.pasted.data, place.start, place.end)
        for member in members:
            verdict = judge(place, member, head, frames, inside)
            if verdict.score <= 0:
                continue
            if verdict.score >= POSSIBLE:
                self.covered += [(start - lead, end) for start, end in occurrence.spans]
            captured = values(self.pasted, place, member)
            message = rendered(member, captured)
            role: Role = "wrapper" if occurrence.wraps else "root-cause"
            yield self._match(
                member.entry,
                "pattern",
                verdict.score,
                (place.start, place.end),
                rendered=redact(message),
                captures=captures(member, captured),
                site=verdict.site,
                siblings=siblings(group, member),
                role="secondary" if context.is_secondary(message) else role,
                count=occurrence.count,
                ranks=tuple(sorted(occurrence.ranks, key=lambda rank: (isinstance(rank, str), rank))),
                first_seen=occurrence.first_seen,
                evidence=verdict.evidence,
            )

    def _match(
        self,
        entry: Entry,
        match_type: MatchType,
        score: float,
        span: tuple[int, int],
        *,
        rendered: str | None = None,
        captures: tuple[Capture, ...] = (),
        site: Site | None = None,
        siblings: tuple[str, ...] = (),
        role: Role = "root-cause",
        count: int = 1,
        ranks: tuple[int | str, ...] = (),
        first_seen: str | None = None,
        evidence: tuple[str, ...] = (),
    ) -> Match:
        shown = redact(self.pasted.shown(*span)) if rendered is None else rendered
        line = self.pasted.line_of(span[0])
        return Match(
            entry.record_id,
            match_type,
            round(score, 4),
            line,
            span,
            shown,
            captures,
            site,
            siblings,
            role,
            count,
            ranks,
            first_seen,
            evidence,
        )

    def _is_own(self, raised: Raised) -> bool:
        return context.python_own(raised.exception, self.pasted.shown(raised.message, raised.end).strip())

    def named_sites(self) -> list[Match]:
        """Records of sites that print no text, each named line once."""
        found: dict[tuple[str, int], Match] = {}
        for named in self.matcher.sites.named(self.pasted, self.raised):
            if self.repo not in (None, named.known.entry.repo):
                continue
            self.covered.append((named.start, named.end))
            identity = (named.known.entry.record_id, named.line)
            if identity in found:
                found[identity] = replace(found[identity], count=found[identity].count + 1)
                continue
            found[identity] = self._match(
                named.known.entry,
                "site",
                named.score,
                (named.start, named.end),
                site=named.known.site,
                evidence=(named.why,),
            )
        return list(found.values())

    def codes(self) -> list[Match]:
        """Records whose error code stands in a short text."""
        codes = self.matcher.codes
        if not codes or len(self.pasted.text) > SHORT * 2:
            return []
        return [
            self._match(entry, "exact-code", 0.95, word.span(), evidence=("the error code",))
            for word in _WORD.finditer(self.pasted.text)
            for entry in codes.get(word[0].casefold(), ())
            if self.repo in (None, entry.repo)
        ]

    def guesses(self, found: list[Match]) -> list[Match]:
        """What is most like the messages that belong to no record; never a match."""
        known = {match.record_id for match in found}
        guessed: list[Match] = []
        for start, end in self._messages()[:GUESSED]:
            message = self.pasted.data[start:end].rstrip(_TRIM + b".")
            raised = self._raised_before(start + 1)
            if raised is not None and raised.message == start and self._is_own(raised):
                continue
            span = (end - len(self.pasted.data[start:end].lstrip(_TRIM)), end)
            for group, score in self.matcher.fuzzy.search(key(context.without_launcher(message)), GUESSED):
                for member in group.within(self.repo) if score >= LEAST_LIKE else ():
                    if member.entry.record_id in known:
                        continue
                    known.add(member.entry.record_id)
                    others, why = siblings(group, member), ("similar words",)
                    guessed.append(
                        self._match(member.entry, "fuzzy", score, span, siblings=others, evidence=why)
                    )
        return guessed

    def unmatched(self) -> tuple[Unmatched, ...]:
        """The exceptions in which nothing was found, each once."""
        covered = sorted(self.covered)
        listed: dict[tuple[str, bytes], Unmatched] = {}
        for raised in self.raised:
            at = bisect_right(covered, (raised.end, len(self.pasted.data)))
            # Overlaps the last message that starts before its end.
            if at and covered[at - 1][1] >= raised.start:
                continue
            stop = min(raised.end, raised.message + SHOWN)
            identity = (raised.exception, self.pasted.data[raised.message : stop])
            if identity not in listed:
                if len(listed) == LISTED:
                    self.truncated = True
                    break
                message = redact(self.pasted.shown(raised.message, stop).strip())
                listed[identity] = Unmatched(self.pasted.line_of(raised.start), raised.exception, message)
        return tuple(listed.values())


def _raises_key_error(entry: Entry, raised: Raised) -> bool:
    return raised.exception == "KeyError" and any(site.exception == "KeyError" for site in entry.sites)


def _outermost(places: Iterable[Extent]) -> Iterator[tuple[Extent, bool]]:
    """The messages in order, without those that only look like one inside a longer one's own words.

    A message inside a value of another stays; the other then only wraps it (the flag).
    """
    kept: list[tuple[Extent, bool]] = []
    active: list[int] = []
    beaten: set[int] = set()
    for place in sorted(places, key=lambda place: (place.start, -place.end)):
        active = [number for number in active if kept[number][0].end > place.start]
        weight = place.found.group.weight
        lost = False
        for number in list(active):
            other, _ = kept[number]
            if other.holds(place):
                kept[number] = (other, True)
            elif other.found.group.weight > weight or other.found.group is place.found.group:
                lost = True
            elif other.found.group.weight < weight:
                beaten.add(number)
                active.remove(number)
        if not lost:
            active.append(len(kept))
            kept.append((place, False))
    return (pair for number, pair in enumerate(kept) if number not in beaten)
