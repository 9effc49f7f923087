"""Templates found by their literals: two anchors each in an Aho-Corasick automaton, then a linear walk.

Everything here happens in the key domain; places are indexes into a chunk's key. Figures behind the choices
(anchor length, rare 6-grams, two automata): the lookup benchmark prints them for this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from catalog.match import heap
from catalog.match.automaton import CACHED, Automaton, Numbers
from catalog.match.causes import is_secondary
from catalog.match.context import PROMISING
from catalog.match.known import phrases
from catalog.match.model import Entry
from catalog.match.parts import Part, merged
from catalog.template import key_of, solid_part

MAX_HOLE: Final = 2048
"""Longest value inside a message, in key characters; a last hole is bounded by the end of its message."""
MAX_SHARED: Final = 64
"""A head that more templates begin with is no anchor: their rare ones are."""
MAX_TRIED: Final = 10_000
"""Anchors of one template that are verified in one text."""
MAX_TRIED_ALL: Final = 40_000
"""Anchors of all templates that are verified in one text."""
MOST_SIBLINGS: Final = 25
"""Other records with the same text that are named."""
MOST_MEMBERS: Final = 100
"""Entries with one text that are looked at; generated sources repeat theirs a thousand times."""
LEAST: Final = 6
"""Literal characters below which a text says nothing, whatever surrounds it."""
_ALL: Final = -1
_LEAD: Final = 3


class Member:
    """One entry of a group with its own template: the spelling its captures are cut from.

    prints_place  whether the message names the file and line that raise it
    tail          what the message ends with that no key holds: quotes, a full stop
    secondary     whether it only says that another process failed
    raised_as     the last parts of the names of the classes that its sites raise
    solid         characters of the literals from their first to their last one that a key holds
    behind        characters of the last literal before a last hole that no key holds
    plain         whether the message begins with what a key holds, or a hole, and ends with that and `tail`
    """

    __slots__ = (
        "behind",
        "entry",
        "plain",
        "prints_place",
        "raised_as",
        "secondary",
        "solid",
        "tail",
        "template",
    )

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.template = entry.template
        after = zip(entry.hole_kinds, self.template.segments[1:], strict=True)
        self.prints_place = any(kind == "path" and literal == ":" for kind, literal in after)
        last = self.template.segments[-1]
        self.tail = last[len(last.rstrip(" \"'`.")) :].strip().encode("latin-1", "replace")
        self.secondary = is_secondary(self.template.message)
        self.raised_as = frozenset(site.exception.rpartition(".")[2] for site in entry.sites)
        segments = self.template.segments
        *before, end = map(solid_part, (*segments[:-1], last.rstrip(" \"'`.")))
        self.behind, self.plain = 0, True
        if end is not None:
            self.plain = last[end[1] :].encode("latin-1", "replace") == self.tail
        elif before and (known := before[-1]) is not None:
            self.behind = len(segments[-2]) - known[1]
        else:
            self.plain = False
        bounds = [bound for bound in (*before, end) if bound is not None]
        self.solid = sum(stop - start for start, stop in bounds)
        first = before[0] if before else end
        self.plain = self.plain and (first is None or first[0] == 0)


@dataclass(frozen=True, slots=True)
class Scope:
    """What a text is compared with: records of one repository, and of these parts alone; None for all."""

    repo: str | None = None
    parts: frozenset[int] | None = None


EVERYTHING: Final = Scope()


class Group:
    """The entries whose templates are the same in the key domain; they match together."""

    def __init__(self, index: Index, number: int, keys: tuple[bytes, ...]) -> None:
        self.number = number
        self.keys = keys
        """Key of each segment; an empty one is passed over, its holes are separated later."""
        self.weight = sum(map(len, keys))
        self.order = [at for at, literal in enumerate(keys) if literal]
        self._index = index
        self._members: dict[frozenset[int] | None, list[Member]] = {}
        self.crowded = index.count(number) > MOST_MEMBERS
        """Whether too many entries have this text to look at all of them."""

    @property
    def members(self) -> list[Member]:
        """All of them, or the first of a crowd; each record once."""
        return self._of(None)

    @cached_property
    def prints_place(self) -> bool:
        """Whether a member's message names the file and line that raise it."""
        return any(member.prints_place for member in self.members)

    @cached_property
    def first_ids(self) -> list[str]:
        """The ids of the first members, one more than are named as siblings."""
        return [member.entry.record_id for member in self.members[: MOST_SIBLINGS + 1]]

    def within(self, scope: Scope, files: frozenset[str] = frozenset()) -> list[Member]:
        """The members that are asked for; of a crowd those in `files` before others."""
        members = self._of(scope.parts)
        if self.crowded and files:
            named = merged(self._index.entries(self.number, scope.parts, files))
            known = {entry.record_id for entry in named}
            members = [*map(Member, named), *(item for item in members if item.entry.record_id not in known)]
        if scope.repo is None:
            return members
        return [member for member in members if member.entry.repo == scope.repo]

    def _of(self, parts: frozenset[int] | None) -> list[Member]:
        if parts not in self._members:
            self._members[parts] = [
                Member(entry) for entry in merged(self._index.entries(self.number, parts))
            ]
        return self._members[parts]

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
        if len(order) == 1:
            return [(at, at + len(keys[segment]))]
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


class Found(NamedTuple):
    """A group whose literals lie at `places` of a chunk's key."""

    group: Group
    places: list[tuple[int, int]]


class Index:
    """All parts' groups and their anchors. Short texts use both anchors of a template, logs the rare one.

    Groups of several parts with one key are one group: versions of a package share most of theirs.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self._first_of = np.concatenate([[0], np.cumsum([len(part.prepared) for part in parts])])
        digest = np.concatenate([part.prepared.digest for part in parts]) if parts else np.empty(0, np.uint64)
        if len(parts) == 1:
            self.number_of = np.arange(len(digest))
            self._locals = self.number_of
            self._starts = np.arange(len(digest) + 1)
        else:
            _, self.number_of = np.unique(digest, return_inverse=True)
            self._locals = np.argsort(self.number_of, kind="stable")
            counts = np.bincount(self.number_of)
            self._starts = np.concatenate([[0], np.cumsum(counts)])
        self._groups: dict[int, Group] = {}
        self._rare = self._automaton("rare", None)
        self._weak = self._by_lead()
        self._weak_curated = {
            lead: curated
            for lead, numbers in self._weak.items()
            if not lead[1] and (curated := list(filter(self._is_curated, numbers)))
        }

    def __len__(self) -> int:
        return len(self._starts) - 1

    @cached_property
    def _heads(self) -> Automaton:
        """The second anchors, built for the first text of no record: half of what an index costs."""
        built = self._automaton("head", MAX_SHARED)
        if len(self) > heap.LARGE:
            heap.give_back()
        return built

    def group(self, number: int) -> Group:
        """A group by its number."""
        if (group := self._groups.get(number)) is None:
            part, local = self._place(int(self._locals[self._starts[number]]))
            keys = tuple(self.parts[part].prepared.key(local)[:-1].split(b"\x00"))
            group = Group(self, number, keys)
            if len(self._groups) >= CACHED:
                self._groups = {}
            self._groups[number] = group
        return group

    def entries(
        self, number: int, parts: frozenset[int] | None, files: frozenset[str] = frozenset()
    ) -> Iterator[Entry]:
        """The entries of a group, in the order of the parts, at most MOST_MEMBERS of each; with `files` those
        that stand in one of them.
        """
        for at in self._locals[self._starts[number] : self._starts[number + 1]]:
            place, local = self._place(int(at))
            if parts is None or place in parts:
                part = self.parts[place]
                numbers = part.prepared.entries(local)
                if files:
                    numbers = part.in_files(numbers, files)
                yield from part.entries(numbers[:MOST_MEMBERS])

    def count(self, number: int) -> int:
        """How many entries a group has, those of several versions counted each."""
        total = 0
        for at in self._locals[self._starts[number] : self._starts[number + 1]]:
            place, local = self._place(int(at))
            starts = self.parts[place].prepared.member_start
            total += int(starts[local + 1]) - int(starts[local])
        return total

    def _is_curated(self, number: int) -> bool:
        """Whether a group has entries of a part that is of no one package."""
        places = (
            self._place(int(at))[0] for at in self._locals[self._starts[number] : self._starts[number + 1]]
        )
        return any(not self.parts[place].package for place in places)

    def _place(self, at: int) -> tuple[int, int]:
        part = int(np.searchsorted(self._first_of, at, side="right")) - 1
        return part, at - int(self._first_of[part])

    def _automaton(self, kind: str, most: int | None) -> Automaton:
        """All parts' anchors of a kind; a group that several parts have is anchored by the first of them."""
        anchors: list[bytes] = []
        columns: list[list[Numbers]] = [[], [], []]
        for part, first in zip(self.parts, self._first_of, strict=False):
            known = part.prepared
            at, size = getattr(known, f"{kind}_at"), getattr(known, f"{kind}_size")
            group = getattr(known, f"{kind}_group")
            number = self.number_of[first + group]
            own = self._locals[self._starts[number]] == first + group
            offset = known.rare_offset if kind == "rare" else np.zeros(len(at), np.int64)
            keys = known.keys
            begins, ends = at[own].tolist(), (at[own] + size[own]).tolist()
            anchors += [keys[begin:end] for begin, end in zip(begins, ends, strict=True)]
            for column, values in zip(
                columns, (number, getattr(known, f"{kind}_segment"), offset), strict=True
            ):
                column.append(values[own])
        numbers: dict[bytes, int] = {}
        which = np.fromiter((numbers.setdefault(anchor, len(numbers)) for anchor in anchors), np.int64)
        counts = np.bincount(which, minlength=len(numbers))
        order = np.argsort(which, kind="stable")
        owners = [np.concatenate(column)[order] if column else which for column in columns]
        unique = list(numbers)
        if most is not None and (counts > most).any():
            kept = counts <= most
            owners = [column[np.repeat(kept, counts)] for column in owners]
            unique = [anchor for anchor, keep in zip(unique, kept.tolist(), strict=True) if keep]
            counts = counts[kept]
        told = map(key_of, (*(word.decode() for word in PROMISING), *phrases()))
        words = [word for word in dict.fromkeys(told) if word not in numbers] if kind == "rare" else []
        return Automaton(unique, np.concatenate([[0], np.cumsum(counts)]), owners, words)

    def _by_lead(self) -> dict[tuple[bool, bytes], list[int]]:
        """Groups without a long literal: by how their message begins, else by how it ends."""
        anchored = np.zeros(len(self), bool)
        for part, first in zip(self.parts, self._first_of, strict=False):
            anchored[self.number_of[first + part.prepared.rare_group]] = True
        leads: dict[tuple[bool, bytes], list[int]] = {}
        for number in np.flatnonzero(~anchored).tolist():
            at, local = self._place(int(self._locals[self._starts[number]]))
            keys = self.parts[at].prepared.key(local)[:-1].split(b"\x00")
            if sum(map(len, keys)) >= LEAST:
                lead = (True, keys[0][:_LEAD]) if keys[0] else (False, keys[-1][-_LEAD:])
                leads.setdefault(lead, []).append(number)
        return leads

    def promising(self, key: bytes) -> tuple[bool, bool]:
        """Whether a key has an anchor, and a word that exceptions or known texts have."""
        found = {anchor >= self._rare.size for anchor, _, _ in self._rare.scan(key)}
        return False in found, True in found

    def scan(self, key: bytes) -> tuple[Sequence[tuple[int, int, int]], ...]:
        """Every anchor of both kinds in a key, as (anchor, start, end): what a short text is looked up by."""
        return self._rare.scan(key), self._heads.scan(key)

    def few(self, key: bytes) -> list[Found]:
        """As `find`, all at once, for a key so short that no limit matters."""
        found: list[Found] = []
        seen: dict[int, int] = {}
        rare, groups = self._rare, self._groups
        for anchor, start, _ in rare.scan(key):
            for number, segment, offset in rare.owners(anchor):
                at = start - offset
                done = seen.get(number, 0)
                if at >= done:
                    group = groups.get(number) or self.group(number)
                    places = group.locate(key, segment, at)
                    if places is not None and places[0][0] >= done:
                        seen[number] = places[-1][1]
                        found.append(Found(group, places))
        return found

    def find(self, key: bytes, tried: dict[int, int]) -> Iterator[Found]:
        """Every place of a key whose literals are all there, each once.

        `tried` counts the anchors verified per group over all keys of a text; beyond MAX_TRIED a group is
        no longer looked for, so that a flood of one costs little and does not hide the others."""
        seen: dict[int, int] = {}
        for anchor, start, _ in self._rare.scan(key):
            for number, segment, offset in self._rare.owners(anchor):
                at = start - offset
                if at < seen.get(number, 0):
                    continue
                tried[number] = tried.get(number, 0) + 1
                if tried[number] > MAX_TRIED:
                    continue
                tried[_ALL] = tried.get(_ALL, 0) + 1
                if tried[_ALL] > MAX_TRIED_ALL:
                    return
                group = self._groups.get(number) or self.group(number)
                places = group.locate(key, segment, at)
                if places is None or places[0][0] < seen.get(number, 0):
                    continue
                seen[number] = places[-1][1]
                yield Found(group, places)

    def beginnings(self, key: bytes) -> Iterator[tuple[int, int, int]]:
        """Where templates' first long literals begin: (group, segment, place)."""
        heads = self._heads
        for anchor, start, _ in heads.scan(key):
            yield from ((number, segment, start) for number, segment, _ in heads.owners(anchor))

    @staticmethod
    def exhausted(tried: Mapping[int, int]) -> bool:
        """Whether a limit kept some anchors from being verified."""
        return tried.get(_ALL, 0) > MAX_TRIED_ALL or any(
            count > MAX_TRIED for group, count in tried.items() if group != _ALL
        )

    def whole(self, key: bytes, *, framed: bool) -> Iterator[Found]:
        """The templates without a long literal that are the whole of a message's key.

        Of packages' thousands, those that begin and end with a value say so little that only a stack frame
        could make them a match: they are looked for in texts that have `framed` places.
        """
        candidates: dict[int, None] = {}
        for size in range(_LEAD + 1):
            leads = self._weak if size or framed else self._weak_curated
            for lead in ((True, key[:size]), (False, key[len(key) - size :])):
                if lead in leads:
                    candidates.update(dict.fromkeys(leads[lead]))
        for number in candidates:
            group = self.group(number)
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
    own = member.entry.record_id
    return tuple([other for other in group.first_ids if other != own][:MOST_SIBLINGS])


def distinct(members: Sequence[Member]) -> list[Member]:
    """The first of a group's members and every further curated one: copies of a text are one answer."""
    return [*members[:1], *(member for member in members[1:] if member.entry.curated)]
