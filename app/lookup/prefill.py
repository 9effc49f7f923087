"""From what a message printed back to a call that prints it: the diagnosis request that a match comes with.

A message tells a few sizes and types of the call that broke, and perhaps the line that raised it. The
record's own failing example is changed, place by place, until its check prints the same values at that line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from app.lookup import moves
from app.lookup.file_moves import common_beginning
from catalog.additions import request
from catalog.faults import Case, Fault
from catalog.match import Capture, Match
from kernels.call import Call
from kernels.checking import Check, LauncherCheck
from kernels.message import holes

PLACE: Final = ("file", "line")
"""Holes of a launcher's message that say where it was raised."""
MOST_TRIED: Final = 500
"""Calls examined for one match; one takes some tens of microseconds, one on a checkpoint a millisecond."""
MOST_OF_TEXT: Final = 1500
"""Calls examined for all matches of one text."""
MOST_SIBLINGS: Final = 3
"""Other records of the same text whose calls are tried."""


@dataclass(slots=True)
class Budget:
    """Calls that may still be examined for a text."""

    left: int = MOST_OF_TEXT


@dataclass(frozen=True, slots=True)
class _Goal:
    """What was pasted: hole → what it printed, for the holes that depend on the call; the site's lines."""

    captures: Mapping[int, Capture]
    lines: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A call that breaks the check: what it prints, how many of the values wanted are among that, how near
    the others are, and whether the line is right.
    """

    call: Call
    printed: tuple[str, ...]
    agreeing: frozenset[int]
    near: int
    placed: bool

    @property
    def rank(self) -> tuple[int, int]:
        return len(self.agreeing) + self.placed, self.near

    def reaches(self, goal: _Goal) -> bool:
        return self.placed and len(self.agreeing) == len(goal.captures)


def prefilled(
    fault: Fault, match: Match, budget: Budget, *, before: str = "", siblings: Sequence[Fault] = ()
) -> tuple[str, dict[str, Any]] | None:
    """Operation and diagnosis request for a match; None where no call of ours raises the record's error.

    `before` is what was pasted in front of the message. Where no call of the record prints what was pasted,
    and one of a sibling with the same text does, it is that. With no budget left the request is the record's
    own example.
    """
    goal = _goal(fault, match)
    found = _best(fault, goal, budget, before)
    if found is None or not found[1].reaches(goal):
        others = (_best(sibling, goal, budget, before) for sibling in siblings[:MOST_SIBLINGS])
        found = next((other for other in others if other is not None and other[1].reaches(goal)), found)
    if found is None:
        return None
    case, attempt = found
    return case.operation.name, request(case.operation, attempt.call)


def _best(fault: Fault, goal: _Goal, budget: Budget, before: str) -> tuple[Case, _Attempt] | None:
    """The check of a record and the call that come nearest to what was pasted."""
    starts: list[tuple[Case, _Attempt]] = []
    for case in fault.cases:
        example = case.check.example()
        if example is None:
            continue
        tell = getattr(case.check, "told", None)
        told = _attempt(case, tell(example, before), goal) if tell is not None and before else None
        attempt = told or _attempt(case, example, goal)
        if attempt is not None:
            starts.append((case, attempt))
    starts.sort(key=lambda start: (_elsewhere(start[0], goal), tuple(-part for part in start[1].rank)))
    allowed = Budget(min(MOST_TRIED, budget.left))
    budget.left -= allowed.left
    best: tuple[Case, _Attempt] | None = None
    for case, start in starts:
        attempt = _climbed(case, start, goal, allowed)
        if best is None or attempt.rank > best[1].rank:
            best = case, attempt
        if best[1].reaches(goal):
            break
    budget.left += allowed.left
    return best


def _goal(fault: Fault, match: Match) -> _Goal:
    """What the text tells; an earlier version's wording has other holes than today's check."""
    captures = {index: item for index, item in enumerate(match.captures) if item.name not in PLACE}
    if len(captures) != len([captured for captured in fault.captures if captured.name not in PLACE]):
        captures = {}
    named = {int(item.value) for item in match.captures if item.name == "line" and item.value.isdecimal()}
    return _Goal(captures, frozenset(named or (match.site.lines if match.site is not None else ())))


def _elsewhere(case: Case, goal: _Goal) -> bool:
    """Whether the check has no site of the line that the text names."""
    return goal.lines.isdisjoint(line for site in case.check.sites for line in site.lines)


def _climbed(case: Case, start: _Attempt, goal: _Goal, budget: Budget) -> _Attempt:
    """The best call within the budget: of those with the tensor that was printed, then from each better one
    to the next.
    """
    found: _Attempt | None = start
    best = start
    if not start.reaches(goal):
        described = _tried(case, moves.described(case, start.call, goal.captures.values()), goal, budget)
        best = max(chain([start], described), key=lambda attempt: attempt.rank)
    while found is not None and not best.reaches(goal):
        missing = {index: item for index, item in goal.captures.items() if index not in best.agreeing}
        calls = moves.towards(case, best.call, best.printed, missing)
        better = (attempt for attempt in _tried(case, calls, goal, budget) if attempt.rank > best.rank)
        found = next(better, None)
        best = found or best
    return best


def _tried(case: Case, calls: Iterable[Call], goal: _Goal, budget: Budget) -> Iterator[_Attempt]:
    """The calls that break the check, as they are or with what it does not read sized to them."""
    for call in calls:
        if budget.left <= 0:
            return
        budget.left -= 1
        attempt = _attempt(case, call, goal)
        if attempt is None:
            budget.left -= 1
            attempt = _attempt(case, _refitted(case, call), goal)
        if attempt is not None:
            yield attempt


def _attempt(case: Case, call: Call | None, goal: _Goal) -> _Attempt | None:
    """How well the call fits, if its first error is this check's."""
    if call is None or not call.describable:
        return None
    examination = case.operation.examine(call)
    violation = examination.raised
    if violation is None:
        found = (
            occurrence.violation
            for outcome in examination.failed()
            if outcome.check is case.check
            for occurrence in outcome.occurrences
        )
        violation = next(found, None)
    if type(violation) is not case.check:
        return None
    printed = _printed(violation)
    agreeing = frozenset(
        index for index, capture in goal.captures.items() if _same(printed[index], capture.value)
    )
    near = sum(
        _alike(printed[index], item.value) for index, item in goal.captures.items() if index not in agreeing
    )
    placed = not (
        goal.lines and isinstance(violation, LauncherCheck) and goal.lines.isdisjoint(violation.site.lines)
    )
    return _Attempt(call, printed, agreeing, near, placed)


def _printed(violation: Check[Any]) -> tuple[str, ...]:
    return tuple(
        hole.fill(value) for hole, value in zip(holes(violation.message), violation.printed(), strict=True)
    )


def _same(printed: str, captured: str) -> bool:
    """A repr is captured without its quotes."""
    return captured in (printed, printed.strip("'\""))


def _alike(printed: str, captured: str) -> int:
    """How alike two values are: how names begin, and of others the words and numbers, place by place."""
    if " " not in captured:
        return min(common_beginning(printed.strip("'\""), captured), 999)
    return sum(left == right for left, right in zip(printed.split(), captured.split(), strict=False)) * 1000


def _refitted(case: Case, call: Call) -> Call | None:
    """The arguments that the check reads, the others sized to them as for a request that leaves them out."""
    read = set(case.check.arguments())
    given = {name: value for name, value in call.stated() if name in read}
    try:
        return case.operation.fit(given)
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError):
        return None  # they do not determine the others: keep the example's
