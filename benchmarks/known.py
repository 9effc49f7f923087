"""A catalog under measurement: which records mean the same, and what is drawn from it."""

from __future__ import annotations

import random
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from heapq import nsmallest
from operator import itemgetter

from benchmarks.texts import Sample, sample
from catalog.match import Entry, Matcher
from catalog.match.parts import InMemory
from catalog.snapshots.snapshot import Snapshot
from catalog.store import entries, load_catalog
from catalog.template import key_of

LEAST = 12
"""Literal characters of a template that is drawn."""


class Known:
    """The curated records with those of snapshots."""

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self.snapshots = tuple(snapshots)
        self.curated = [found for record in load_catalog().records for found in entries(record.fault)]
        self.matcher = Matcher.of([InMemory(self.curated), *snapshots])

    @cached_property
    def entries(self) -> list[Entry]:
        """One entry of every template."""
        index = self.matcher.index
        return [next(index.entries(number, None)) for number in range(len(index))]

    @cached_property
    def texts(self) -> dict[str, set[int]]:
        """The numbers of the templates that a record has, by id."""
        names = [
            {number: entry.record_id for number, entry in enumerate(self.curated)},
            *({number: name for name, number in found.identifiers()} for found in self.snapshots),
        ]
        index = self.matcher.index
        texts: dict[str, set[int]] = {}
        first = 0
        for part, known in zip(index.parts, names, strict=True):
            for local in range(len(part.prepared)):
                group = int(index.number_of[first + local])
                for number in part.prepared.entries(local):
                    texts.setdefault(known[number], set()).add(group)
            first += len(part.prepared)
        return texts

    def drawn(self, salt: str, most: int) -> Iterator[Sample]:
        """Messages of templates that say enough, each template as likely as any other.

        Which ones, and their values, depend on each template's own words: a catalog that grows by a few draws
        the same but for a few.
        """
        fit = (
            (_digest(f"{salt}{entry.message}"), entry)
            for entry in self.entries
            if entry.template.literal_weight >= LEAST and entry.sites and not entry.quiet
        )
        for digest, entry in nsmallest(most, fit, key=itemgetter(0)):
            yield sample(entry, random.Random(digest))

    @cached_property
    def _keys(self) -> list[bytes]:
        """The templates' keys, a NUL at each hole, in order."""
        return sorted(
            b"\x00".join(self.matcher.index.group(at).keys) for at in range(len(self.matcher.index))
        )

    def beginning_alike(self, each: Sample, size: int) -> int:
        """How many templates begin as the sample's does in the first characters of its message: no answer can
        tell them apart.
        """
        begun, left = b"", size
        for segment, value in zip(each.entry.template.segments, (*each.values, ""), strict=True):
            begun += key_of(segment[:left])
            left -= len(segment)
            if left <= 0:
                break
            begun += b"\x00"
            left -= len(value)
            if left <= 0:
                break
        return bisect_left(self._keys, begun + b"\xff") - bisect_left(self._keys, begun)

    def rank(self, wanted: str, found: Sequence[str]) -> int:
        """How many other templates come before that of the wanted record; sys.maxsize where none is its."""
        right = self.texts.get(wanted, set())
        before: set[int] = set()
        for identifier in found:
            texts = self.texts.get(identifier, {-1})
            if identifier == wanted or not right.isdisjoint(texts):
                return len(before)
            before.add(min(texts))
        return sys.maxsize


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
