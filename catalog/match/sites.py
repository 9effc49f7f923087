"""Raise sites that print no text: found by the place that the text names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from catalog.match import context
from catalog.match.clean import REACH, Pasted, key
from catalog.match.context import Frame, Raised
from catalog.match.literals import Scope
from catalog.match.model import Entry, Site
from catalog.match.parts import Part, merged
from catalog.match.score import suffix
from catalog.template import key_of

LEAST_SOURCE: Final = 12
"""Key characters of a statement that tell it from others in its file."""
MOST: Final = 20_000
"""Places looked at in one text."""
MOST_BARE: Final = 25
"""Exceptions without a message whose frames are looked at."""


@dataclass(frozen=True, slots=True)
class Known:
    """One site of a record without text; `source` is its statement in the key domain."""

    entry: Entry
    site: Site
    source: bytes


@dataclass(frozen=True, slots=True)
class Named:
    """A known site that a text names from `start` to `end` (offsets), as `line` of its file."""

    known: Known
    start: int
    end: int
    line: int
    score: float
    why: str


class Sites:
    """The sites of records without text, by file name."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def named(self, pasted: Pasted, raised: Sequence[Raised], scope: Scope) -> Iterator[Named]:
        """The sites that launcher messages without text name, and those where bare exceptions were raised."""
        for region in pasted.regions:
            for start, end, frame in islice(context.places(pasted.data, *region), MOST):
                for known in self._in_file(frame, scope):
                    exact = frame.line in known.site.lines
                    why = (
                        "the launcher names its line"
                        if exact
                        else "the launcher names its file, at an unknown line"
                    )
                    yield Named(
                        known, start, end, frame.line, 0.95 if exact else 0.55, f"{why}: {frame.place}"
                    )
        for bare in raised[:MOST_BARE]:
            message = pasted.data[bare.message : bare.end].strip(b"\x00\x01 \t\r\n")
            # pytest prints a bare assertion with its values.
            if not message or message.startswith(b"assert "):
                yield from self._ended_at(pasted, bare, scope)

    def _ended_at(self, pasted: Pasted, bare: Raised, scope: Scope) -> Iterator[Named]:
        innermost = context.frames_above(pasted.data, bare.start)[:1]
        innermost += context.frames_below(pasted.data, bare.end)[:1]
        printed = key(pasted.data[max(0, bare.start - REACH) : bare.start])
        for frame in innermost:
            for known in self._in_file(frame, scope):
                if known.site.exception.rpartition(".")[2] != bare.exception.rpartition(".")[2]:
                    continue
                if frame.line in known.site.lines:
                    score, why = 0.93, "the stack ends at its line"
                elif len(known.source) >= LEAST_SOURCE and known.source in printed:
                    score, why = 0.9, "the stack ends in its file, at the same statement"
                else:
                    continue
                yield Named(known, bare.start, bare.end, frame.line, score, f"{why}: {frame.place}")

    def _in_file(self, frame: Frame, scope: Scope) -> list[Known]:
        """The sites of the file a frame names; those of its line alone when it is known."""
        name = frame.path.rpartition("/")[2]
        entries = merged(
            entry
            for number, part in enumerate(self._parts)
            if scope.parts is None or number in scope.parts
            for entry in part.wordless(name)
        )
        named = [
            Known(entry, site, key_of(entry.message))
            for entry in entries
            if scope.repo in (None, entry.repo)
            for site in entry.sites
            if site.path.endswith(name)
        ]
        depth = max((suffix(known.site.path, frame.path) for known in named), default=0)
        named = [known for known in named if suffix(known.site.path, frame.path) == depth]
        return [known for known in named if frame.line in known.site.lines] or named
