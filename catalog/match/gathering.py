"""What was found in several logs of one failure as one report: equal errors once, with all their ranks, hosts
and files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from catalog.match import causes
from catalog.match.model import POSSIBLE, Match, Report, Unmatched
from catalog.match.occurrences import in_order, without_rank
from catalog.match.stamps import earlier

FILES: Final = 25
"""Files of one error that are named."""

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


def gathered(found: Iterable[tuple[Source, Report]], limit: int) -> Report:
    """One report of all, the first `limit` matches."""
    matches: dict[tuple[object, ...], Match] = {}
    unmatched: dict[tuple[object, ...], Unmatched] = {}
    told: set[tuple[object, ...]] = set()
    """What the logs of each folder tell, with the folder."""
    names: dict[str, None] = {}
    truncated = False
    for source, report in _in_order(found):
        names[source.name] = None
        truncated = truncated or report.truncated
        for match in report.matches:
            placed = _of(match, source)
            identity = _identity(placed)
            _add(matches, identity, placed, again=source.repeats and (source.folder, identity) in told)
            told.add((source.folder, identity))
        for missed in report.unmatched:
            other = _of(missed, source)
            identity = (other.exception, _common(other.message, other.ranks))
            _add(unmatched, identity, other, again=source.repeats and (source.folder, identity) in told)
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


def _identity(match: Match) -> tuple[object, ...]:
    """Equal for the same error; that each rank prints its own number makes no difference."""
    return match.record_id, match.match_type, _common(match.rendered, match.ranks)


def _common(text: str, ranks: Sequence[int | str]) -> str:
    return without_rank(text, ranks[0]) if len(ranks) == 1 else text


def _add(
    known: dict[tuple[object, ...], Told], identity: tuple[object, ...], told: Told, *, again: bool
) -> None:
    """One more: the earliest gives the place. What is only said again is not counted."""
    if identity not in known:
        known[identity] = told
        return
    before: Told = known[identity]
    first, other = (told, before) if earlier(told.moment, before.moment) else (before, told)
    known[identity] = replace(
        first,
        count=before.count + (0 if again else told.count),
        ranks=in_order(dict.fromkeys((*before.ranks, *told.ranks))),
        hosts=_joined(before.hosts, told.hosts),
        files=_joined(first.files, other.files)[:FILES],
        first_seen=first.first_seen or other.first_seen,
    )


def _joined(left: Sequence[str], right: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*left, *right)))
