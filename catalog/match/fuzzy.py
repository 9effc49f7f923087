"""The records whose text is most like a message that matches none: cut short, reworded, mistyped.

5-grams of the key domain, weighted by how rare they are. Digits count as much as letters: fp8 is not fp4.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

import numpy as np

from catalog.match.literals import Group, Index
from catalog.match.model import MATCH
from catalog.match.prepared import GRAM, LONGEST, codes

FULL: Final = 12
"""With fewer grams than this a likeness counts for proportionally less."""
_CEILING: Final = MATCH - 0.01


class Fuzzy:
    """Compares messages with the groups of an index, by the grams that its parts have posted."""

    def __init__(self, index: Index) -> None:
        self._index = index

    def search(self, key: bytes, limit: int) -> list[tuple[Group, float]]:
        """The likest groups, best first, each with its likeness in [0, MATCH).

        Half of it is how much of the template is there, half how much of what is known in the text belongs
        to it; what no template holds is a value, a path or prose and lowers it a little."""
        wanted = np.unique(codes(np.frombuffer(key[:LONGEST], np.uint8), GRAM))
        parts = [part.prepared for part in self._index.parts]
        places = [np.searchsorted(part.gram, wanted) for part in parts]
        count = np.zeros(len(wanted))
        known = []
        for part, place in zip(parts, places, strict=True):
            at = np.minimum(place, len(part.gram) - 1)
            there = part.gram[at] == wanted if len(part.gram) else np.zeros(len(wanted), bool)
            known.append((at, there))
            count[there] += (part.gram_start[at + 1].astype(np.int64) - part.gram_start[at])[there]
        held = count > 0
        if not held.any():
            return self._holding(key, limit)
        everything = sum(map(len, parts))
        weight = np.log1p(everything / np.maximum(count, 1))
        asked = float(weight[held].sum())
        shown = int(held.sum())
        certainty = _CEILING * min(1.0, shown / FULL) * (0.8 + 0.2 * shown / len(wanted))
        best: dict[int, tuple[float, float]] = {}
        first = 0
        for part, (at, there) in zip(parts, known, strict=True):
            if there.any():
                begin, end = part.gram_start[at[there]], part.gram_start[at[there] + 1]
                posted = np.concatenate(
                    [part.posted[a:b] for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
                )
                weights = np.repeat(weight[there], (end - begin).astype(np.int64))
                shared = np.bincount(posted, weights=weights, minlength=len(part))
                # A part weighs its grams by its own templates alone.
                total = part.total + part.grams * np.log(everything / len(part))
                # Ranked by what is shared, with a small allowance for short templates.
                rank = shared / np.maximum(total, 1e-9) ** 0.35
                few = np.argpartition(-rank, min(2 * limit, len(rank) - 1))[: 2 * limit]
                for local in few[rank[few] > 0].tolist():
                    number = int(self._index.number_of[first + local])
                    like = (shared[local] / asked + shared[local] / total[local]) / 2
                    best[number] = max(best.get(number, (0.0, 0.0)), (float(rank[local]), float(like)))
            first += len(part)
        ranked = sorted(best.items(), key=lambda item: (-item[1][0], item[0]))[:limit]
        return [(self._index.group(number), min(_CEILING, certainty * like)) for number, (_, like) in ranked]

    def _holding(self, key: bytes, limit: int) -> list[tuple[Group, float]]:
        """For a word too short for a gram, or one that many templates share: the groups that have it."""
        found = (number for number in self._with(key)) if key else iter(())
        return [(self._index.group(number), _CEILING / 2) for number in islice(found, limit)]

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
