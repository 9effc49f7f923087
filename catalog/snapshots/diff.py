"""What changed between two versions of a package: messages that appeared, vanished, moved or were reworded.

Equal words in the same file are the same record, whatever repository a version was indexed for. Of the
others, equal words in another file have moved; words that are alike, in the same function or file, are one
message reworded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final

from catalog.identity import record_id
from catalog.snapshots.row import Row
from catalog.snapshots.snapshot import Snapshot

ALIKE: Final = 0.6
"""Likeness from which two messages of a function are the same one reworded."""
COMPARED: Final = 60
"""Messages of one place that are compared with each other; generated files have thousands."""
SHOWN: Final = 300
"""Characters of a message that are compared."""


@dataclass(frozen=True, slots=True)
class Change:
    """A record that is not what it was: `before` is None for a new one, `after` for one that is gone."""

    before: Row | None
    after: Row | None


@dataclass(frozen=True, slots=True)
class Difference:
    """Two versions compared; `equal` counts the records that both have."""

    appeared: list[Change]
    vanished: list[Change]
    moved: list[Change]
    changed: list[Change]
    equal: int


def compare(before: Snapshot, after: Snapshot) -> Difference:
    """What became of the records of `before` in `after`, each list in path and line order."""
    old, new = dict(before.identifiers()), _identifiers(after, before.repo)
    gone = list(
        before.numbered_all(sorted(number for identifier, number in old.items() if identifier not in new))
    )
    come = list(
        after.numbered_all(sorted(number for identifier, number in new.items() if identifier not in old))
    )
    equal = len(old.keys() & new.keys())
    moved = list(_paired(gone, come, lambda row: (row.message, row.error_class), _nearest))
    gone, come = _without(gone, come, moved)
    changed = _reworded(gone, come)
    gone, come = _without(gone, come, changed)
    return Difference(
        [Change(None, row) for row in come],
        [Change(row, None) for row in gone],
        _sorted(moved),
        _sorted(changed),
        equal,
    )


def _identifiers(snapshot: Snapshot, repo: str) -> dict[str, int]:
    """The records by the ids that they have in a repository."""
    if snapshot.repo == repo:
        return dict(snapshot.identifiers())
    rows = snapshot.between(0, len(snapshot))
    return {record_id(repo, None, row.message, row.path): row.number for row in rows}


def prior_wording(before: Snapshot, after: Snapshot, row: Row) -> str | None:
    """What a record of `after` said in `before`, where it was reworded in between."""
    gone = [old for old in before.in_file(row.path) if after.number_of(old.id) is None]
    come = [new for new in after.in_file(row.path) if before.number_of(new.id) is None] if gone else []
    return next((old.message for old, new in _reworded(gone, come) if new.id == row.id), None)


Pair = tuple[Row, Row]


def _reworded(gone: Sequence[Row], come: Sequence[Row]) -> list[Pair]:
    """Messages that are alike in one function, then those in one file."""
    there = list(_paired(gone, come, lambda row: (row.path, _function(row)), _likest))
    left = _without(gone, come, there)
    return there + list(_paired(*left, lambda row: row.path, _likest))


def _paired(
    gone: Sequence[Row],
    come: Sequence[Row],
    key: Callable[[Row], object],
    choose: Callable[[Sequence[Row], Sequence[Row]], Iterator[Pair]],
) -> Iterator[Pair]:
    """Pairs of rows with one key, as `choose` finds them among those."""
    there: dict[object, list[Row]] = defaultdict(list)
    for row in come:
        there[key(row)].append(row)
    here: dict[object, list[Row]] = defaultdict(list)
    for row in gone:
        if key(row) in there:
            here[key(row)].append(row)
    for place, rows in here.items():
        yield from choose(rows[:COMPARED], there[place][:COMPARED])


def _nearest(gone: Sequence[Row], come: Sequence[Row]) -> Iterator[Pair]:
    """The same words: paired with the file whose path has most in common."""
    yield from _best(
        gone, come, lambda a, b: SequenceMatcher(None, a.path, b.path, autojunk=False).ratio(), 0.0
    )


def _likest(gone: Sequence[Row], come: Sequence[Row]) -> Iterator[Pair]:
    """The same place: paired by the likeness of their words."""
    yield from _best(gone, come, _likeness, ALIKE)


def _likeness(before: Row, after: Row) -> float:
    if (before.template is None) != (after.template is None):
        return 0.0
    matcher = SequenceMatcher(None, before.message[:SHOWN], after.message[:SHOWN], autojunk=False)
    return matcher.ratio() if matcher.real_quick_ratio() >= ALIKE and matcher.quick_ratio() >= ALIKE else 0.0


def _best(
    gone: Sequence[Row], come: Sequence[Row], like: Callable[[Row, Row], float], least: float
) -> Iterator[Pair]:
    """Each row once, the likest pairs first."""
    ranked = sorted(
        ((like(before, after), at, to) for at, before in enumerate(gone) for to, after in enumerate(come)),
        key=lambda item: (-item[0], item[1], item[2]),
    )
    used: tuple[set[int], set[int]] = (set(), set())
    for worth, at, to in ranked:
        if worth >= least and at not in used[0] and to not in used[1]:
            used[0].add(at)
            used[1].add(to)
            yield gone[at], come[to]


def _function(row: Row) -> str | None:
    return row.places[0].function


def _without(gone: Iterable[Row], come: Iterable[Row], pairs: Iterable[Pair]) -> tuple[list[Row], list[Row]]:
    pairs = list(pairs)
    left, arrived = {before.id for before, _ in pairs}, {after.id for _, after in pairs}
    return [row for row in gone if row.id not in left], [row for row in come if row.id not in arrived]


def _sorted(pairs: Iterable[Pair]) -> list[Change]:
    return [Change(*pair) for pair in sorted(pairs, key=lambda pair: pair[1].number)]
