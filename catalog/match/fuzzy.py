"""The records whose text is most like a message that matches none: cut short, reworded, mistyped.

5-grams of the key domain, weighted by how rare they are. Digits count as much as letters: fp8 is not fp4.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from math import log
from typing import Final

from catalog.match.literals import Group
from catalog.match.model import MATCH

GRAM: Final = 5
LONGEST: Final = 600
"""Characters of a message that are compared."""
COMMON: Final = 0.03
"""A gram in a larger share of the templates tells nothing apart."""
FULL: Final = 12
"""With fewer grams than this a likeness counts for proportionally less."""
_CEILING: Final = MATCH - 0.01


def grams(key: bytes) -> set[bytes]:
    return {key[at : at + GRAM] for at in range(min(len(key), LONGEST) - GRAM + 1)}


class Fuzzy:
    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        postings: defaultdict[bytes, list[int]] = defaultdict(list)
        for number, group in enumerate(groups):
            for gram in set().union(*map(grams, group.keys)):
                postings[gram].append(number)
        most = max(24, COMMON * len(groups))
        self._postings = {gram: numbers for gram, numbers in postings.items() if len(numbers) <= most}
        self._weights = {gram: log(1 + len(groups) / len(at)) for gram, at in self._postings.items()}
        self._totals = [0.0] * len(groups)
        for gram, numbers in self._postings.items():
            for number in numbers:
                self._totals[number] += self._weights[gram]

    def search(self, key: bytes, limit: int) -> list[tuple[Group, float]]:
        """The likest groups, best first, each with its likeness in [0, MATCH).

        Half of it is how much of the template is there, half how much of what is known in the text belongs
        to it; what no template holds is a value, a path or prose and lowers it a little."""
        wanted = grams(key)
        known = wanted & self._postings.keys()
        if not known:
            # A word too short for a gram, or one that many templates share.
            holding = (group for group in self._groups if any(key in literal for literal in group.keys))
            return [(group, _CEILING / 2) for group in islice(holding, limit if key else 0)]
        shared: dict[int, float] = defaultdict(float)
        for gram in known:
            for number in self._postings[gram]:
                shared[number] += self._weights[gram]
        asked = sum(self._weights[gram] for gram in known)
        certainty = _CEILING * min(1.0, len(known) / FULL) * (0.8 + 0.2 * len(known) / len(wanted))
        # Ranked by what is shared, with a small allowance for short templates.
        best = sorted(shared, key=lambda number: (-shared[number] / self._totals[number] ** 0.35, number))
        return [
            (
                self._groups[number],
                certainty * (shared[number] / asked + shared[number] / self._totals[number]) / 2,
            )
            for number in best[:limit]
        ]
