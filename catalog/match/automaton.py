"""Many literals looked for in one pass, and what each belongs to."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from ahocorasick_rs import BytesAhoCorasick, Implementation

CACHED: Final = 20_000
"""Groups and anchors' owners that are kept once they were met."""

Numbers = Any
"""A numpy array, or one number of one."""


class Automaton:
    """Anchors and what they belong to: (group, segment, offset of the anchor in that segment).

    Owners lie in flat arrays, since most are never met; `start[i]` is where anchor i's begin. `words` are
    anchors that belong to nothing.
    """

    def __init__(
        self,
        anchors: Sequence[bytes],
        start: Numbers,
        owners: Sequence[Numbers],
        words: Sequence[bytes] = (),
    ) -> None:
        self.size = len(anchors)
        anchors = [*anchors, *words]
        self._start = array("q", start.astype(np.int64).tobytes())
        self._start.extend([self._start[-1]] * len(words))
        self._owners = [array("q", part.astype(np.int64).tobytes()) for part in owners]
        self._met: dict[int, list[tuple[int, int, int]]] = {}
        self._automaton = (
            BytesAhoCorasick(anchors, implementation=Implementation.ContiguousNFA) if anchors else None
        )

    def scan(self, key: bytes) -> list[tuple[int, int, int]]:
        # Overlapping, since one anchor may lie inside another.
        return self._automaton.find_matches_as_indexes(key, overlapping=True) if self._automaton else []

    def owners(self, anchor: int) -> list[tuple[int, int, int]]:
        if (found := self._met.get(anchor)) is None:
            begin, end = self._start[anchor], self._start[anchor + 1]
            found = list(zip(*(part[begin:end] for part in self._owners), strict=True))
            if len(self._met) >= CACHED:
                self._met = {}
            self._met[anchor] = found
        return found
