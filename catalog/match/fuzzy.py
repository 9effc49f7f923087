"""The records whose text is most like a message that matches none: cut short, reworded, mistyped.

5-grams of the key domain, weighted by how rare they are. Digits count as much as letters: fp8 is not fp4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np

from catalog.match.aligning import align
from catalog.match.literals import Group, Index
from catalog.match.model import MATCH
from catalog.match.prepared import GRAM, LONGEST, codes

FULL: Final = 12
"""With fewer grams than this a likeness counts for proportionally less."""
POOL: Final = 60
"""Groups that share most grams with a text, looked at one by one."""
BEGINS: Final = 40
"""Groups whose first long literal a text has, looked at beside them."""
LENGTH: Final = 0.35
"""How much a template's length takes from what it shares: little, since most texts are cut or changed."""
RANK: Final = 9.0
"""Characters that a text says more of a template that shares e times as much with it."""
SAID: Final = 16
"""Literal characters from which a cut text is as good as what is left of it."""
_CEILING: Final = MATCH - 0.01

Numbers = Any
"""A numpy array."""


class Like(NamedTuple):
    """A group, its likeness in [0, MATCH), and how many of its literal characters the text has."""

    group: Group
    score: float
    said: int


class Fuzzy:
    """Compares messages with the groups of an index, by the grams that its parts have posted."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._parts: list[tuple[Numbers, Numbers]] | None = None

    @property
    def _totals(self) -> list[tuple[Numbers, Numbers]]:
        """Per part: what a group's grams weigh together, and by what it is divided when groups are ranked."""
        if self._parts is None:
            parts = [part.prepared for part in self._index.parts]
            everything = sum(map(len, parts))
            # A part weighs its grams by its own templates alone.
            totals = (part.total + part.grams * np.log(everything / max(1, len(part))) for part in parts)
            totals = (np.maximum(total, 1e-9).astype(np.float32) for total in totals)
            self._parts = [(total, total**LENGTH) for total in totals]
        return self._parts

    def search(self, key: bytes, limit: int) -> list[Like]:
        """The likest groups, best first.

        Half of a likeness is how much of the template is there, half how much of what is known in the text
        belongs to it; what no template holds is a value, a path or prose and lowers it a little. Of a text
        that ends in the middle of a template only what is before its end counts."""
        wanted = np.unique(codes(np.frombuffer(key[:LONGEST], np.uint8), GRAM))
        parts = [part.prepared for part in self._index.parts]
        count = np.zeros(len(wanted))
        known = []
        for part in parts:
            at = np.minimum(np.searchsorted(part.gram, wanted), max(0, len(part.gram) - 1))
            there = part.gram[at] == wanted if len(part.gram) else np.zeros(len(wanted), bool)
            known.append((at, there))
            count[there] += (part.gram_start[at + 1].astype(np.int64) - part.gram_start[at])[there]
        held = count > 0
        if not held.any():
            return self._holding(key, limit)
        weight = np.log1p(sum(map(len, parts)) / np.maximum(count, 1))
        asked = float(weight[held].sum())
        pool: dict[int, tuple[float, float]] = {}
        first = 0
        for part, (at, there), (total, divisor) in zip(parts, known, self._totals, strict=True):
            if there.any():
                begin, end = part.gram_start[at[there]].tolist(), part.gram_start[at[there] + 1].tolist()
                posted = np.concatenate([part.posted[a:b] for a, b in zip(begin, end, strict=True)])
                sizes = [b - a for a, b in zip(begin, end, strict=True)]
                shared = np.bincount(posted, weights=np.repeat(weight[there], sizes), minlength=len(part))
                rank = shared / divisor
                for local in _most(rank, POOL):
                    number = int(self._index.number_of[first + local])
                    like = float(shared[local] / asked + shared[local] / total[local]) / 2
                    pool[number] = max(pool.get(number, (0.0, 0.0)), (float(rank[local]), like))
            first += len(part)
        best = sorted(pool.items(), key=lambda item: (-item[1][0], item[0]))[:POOL]
        # What begins as the text does may share little else with it: the rest is values.
        pooled = {number for number, _ in best}
        begins = dict.fromkeys(
            number for number, _, _ in islice(self._index.beginnings(key[:LONGEST]), BEGINS)
        )
        best += [(number, (best[-1][1][0], 0.0)) for number in begins if number not in pooled]
        shown = int(held.sum())
        certainty = _CEILING * min(1.0, shown / FULL) * (0.8 + 0.2 * shown / len(wanted))
        return list(islice(self._ordered(key, best, certainty), limit))

    def _ordered(
        self, key: bytes, pool: list[tuple[int, tuple[float, float]]], certainty: float
    ) -> Iterator[Like]:
        """The groups of a pool (number, rank, likeness), by how they lie in the text and by their rank."""
        ranked = []
        for number, (rank, like) in pool:
            group = self._index.group(number)
            worth, said = align(key, group.keys)
            ranked.append((worth + RANK * math.log(rank), like, said, group))
        ranked.sort(key=lambda item: -item[0])
        ceiling = _CEILING
        for _, like, said, group in ranked:
            like = max(like, said / len(key)) if said >= SAID else like
            score = min(ceiling, certainty * like)
            yield Like(group, score, said)
            ceiling = score - 1e-4

    def _holding(self, key: bytes, limit: int) -> list[Like]:
        """For a word too short for a gram, or one that many templates share: the groups that have it."""
        found = (number for number in self._with(key)) if key else iter(())
        return [Like(self._index.group(number), _CEILING / 2, len(key)) for number in islice(found, limit)]

    def _with(self, key: bytes) -> list[int]:
        numbers: dict[int, None] = {}
        first = 0
        for part in (part.prepared for part in self._index.parts):
            at = part.keys.find(key)
            while at >= 0 and len(numbers) < 1000:
                local = int(np.searchsorted(part.key_start, at, side="right")) - 1
                numbers[int(self._index.number_of[first + local])] = None
                at = part.keys.find(key, int(part.key_start[local + 1]))
            first += len(part)
        return list(numbers)


def _most(rank: Numbers, most: int) -> list[int]:
    """Where the largest values are, none that is nothing beside the largest of all."""
    few = np.flatnonzero(rank > 0.3 * rank.max())
    if len(few) > most:
        few = few[np.argpartition(-rank[few], most)[:most]]
    return few.tolist()
