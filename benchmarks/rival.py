"""The obvious way to look an error up, that of a public dataset of errors: every pattern in turn, then
likeness.

A pattern is searched for anywhere in the text with Python's `re`, for 50 ms at most; of those found the one
with the longest literals is best. When none is found, or time is up before, the messages that share most
words with the text come first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from heapq import nlargest
from time import perf_counter
from typing import Final

from catalog.match.model import Entry

BUDGET: Final = 0.05
"""Seconds for the loop over the patterns."""
_WORD: Final = re.compile(r"\w+")


class Rival:
    """The patterns, compiled beforehand."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._known = [
            (re.compile(entry.template.pattern), entry.template.literal_weight, number)
            for number, entry in enumerate(entries)
        ]
        self._words = [frozenset(_WORD.findall(entry.message.lower())) for entry in entries]

    def loop(self, text: str, budget: float = BUDGET) -> list[tuple[int, int]]:
        """(literal characters, number) of the patterns found within `budget` seconds."""
        until = perf_counter() + budget
        found = []
        for pattern, weight, number in self._known:
            if pattern.search(text):
                found.append((weight, number))
            if perf_counter() > until:
                break
        return found

    def find(self, text: str, limit: int) -> list[int]:
        """Numbers of the entries that are meant, best first."""
        if found := self.loop(text):
            return [number for _, number in nlargest(limit, found)]
        asked = frozenset(_WORD.findall(text.lower()))
        shares = (
            (len(asked & words) / len(asked | words), number)
            for number, words in enumerate(self._words)
            if words
        )
        return [number for _, number in nlargest(limit, shares)]
