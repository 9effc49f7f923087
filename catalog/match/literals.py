"""Templates found by their literals: two anchors each in an Aho-Corasick automaton, then a linear walk.

Everything here happens in the key domain; places are indexes into a chunk's key. Figures behind the choices
(anchor length, rare 6-grams, two automata): the lookup benchmark prints them for this machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ahocorasick_rs import BytesAhoCorasick, Implementation

from catalog.match.clean import Chunk
from catalog.match.model import Entry
from catalog.template import Template, key_of

ANCHOR: Final = 24
"""Longest anchor; longer ones find nothing more and cost memory."""
SHORTEST: Final = 8
"""A shorter literal is in every log; a template without a longer one is only tried on whole messages."""
MAX_HOLE: Final = 2048
"""Longest value inside a message, in key characters; a last hole is bounded by the end of its message."""
MAX_SHARED: Final = 64
"""A head that more templates begin with is no anchor: their rare ones are."""
MAX_TRIED: Final = 10_000
"""Anchors of one template that are verified in one text."""
MAX_TRIED_ALL: Final = 40_000
"""Anchors of all templates that are verified in one text."""
_ALL: Final = -1
_GRAM: Final = 6


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of a group with its own template: the spelling its captures are cut from."""

    entry: Entry
    template: Template

    @property
    def prints_place(self) -> bool:
        """Whether the message names the file and line that raise it."""
        pairs = zip(self.entry.hole_kinds, self.template.segments[1:], strict=True)
        return any(kind == "path" and after == ":" for kind, after in pairs)

    @property
    def tail(self) -> str:
        """What the message ends with that no key holds: quotes, a full stop."""
        last = self.template.segments[-1]
        return last[len(last.rstrip(" \"'`.")) :]


class Group:
    """The entries whose templates are the same in the key domain; they match together."""

    def __init__(self, keys: tuple[bytes, ...], number: int) -> None:
        self.number = number
        self.keys = keys
        """Key of each segment; an empty one is passed over, its holes are separated later."""
        self.members: list[Member] = []
        self.weight = sum(map(len, keys))
        self.order = [index for index, literal in enumerate(keys) if literal]

    def within(self, repo: str | None) -> list[Member]:
        """The members of a repository, all when none is asked for."""
        return [member for member in self.members if repo in (None, member.entry.repo)]

    @property
    def leading_hole(self) -> bool:
        return not self.keys[0]

    @property
    def trailing_hole(self) -> bool:
        return len(self.keys) > 1 and not self.keys[-1]

    def locate(self, key: bytes, segment: int, at: int) -> list[tuple[int, int]] | None:
        """Places of the group's literals (start, end), in order, given the place of one; None when one is
        absent.

        Of all spans that hold this literal it is the tightest, then walked as a lazy pattern would.
        """
        keys, order = self.keys, self.order
        if not key.startswith(keys[segment], at):
            return None
        last, end = at, at + len(keys[segment])
        for index in order:
            if index > segment:
                last = key.find(keys[index], end, end + MAX_HOLE + len(keys[index]))
                if last < 0:
                    return None
                end = last + len(keys[index])
        first = last
        for index in reversed(order[:-1]):
            first = key.rfind(keys[index], max(0, first - MAX_HOLE - len(keys[index])), first)
            if first < 0:
                return None
        places = [(first, first + len(keys[order[0]]))]
        for index in order[1:]:
            start = key.find(keys[index], places[-1][1])
            places.append((start, start + len(keys[index])))
        return places


@dataclass(frozen=True, slots=True)
class Found:
    """A group whose literals lie at `places` of a chunk's key."""

    group: Group
    places: list[tuple[int, int]]


class _Automaton:
    """Anchors and what they belong to: (group, segment, offset of the anchor in that segment)."""

    def __init__(self, anchors: dict[bytes, list[tuple[Group, int, int]]]) -> None:
        self.owners = list(anchors.values())
        self._automaton = BytesAhoCorasick(list(anchors), implementation=Implementation.ContiguousNFA)

    def scan(self, key: bytes) -> list[tuple[int, int, int]]:
        # Overlapping, since one anchor may lie inside another.
        return self._automaton.find_matches_as_indexes(key, overlapping=True) if self.owners else []


class Index:
    """All groups and their anchors. `short` texts use both anchors of a template, logs the rare one only."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        groups: dict[tuple[bytes, ...], Group] = {}
        for entry in entries:
            template = Template.parse(entry.message)
            keys = [key_of(segment) for segment in template.segments]
            # A full stop at the end is often lost; nothing depends on it.
            keys[-1] = keys[-1].rstrip(b".")
            group = groups.setdefault(tuple(keys), Group(tuple(keys), len(groups)))
            group.members.append(Member(entry, template))
        self.groups = [group for group in groups.values() if group.weight]
        self.weak = [group for group in self.groups if max(map(len, group.keys)) < SHORTEST]
        rare, heads = self._anchors()
        self._rare = _Automaton(rare)
        both = {anchor: list(owners) for anchor, owners in rare.items()}
        for anchor, owners in heads.items():
            if len(owners) <= MAX_SHARED:
                both.setdefault(anchor, []).extend(
                    owner for owner in owners if owner not in both.get(anchor, ())
                )
        self._both = _Automaton(both)

    def _anchors(
        self,
    ) -> tuple[dict[bytes, list[tuple[Group, int, int]]], dict[bytes, list[tuple[Group, int, int]]]]:
        frequency = Counter(
            gram for group in self.groups for literal in group.keys for gram in set(_grams(literal))
        )
        rare: dict[bytes, list[tuple[Group, int, int]]] = {}
        heads: dict[bytes, list[tuple[Group, int, int]]] = {}
        for group in self.groups:
            long = [index for index in group.order if len(group.keys[index]) >= SHORTEST]
            if not long:
                continue
            # The rarest 6-gram bounds how often the window around it can occur elsewhere.
            _, index, at = min(
                (frequency[gram], index, at)
                for index in long
                for at, gram in enumerate(_grams(group.keys[index]))
            )
            start = max(0, min(at - (ANCHOR - _GRAM) // 2, len(group.keys[index]) - ANCHOR))
            rare.setdefault(group.keys[index][start : start + ANCHOR], []).append((group, index, start))
            heads.setdefault(group.keys[long[0]][:ANCHOR], []).append((group, long[0], 0))
        return rare, heads

    def promising(self, key: bytes) -> bool:
        return bool(self._rare.scan(key))

    def find(self, chunk: Chunk, tried: Counter[int], *, short: bool) -> Iterator[Found]:
        """Every place whose literals are all there, each once.

        `tried` counts the anchors verified per group over all chunks of a text; beyond MAX_TRIED a group is
        no longer looked for, so that a flood of one costs little and does not hide the others."""
        automaton = self._both if short else self._rare
        key = chunk.key
        seen: dict[int, int] = {}
        for pattern, start, _ in automaton.scan(key):
            for group, segment, offset in automaton.owners[pattern]:
                at = start - offset
                if at < seen.get(group.number, 0):
                    continue
                tried[group.number] += 1
                if tried[group.number] > MAX_TRIED:
                    continue
                tried[_ALL] += 1
                if tried[_ALL] > MAX_TRIED_ALL:
                    return
                places = group.locate(key, segment, at)
                if places is None or places[0][0] < seen.get(group.number, 0):
                    continue
                seen[group.number] = places[-1][1]
                yield Found(group, places)

    @staticmethod
    def exhausted(tried: Counter[int]) -> bool:
        """Whether a limit kept some anchors from being verified."""
        return tried[_ALL] > MAX_TRIED_ALL or any(
            count > MAX_TRIED for group, count in tried.items() if group != _ALL
        )

    def whole(self, key: bytes) -> Iterator[Found]:
        """The templates without a long literal that are the whole of a message's key."""
        for group in self.weak:
            places, end = [], 0
            for index in group.order:
                start = key.find(group.keys[index], end)
                if start < 0 or (index == 0 and start):
                    break
                end = start + len(group.keys[index])
                places.append((start, end))
            else:
                if group.trailing_hole or key.endswith(group.keys[-1]):
                    if not group.trailing_hole:
                        places[-1] = (len(key) - len(group.keys[-1]), len(key))
                    yield Found(group, places)


def siblings(group: Group, member: Member) -> tuple[str, ...]:
    """The other records with a member's text."""
    return tuple(other.entry.record_id for other in group.members if other is not member)


def _grams(literal: bytes) -> Sequence[bytes]:
    return [literal[at : at + _GRAM] for at in range(len(literal) - _GRAM + 1)]
