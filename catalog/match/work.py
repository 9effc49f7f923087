"""What is found out about one pasted text."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from catalog.match import context
from catalog.match.causes import role_of
from catalog.match.clean import AROUND, Chunk, Pasted, key
from catalog.match.context import Frame, Raised
from catalog.match.extent import Extent, extent
from catalog.match.guessing import may_hide
from catalog.match.known import known_in, without_numbers
from catalog.match.literals import MOST_SIBLINGS, Group, Index, Scope
from catalog.match.model import MATCH, POSSIBLE, Entry, Match, MatchType, Role, Unmatched
from catalog.match.occurrences import (
    Occurrence,
    Tally,
    mark_wrappers,
    raised_before,
    together,
    without_rank,
)
from catalog.match.origin import origin
from catalog.match.redact import SHOWN, redact
from catalog.match.said import known_lines
from catalog.match.score import judge, listed
from catalog.match.sites import Named
from catalog.match.values import captures, rendered, values

if TYPE_CHECKING:
    from catalog.match.matcher import Matcher

ON_A_LINE: Final = 500
"""Times that a message, or an exception, is looked at on one line."""
EXCEPTIONS: Final = 20_000
"""Exceptions looked at in one text."""
LISTED: Final = 25
ALIKE: Final = 1000
"""Different exceptions of one text that are compared without what differs from rank to rank."""
BEHIND: Final = 1 << 9
"""Characters behind a message in which a traceback may begin: its line's prefix is among them."""
MARKS: Final = b".,:;!?()[]{}<>-=*#"
SHORT: Final = 2048
"""A text up to this long without any exception in it is taken as a message itself."""
_WORD: Final = re.compile(r"[\w.-]{3,80}")


class Lines:
    """Counts what is found on the line that is looked at: one message fills a line so often, no more."""

    def __init__(self, pasted: Pasted) -> None:
        self._pasted = pasted
        self.end = -1
        self._counts: dict[int, int] = {}

    def are_full(self, number: int, offset: int) -> bool:
        """Whether group `number` is on the line of an offset more than ON_A_LINE times; counts it."""
        if offset > self.end:
            end = self._pasted.data.find(b"\n", offset)
            self.end = len(self._pasted.data) if end < 0 else end
            self._counts.clear()
        count = self._counts[number] = self._counts.get(number, 0) + 1
        return count > ON_A_LINE


class Work:
    """What is found out about one pasted text."""

    def __init__(self, matcher: Matcher, pasted: Pasted, scope: Scope) -> None:
        self.matcher = matcher
        self.pasted = pasted
        self.scope = scope
        self.repo = scope.repo
        self.truncated = False
        self.covered: list[tuple[int, int]] = []
        """Where something at least possible was found."""
        self.weights: dict[str, int] = {}
        """Literal characters of the templates found, by record."""
        self.groups: dict[str, Group] = {}
        """The templates found, by record."""
        self.raised = list(self._exceptions())
        self._around = list(context.around(pasted))
        """Sentences around exceptions, in order: no message is in them."""

    def _exceptions(self) -> Iterator[Raised]:
        lines = Lines(self.pasted)
        left = EXCEPTIONS
        for start, stop in self.pasted.regions:
            while start < stop:
                for raised in context.raised(self.pasted, start, stop):
                    if not left or lines.are_full(0, raised.start):
                        break
                    left -= 1
                    yield raised
                else:
                    break
                start = lines.end if left else stop
                self.truncated = True

    def patterns(self) -> list[Match]:
        """Matches of complete messages, each record and set of values once."""
        occurrences, cut = together(self.pasted, self._extents(), self.raised)
        self.truncated = self.truncated or cut
        mark_wrappers(self.pasted, occurrences, self.raised)
        return [match for occurrence in occurrences for match in self._judged(occurrence)]

    def _extents(self) -> Iterator[Extent]:
        tried: dict[int, int] = {}
        lines = Lines(self.pasted)
        for chunk, until in self.pasted.chunks():
            for found in self.matcher.index.find(chunk.key, tried):
                if lines.are_full(found.group.number, start := chunk.offset(found.places[0][0])):
                    self.truncated = True
                elif not self._is_no_message(start, chunk.offset(found.places[-1][1] - 1)):
                    place = extent(self.pasted, chunk, found)
                    if place is not None and place.start < until:
                        yield place
        self.truncated = self.truncated or Index.exhausted(tried)
        for start, stop in self.messages():
            chunk = Chunk(self.pasted.data, context.after_launcher(self.pasted.data, start, stop), stop)
            for found in self.matcher.index.whole(chunk.key, framed=b"\n" in self.pasted.data):
                if (place := extent(self.pasted, chunk, found)) is not None and place.end <= stop:
                    yield place

    def _is_no_message(self, first: int, last: int) -> bool:
        """Whether all that was found of a template is in the name of an exception's class, or in a sentence
        around one.
        """
        if self._around:
            at = bisect_right(self._around, (first, len(self.pasted.data)))
            if at and last < self._around[at - 1][1]:
                return True
        raised = raised_before(self.raised, first + 1) if self.raised else None
        return raised is not None and last < raised.message

    def messages(self) -> list[tuple[int, int]]:
        """Whole messages, each once: those of exceptions, or a short text that has no exception in it,
        without the sentences that stand around exceptions.
        """
        if not self.raised and len(self.pasted.data) <= SHORT:
            bounds = [0, *chain.from_iterable(self._around), len(self.pasted.data)]
            stretches = zip(bounds[::2], bounds[1::2], strict=True)
            return [place for place in stretches if key(self.pasted.data[slice(*place)])]
        distinct: dict[bytes, tuple[int, int]] = {}
        for raised in self.raised:
            distinct.setdefault(self.pasted.data[raised.message : raised.end], (raised.message, raised.end))
        return list(distinct.values())[:LISTED]

    def _judged(self, occurrence: Occurrence) -> Iterator[Match]:
        place = occurrence.extent
        group = place.found.group
        members = group.within(self.scope, self._files_named if group.crowded else frozenset())
        raised = raised_before(self.raised, place.start + 1)
        if raised is not None and place.start <= raised.end and self.is_own(raised):
            # A KeyError prints nothing but a key, unless a package raises one with a sentence of its own.
            members = [member for member in members if _raises_key_error(member.entry, raised)]
        if not members:
            return
        head = context.head(self.pasted, place.start)
        frames: list[Frame] = []
        # The same message may come without its traceback first.
        for start, end in occurrence.spans[:3]:
            frames += context.frames_above(self.pasted.data, start)
            frames += context.frames_below(self.pasted.data, end)
        inside = context.frames_inside(self.pasted.data, place.start, place.end)
        reports = self._reports_another(place)
        judged = [(judge(place, member, head, frames, inside, reports=reports), member) for member in members]
        judged.sort(key=lambda pair: -pair[0].score)
        judged = [pair for pair in judged if pair[0].score > 0]
        if judged and judged[0][0].score >= POSSIBLE:
            self.covered += occurrence.spans
        self.truncated = self.truncated or len(judged) > MOST_SIBLINGS + 1
        wraps = occurrence.wraps or self._announces(place)
        role: Role = "wrapper" if wraps else "root-cause"
        for verdict, member in listed(judged):
            captured = values(self.pasted, place, member)
            self.weights[member.entry.record_id] = group.weight
            self.groups[member.entry.record_id] = group
            others = (pair[1].entry.record_id for pair in judged if pair[1] is not member)
            yield self.match_of(
                member.entry,
                "pattern",
                verdict.score,
                (place.start, place.end),
                verdict.evidence,
                rendered=redact(rendered(member, captured)),
                captures=captures(member, captured),
                site=verdict.site,
                siblings=tuple(islice(others, MOST_SIBLINGS)),
                role="secondary" if member.secondary else role,
                **occurrence.tally.told(self.pasted, place.start),
            )

    @cached_property
    def _files_named(self) -> frozenset[str]:
        """Names of the files that the text's frames are in: they choose among hundreds of equal messages."""
        frames = context.frames_inside(self.pasted.data, 0, len(self.pasted.data))
        return frozenset(frame.path.rpartition("/")[2] for frame in frames)

    def _reports_another(self, place: Extent) -> bool:
        """Whether a message tells of an exception: in its own words, or in a traceback right behind it."""
        at = bisect_right(self.raised, place.start, key=lambda raised: raised.start)
        inside = at < len(self.raised) and self.raised[at].start < place.end
        return inside or self._traceback_behind(place) >= 0

    def _traceback_behind(self, place: Extent) -> int:
        """Where the traceback begins that stands right behind a message, -1 for none; its line may have a
        prefix, as the message's has.
        """
        behind = self.pasted.data[place.end : place.end + BEHIND]
        at = len(behind) - len(behind.lstrip(AROUND))
        return place.end + at if behind.startswith(context.HEADER, at) else -1

    def _announces(self, place: Extent) -> bool:
        """Whether a message ends by announcing another process's or thread's traceback."""
        data, at = self.pasted.data, self._traceback_behind(place)
        same_line = at >= 0 and b"\n" not in data[place.end : at]
        return at >= 0 and (same_line or data[place.start : place.end].rstrip(AROUND).endswith(b":"))

    def match_of(
        self,
        entry: Entry,
        match_type: MatchType,
        score: float,
        span: tuple[int, int],
        evidence: tuple[str, ...],
        **known: Any,
    ) -> Match:
        """A match; what is not `known` of it is what an uncounted one without captures has."""
        shown = known.pop("rendered", None)  # redacted already
        return Match(
            record_id=entry.record_id,
            match_type=match_type,
            score=round(score, 4),
            line=self.pasted.line_of(span[0]),
            span=self.pasted.span(*span),
            rendered=redact(self.pasted.shown(*span)) if shown is None else shown,
            evidence=evidence,
            **known,
        )

    def is_own(self, raised: Raised) -> bool:
        return context.python_own(raised.exception, self.pasted.shown(raised.message, raised.end).strip())

    def named_sites(self) -> list[Match]:
        """Records of sites that print no text, each named line once."""
        places: dict[tuple[str, int], tuple[Named, Tally]] = {}
        counted: set[tuple[str, int]] = set()
        for named in self.matcher.sites.named(self.pasted, self.raised, self.scope):
            if self.repo in (None, named.known.entry.repo):
                self.covered.append((named.start, named.end))
                _, tally = places.setdefault((named.known.entry.record_id, named.line), (named, Tally()))
                # A record may know one place under several functions or versions.
                if (named.known.entry.record_id, named.start) not in counted:
                    counted.add((named.known.entry.record_id, named.start))
                    tally.add(self.pasted, named.start, named.end)
        return [
            self.match_of(
                named.known.entry,
                "site",
                named.score,
                (named.start, named.end),
                (named.why,),
                site=named.known.site,
                **tally.told(self.pasted, named.start),
            )
            for named, tally in places.values()
        ]

    def codes(self) -> list[Match]:
        """Records whose error code stands in a short text."""
        if not self.matcher.has_codes or len(self.pasted.text) > SHORT * 2:
            return []
        return [
            self.match_of(entry, "exact-code", 0.95, word.span(), ("the error code",))
            for word in _WORD.finditer(self.pasted.text)
            for entry in self.matcher.coded(word[0])
            if self.repo in (None, entry.repo)
        ]

    def is_open(self, found: Sequence[Match]) -> bool:
        """Whether a longer template than those found may be meant: nothing was, or of a short text a part."""
        sure = [match for match in found if match.score >= MATCH]
        if not sure:
            return True
        if len(self.pasted.data) > SHORT or len(messages := self.messages()) != 1:
            return False
        (start, end), data = messages[0], self.pasted.data
        if any(match.match_type != "pattern" for match in sure):
            return False
        for match in sure:
            values = ((capture.kind, capture.value) for capture in match.captures)
            if may_hide(values, self.weights[match.record_id]):
                return True
        before, behind = min(match.span[0] for match in sure), max(match.span[1] for match in sure)
        # Marks alone are no word of a longer message.
        return any(key(part).strip(MARKS) for part in (data[start:before], data[behind:end]))

    def unmatched(self) -> tuple[Unmatched, ...]:
        """The exceptions in which nothing was found, each once."""
        covered = sorted(self.covered)
        listed: dict[tuple[str, bytes], tuple[Raised, Tally]] = {}
        whose: dict[tuple[str, str], tuple[str, bytes]] = {}
        for raised in self.raised:
            at = bisect_right(covered, (raised.end, len(self.pasted.data)))
            # Overlaps the last message that starts before its end.
            if at and covered[at - 1][1] >= raised.start:
                continue
            stop = min(raised.end, raised.message + SHOWN)
            identity = (raised.exception, self.pasted.data[raised.message : stop])
            if identity not in listed and len(whose) < ALIKE:
                alike = self._alike(raised, identity[1].decode("latin-1"))
                identity = whose.setdefault((raised.exception, alike), identity)
            if identity not in listed:
                if len(listed) == LISTED:
                    self.truncated = True
                    continue
                listed[identity] = raised, Tally()
            listed[identity][1].add(self.pasted, raised.start, raised.end)
        lines, more = known_lines(self.pasted, self.raised, covered, LISTED)
        self.truncated = self.truncated or more
        found = sorted((*listed.values(), *lines), key=lambda pair: pair[0].start)
        return tuple(self._missed(*pair) for pair in found)

    def _alike(self, raised: Raised, message: str) -> str:
        """Equal for what different ranks say of the same."""
        if known_in(message) is not None:
            return without_numbers(message)
        rank = origin(self.pasted, raised.start).rank
        return message if rank is None else without_rank(message, rank)

    def _missed(self, raised: Raised, tally: Tally) -> Unmatched:
        stop = min(raised.end, raised.message + SHOWN)
        message = self.pasted.shown(raised.message, stop).strip()
        explained = known_in(message)
        secondary = explained is not None and explained.secondary
        package = None
        if explained is None and raised.exception and not self.is_own(raised):
            frames = context.frames_above(self.pasted.data, raised.start)
            package = context.package_of(raised.exception, frames)
        return Unmatched(
            self.pasted.line_of(raised.start),
            raised.exception or None,
            redact(message),
            "secondary" if secondary else role_of(message, raised.exception),
            **tally.told(self.pasted, raised.start),
            known=explained.told if explained is not None else None,
            package=package,
        )


def _raises_key_error(entry: Entry, raised: Raised) -> bool:
    return raised.exception == "KeyError" and any(site.exception == "KeyError" for site in entry.sites)
