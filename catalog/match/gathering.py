"""What was found in several logs of one failure as one report: equal errors once, with all their ranks, hosts
and files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from catalog.match import causes
from catalog.match.model import POSSIBLE, Match, Report, Unmatched
from catalog.match.occurrences import in_order, without_rank
from catalog.match.stamps import Stamp, earlier

FILES: Final = 25
"""Files of one error that are named."""

APART: Final = 2.0
"""Seconds between the times that one error has in its rank's log and in one of all ranks."""

Told = TypeVar("Told", Match, Unmatched)


@dataclass(frozen=True, slots=True)
class Source:
    """One log: its name, the number of its first line, and whose it is as far as its name tells.

    `repeats`: it says again what the other logs of its folder say, as a launcher's error file does.
    """

    name: str
    first_line: int = 1
    rank: int | None = None
    host: str | None = None
    repeats: bool = False

    @property
    def folder(self) -> str:
        return self.name.rpartition("/")[0]


@dataclass(slots=True)
class _Own:
    """What the logs of single ranks tell of one error; a log of all ranks beside them says it again."""

    count: int = 0
    ranks: set[int | str] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)
    moments: list[Stamp] = field(default_factory=list)

    def add(self, told: Match | Unmatched) -> None:
        self.count += told.count
        self.ranks.update(told.ranks)
        self.hosts.update(told.hosts)
        self.moments += [told.moment] if told.moment is not None else []

    def said_by(self, told: Match | Unmatched) -> bool:
        """Whether what a log of no rank tells is this: of these ranks, on these hosts, at that time."""
        if self.ranks.isdisjoint(told.ranks):
            return False
        if told.hosts and self.hosts and self.hosts.isdisjoint(told.hosts):
            return False
        moment = told.moment
        alike = [known.seconds for known in self.moments if moment is not None and known.form == moment.form]
        return moment is None or not alike or min(alike) - APART <= moment.seconds <= max(alike) + APART


def gathered(found: Iterable[tuple[Source, Report]], limit: int) -> Report:
    """One report of all, the first `limit` matches."""
    reports = list(_in_order(found))
    own = _own(reports)
    matches: dict[tuple[object, ...], Match] = {}
    unmatched: dict[tuple[object, ...], Unmatched] = {}
    told: set[tuple[object, ...]] = set()
    """What the logs of each folder tell, with the folder."""
    names: dict[str, None] = {}
    truncated = False
    for source, report in reports:
        names[source.name] = None
        truncated = truncated or report.truncated
        for match in report.matches:
            placed = _of(match, source)
            identity = _identity(placed)
            _add(matches, identity, placed, _count(placed, source, identity, told, own))
            told.add((source.folder, identity))
        for missed in report.unmatched:
            other = _of(missed, source)
            identity = _identity(other)
            _add(unmatched, identity, other, _count(other, source, identity, told, own))
            told.add((source.folder, identity))
    sure = any(match.score >= POSSIBLE for match in matches.values())
    ranked = sorted(
        (match for match in matches.values() if match.score >= POSSIBLE or not sure), key=causes.order
    )
    shown = tuple(ranked[:limit])
    return Report(
        matches=shown,
        root_cause=causes.first(shown, list(names)),
        unmatched=tuple(unmatched.values()),
        truncated=truncated or len(ranked) > limit,
    )


def _in_order(found: Iterable[tuple[Source, Report]]) -> Iterator[tuple[Source, Report]]:
    """As they come, what repeats another log behind all others."""
    behind = []
    for source, report in found:
        if source.repeats:
            behind.append((source, report))
        else:
            yield source, report
    yield from behind


def _of(told: Told, source: Source) -> Told:
    """What was found in a source, with what the source's name tells."""
    return replace(
        told,
        line=told.line + source.first_line - 1,
        ranks=told.ranks or (() if source.rank is None else (source.rank,)),
        hosts=told.hosts or (() if source.host is None else (source.host,)),
        files=(source.name,),
    )


def _own(reports: Iterable[tuple[Source, Report]]) -> dict[tuple[object, ...], _Own]:
    """What the logs of single ranks tell, by error."""
    own: dict[tuple[object, ...], _Own] = defaultdict(_Own)
    for source, report in reports:
        if source.rank is not None and not source.repeats:
            for match in report.matches:
                placed = _of(match, source)
                own[_identity(placed)].add(placed)
            for missed in report.unmatched:
                other = _of(missed, source)
                own[_identity(other)].add(other)
    return dict(own)


def _count(
    placed: Match | Unmatched,
    source: Source,
    identity: tuple[object, ...],
    told: Container[tuple[object, ...]],
    own: Mapping[tuple[object, ...], _Own],
) -> int:
    """How many errors more this is: what other logs say too is one."""
    if source.repeats and (source.folder, identity) in told:
        return 0
    known = own.get(identity) if source.rank is None else None
    if known is not None and known.said_by(placed):
        return max(0, placed.count - known.count)
    return placed.count


def _identity(told: Match | Unmatched) -> tuple[object, ...]:
    """Equal for the same error; that each rank prints its own number makes no difference."""
    if isinstance(told, Match):
        return told.record_id, told.match_type, _common(told.rendered, told.ranks)
    return told.exception, _common(told.message, told.ranks)


def _common(text: str, ranks: Sequence[int | str]) -> str:
    return without_rank(text, ranks[0]) if len(ranks) == 1 else text


def _add(known: dict[tuple[object, ...], Told], identity: tuple[object, ...], told: Told, count: int) -> None:
    """One more, of which so many are counted: the earliest gives the place."""
    if identity not in known:
        known[identity] = replace(told, count=count)
        return
    before: Told = known[identity]
    first, other = (told, before) if earlier(told.moment, before.moment) else (before, told)
    known[identity] = replace(
        first,
        count=before.count + count,
        ranks=in_order(dict.fromkeys((*before.ranks, *told.ranks))),
        hosts=_joined(before.hosts, told.hosts),
        files=_joined(first.files, other.files)[:FILES],
        first_seen=first.first_seen or other.first_seen,
    )


def _joined(left: Sequence[str], right: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*left, *right)))
