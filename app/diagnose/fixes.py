"""Fix search: the fixes of all failing checks combined, those of fewest edits first.

A best-first search over calls. The call asked about leads to one call for each fix that a failing check
offers; a call that still fails leads on by the fixes of its first failing check, offered for that very call,
so that fixes never contradict each other. Next comes the call of fewest edits, where each failing check is
taken to need one more; of equals the one nearest to passing, then the safe one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count, islice
from time import monotonic
from typing import Any

from kernels.call import Call, Edit
from kernels.checking import Fix, Severity
from kernels.examining import Examination, Examine, Occurrence, Outcome
from kernels.spec import TensorSpec

log = logging.getLogger("faultbook.fixes")

MAX_EVALUATIONS = 48
"""Examinations of the best-first search."""

MAX_CHAINED = 48
"""Examinations spent after it, where it found nothing: on first fixes one after another."""

MAX_SECONDS = 1.0
"""Time for one search: of a file with thousands of layers one examination alone takes long."""

MAX_CHAIN = 24
"""Fixes applied one after another: every check of an operation, twice over for the largest today."""

MAX_OCCURRENCES = 8
"""Violations of one check that are asked for fixes; a layer's fix mends all layers alike."""

MAX_FIXES = 5
"""Fixes offered."""

ENOUGH = 24
"""Examinations after which a search that found repairs looks for no others."""

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Repair:
    """A call that passes every check of error severity, and how to get there.

    warnings   ids of the checks of warning severity that it still fails
    """

    title: str
    call: Call
    edits: tuple[Edit, ...]
    safe: bool
    note: str
    warnings: tuple[str, ...] = ()

    @property
    def rank(self) -> tuple[int, bool, bool]:
        """Fewest edits first, safe before unsafe; of equals those that leave no warning come first."""
        return len(self.edits), not self.safe, bool(self.warnings)

    def of(self, original: Call, held: Call) -> Repair:
        """The same repair of the call that `held` was written out from: what it leaves is drawn as before."""
        left = {}
        for name in original.names():
            own, written, kept = (getattr(call, name) for call in (original, held, self.call))
            if kept is written:
                left[name] = own
            elif isinstance(kept, TensorSpec) and kept.values is not None and kept.values is written.values:
                left[name] = replace(kept, values=own.values)
        call = self.call.replace(**left)
        return replace(self, call=call, edits=original.edits_to(call))


@dataclass(frozen=True, slots=True)
class Search:
    """What a search found: repairs by rank, and how many examinations that took."""

    repairs: tuple[Repair, ...]
    evaluations: int


@dataclass(frozen=True, slots=True)
class _State:
    """A call on the way: the fixes that led to it, each with the places that it edited."""

    call: Call
    steps: tuple[tuple[Fix[Call], frozenset[tuple[str, str]]], ...] = ()

    @property
    def safe(self) -> bool:
        """Whether every fix so far is."""
        return all(fix.safe for fix, _ in self.steps)

    def after(self, fix: Fix[Call]) -> _State:
        """The state that one more fix leads to."""
        return _State(fix.call, (*self.steps, (fix, _places(self.call.edits_to(fix.call)))))

    def lasting(self, edits: tuple[Edit, ...]) -> list[Fix[Call]]:
        """The fixes of which something is left in `edits`: a later one may have undone an earlier one."""
        places = _places(edits)
        return [fix for fix, edited in self.steps if not edited.isdisjoint(places)]


@dataclass(slots=True)
class _Searcher:
    """One search: what was seen, and what is left of its time."""

    call: Call
    examine: Examine
    deadline: float
    evaluations: int = 0
    seen: set[Key] = field(default_factory=set)
    found: dict[Key, Repair] = field(default_factory=dict)

    def examined(self, state: _State) -> Examination:
        """Examine a state's call, once."""
        self.evaluations += 1
        return self.examine(state.call)

    def is_new(self, call: Call) -> bool:
        """Whether this call was not met before."""
        key = _key(call)
        if key in self.seen:
            return False
        self.seen.add(key)
        return True

    def is_over(self, evaluations: int) -> bool:
        """Whether so many examinations, or the time, are spent."""
        return self.evaluations >= evaluations or monotonic() > self.deadline

    def best_first(self, examination: Examination) -> None:
        """Examine calls of few edits first."""
        aims = _aims(examination)
        order = count()
        queue: list[tuple[tuple[int, int, bool, int], _State]] = []

        def push(state: _State, failing: int) -> None:
            edits = len(self.call.edits_to(state.call))
            heappush(queue, ((edits + failing, failing, not state.safe, next(order)), state))

        start = _State(self.call)
        self.seen.add(_key(self.call))
        for fix in _fixes(self.call, aims):
            if self.is_new(fix.call):
                push(start.after(fix), len(aims) - 1)
        while queue and not self.is_over(MAX_EVALUATIONS):
            if self.found and (len(self.found) >= MAX_FIXES or self.evaluations >= ENOUGH):
                return
            _, state = heappop(queue)
            result = self.examined(state)
            aimed = {outcome.check for outcome in aims}
            failing = tuple(
                outcome
                for outcome in result.failed()
                if outcome.check.severity is Severity.ERROR
                or (not examination.rejected and outcome.check in aimed)
            )
            if not failing:
                self.keep(state, result)
            for fix in _fixes(state.call, failing[:1]):
                if self.is_new(fix.call):
                    push(state.after(fix), len(failing) - 1)

    def chained(self, examination: Examination) -> None:
        """Follow each fix by the first fix of whatever still fails, until nothing does."""
        for fix in _fixes(self.call, _aims(examination)):
            state, met = _State(self.call).after(fix), {_key(self.call)}
            for _ in range(MAX_CHAIN):
                if _key(state.call) in met or self.is_over(MAX_EVALUATIONS + MAX_CHAINED):
                    break
                met.add(_key(state.call))
                result = self.examined(state)
                if not result.rejected:
                    self.keep(state, result)
                    break
                following = next(_fixes(state.call, _errors(result)), None)
                if following is None:
                    break
                state = state.after(following)
            if self.is_over(MAX_EVALUATIONS + MAX_CHAINED):
                return

    def keep(self, state: _State, result: Examination) -> None:
        """Keep a call that passes, unless it is a known one with further edits, or none at all."""
        edits = self.call.edits_to(state.call)
        made = [set(map(repr, repair.edits)) for repair in self.found.values()]
        if not edits or not state.call.describable or any(each <= set(map(repr, edits)) for each in made):
            return
        fixes = state.lasting(edits)
        first, *later = dict.fromkeys(fix.title for fix in fixes)
        title = first + "".join(f"; {each[0].lower()}{each[1:]}" for each in later)
        note = "; ".join(dict.fromkeys(fix.note for fix in fixes if fix.note))
        warnings = tuple(outcome.check.id() for outcome in result.failed())
        safe = all(fix.safe for fix in fixes)
        self.found[_key(state.call)] = Repair(title, state.call, edits, safe, note, warnings)


def search(call: Call, examination: Examination, examine: Examine) -> Search:
    """Repairs of a call, by rank; each was examined, as the call was, and passes."""
    searcher = _Searcher(call, examine, monotonic() + MAX_SECONDS)
    if examination.failed():
        searcher.best_first(examination)
        if not searcher.found:
            searcher.chained(examination)
    ranked = sorted(searcher.found.values(), key=lambda repair: repair.rank)
    return Search(tuple(ranked[:MAX_FIXES]), searcher.evaluations)


def _errors(examination: Examination) -> tuple[Outcome, ...]:
    return tuple(each for each in examination.failed() if each.check.severity is Severity.ERROR)


def _aims(examination: Examination) -> tuple[Outcome, ...]:
    """What a repair has to mend: errors; of a call without one the warnings that know a fix."""
    if examination.rejected:
        return _errors(examination)
    return tuple(
        outcome
        for outcome in examination.failed()
        if any(True for occurrence in _asked(outcome) for _ in _offered(occurrence))
    )


def _fixes(call: Call, outcomes: tuple[Outcome, ...]) -> Iterator[Fix[Call]]:
    """Fixes of failing checks as changes of `call`, in the checks' order."""
    for outcome in outcomes:
        for occurrence in _asked(outcome):
            for fix in _offered(occurrence):
                for changed in _rebased(call, occurrence.subject, fix.call):
                    yield replace(fix, call=changed)


def _asked(outcome: Outcome) -> Iterator[Occurrence]:
    return islice(outcome.occurrences, MAX_OCCURRENCES)


def _offered(occurrence: Occurrence) -> Iterator[Fix[Call]]:
    """The fixes of one violation. A diagnosis stands without a suggestion: one that cannot be made for this
    call is our mistake, which the log has, and the checks' outcome is answered all the same.
    """
    try:
        yield from occurrence.violation.fixes(occurrence.subject)
    except Exception:
        log.exception("no fix could be made for %s", occurrence.violation.id())


def _rebased(call: Call, subject: object, fixed: Call) -> Iterator[Call]:
    """The fixed call without what upstream fills in by itself, then as it is where it changes that too.

    Later checks see the call with outputs allocated; a fix of the input should not pass those outputs.
    """
    names = [parameter.name for parameter in call.arguments()]
    filled = [name for name in names if getattr(subject, name, None) is not getattr(call, name)]
    if not isinstance(subject, Call) or not filled:
        yield fixed
        return
    changed = {name for name in names if getattr(fixed, name) is not getattr(subject, name)}
    if changed - set(filled):
        yield fixed.replace(**{name: getattr(call, name) for name in filled})
    if changed & set(filled):
        yield fixed


def _places(edits: tuple[Edit, ...]) -> frozenset[tuple[str, str]]:
    return frozenset((edit.argument, edit.attribute) for edit in edits)


def _key(call: Call) -> Key:
    """What tells calls apart: 128 and 128.0 are equal as values and different as arguments."""
    return tuple(_part(value) for value in call.facts().values())


def _part(value: Any) -> object:
    if isinstance(value, TensorSpec):
        return value if value.values is None else (value, repr(value.values))
    return (type(value), value)
