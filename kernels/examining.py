"""Checks walked over a call.

`guard` raises the first violation, as upstream does; `examine` lists every check as passed, failed or not
reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from kernels.call import Call
from kernels.checking import Check, Each, Given, Origin, Severity, Stages, Status, Step


@dataclass(frozen=True, slots=True)
class Event:
    """One check evaluated on one subject."""

    check: type[Check[Any]]
    status: Status
    subject: Any
    violations: tuple[Check[Any], ...] = ()


def walk(
    stages: Stages, call: Call, *, values: bool = True, blocked: set[type[Check[Any]]] | None = None
) -> Iterator[Event]:
    """Evaluate checks lazily in upstream's order; `values=False` leaves out those that read elements.

    blocked   the checks that earlier stages leave unmet; those of these stages are added to it
    """
    blocked = set() if blocked is None else blocked
    subject: Any = call
    for stage in stages:
        if isinstance(stage, Step):
            if blocked.isdisjoint(stage.premises):
                subject = stage.run(subject)
        elif isinstance(stage, Each):
            yield from _walk_items(stage, subject, blocked, values)
        elif isinstance(stage, Given):
            given = blocked.isdisjoint(stage.premises)
            for check in stage.checks:
                yield from _walk_check(check, subject, blocked, given, values)
        else:
            yield from _walk_check(stage, subject, blocked, True, values)


def _walk_check(
    check: type[Check[Any]], subject: Any, blocked: set[type[Check[Any]]], given: bool, values: bool
) -> Iterator[Event]:
    if check.reads_values and not values:
        return
    event = evaluate(check, subject, blocked) if given else Event(check, Status.NOT_REACHED, subject)
    if event.status is not Status.PASSED:
        blocked.add(check)
    yield event


def _walk_items(
    loop: Each,
    subject: Any,
    blocked: set[type[Check[Any]]],
    values: bool,
    passing: Set[type[Check[Any]]] = frozenset(),
) -> Iterator[Event]:
    checks = [check for check in loop.checks if values or not check.reads_values]
    if not blocked.isdisjoint(loop.premises):
        for check in checks:
            blocked.add(check)
            yield Event(check, Status.NOT_REACHED, subject)
        return
    before = set(blocked)
    for item in loop.items(subject):
        inside = set(before)
        for check in checks if loop.select is None else loop.select(item):
            if check.reads_values and not values:
                continue
            event = evaluate(check, item, inside, passing)
            if event.status is not Status.PASSED:
                inside.add(check)
            yield event
        if loop.blocks:
            blocked |= inside


def evaluate(
    check: type[Check[Any]],
    subject: Any,
    blocked: Set[type[Check[Any]]],
    passing: Set[type[Check[Any]]] = frozenset(),
) -> Event:
    """What one check says of a subject, the `blocked` ones being unmet, the `passing` ones known to pass."""
    if not blocked.isdisjoint(check.premises):
        return Event(check, Status.NOT_REACHED, subject)
    if check in passing:
        return Event(check, Status.PASSED, subject)
    if not check.evaluable(subject):
        return Event(check, Status.NOT_REACHED, subject)
    violations = tuple(check.find(subject))
    return Event(check, Status.FAILED if violations else Status.PASSED, subject, violations)


def guard(stages: Stages, call: Call) -> None:
    """Raise the first violation as upstream's exception; of our own checks, those of error severity."""
    for event in walk(stages, call, values=False):
        if event.violations and event.check.severity is Severity.ERROR:
            raise event.violations[0].exception()


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A violation and the subject it was found in."""

    violation: Check[Any]
    subject: Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """One check over the whole call."""

    check: type[Check[Any]]
    status: Status
    occurrences: tuple[Occurrence, ...] = ()


@dataclass(frozen=True)
class Examination:
    """Every check's outcome, upstream's first, and the violation that upstream would raise."""

    outcomes: tuple[Outcome, ...]
    raised: Check[Any] | None

    @property
    def rejected(self) -> bool:
        """Whether upstream raises, or a check of our own of error severity fails."""
        return any(outcome.check.severity is Severity.ERROR for outcome in self._failed)

    def failed(self) -> tuple[Outcome, ...]:
        """The failing checks, in order."""
        return self._failed

    @cached_property
    def _failed(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.status is Status.FAILED)


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the checks say of one call, in short.

    raised   the violation that upstream would raise; what comes after it is not looked at
    failed   the checks that fail where upstream raises nothing, in order
    """

    raised: Check[Any] | None
    failed: tuple[type[Check[Any]], ...] = ()

    @classmethod
    def of(cls, examination: Examination) -> Ruling:
        """The same of what was examined in full."""
        if examination.raised is not None:
            return cls(examination.raised)
        return cls(None, tuple(outcome.check for outcome in examination.failed()))

    @property
    def rules(self) -> type[Check[Any]] | None:
        """The check that rules the call out: the one that raises, else our first of error severity."""
        if self.raised is not None:
            return type(self.raised)
        return next((check for check in self.failed if check.severity is Severity.ERROR), None)

    @property
    def warnings(self) -> tuple[type[Check[Any]], ...]:
        """The failing checks that rule nothing out."""
        return tuple(check for check in self.failed if check.severity is not Severity.ERROR)


Examine = Callable[[Any], Examination]
"""How the calls of one operation are examined."""


def examine(stages: Stages, call: Call, *, passing: Set[type[Check[Any]]] = frozenset()) -> Examination:
    """Evaluate every check: what `walk` says, without an event for each check that passes.

    passing   checks that are known to pass wherever they are reached
    """
    found: dict[type[Check[Any]], list[Occurrence]] = {}
    passed: set[type[Check[Any]]] = set()
    unreached: set[type[Check[Any]]] = set()
    blocked: set[type[Check[Any]]] = set()
    subject: Any = call
    for stage in _flat(tuple(stages)):
        if not isinstance(stage, _Single):
            if isinstance(stage, Step):
                if blocked.isdisjoint(stage.premises):
                    subject = stage.run(subject)
                continue
            for event in _walk_items(stage, subject, blocked, True, passing):
                if event.violations:
                    occurrences = found.setdefault(event.check, [])
                    occurrences += [Occurrence(each, event.subject) for each in event.violations]
                else:
                    (passed if event.status is Status.PASSED else unreached).add(event.check)
            continue
        check = stage.check
        met = not blocked or blocked.isdisjoint(stage.premises)
        if met and check in passing:
            passed.add(check)
            continue
        if not met or (stage.asks and not check.evaluable(subject)):
            unreached.add(check)
            blocked.add(check)
            continue
        violations = tuple(check.find(subject))
        if violations:
            found.setdefault(check, []).extend([Occurrence(each, subject) for each in violations])
            blocked.add(check)
        else:
            passed.add(check)
    if not found and not unreached:
        return unbroken(tuple(stages))
    outcomes = tuple(
        Outcome(check, Status.FAILED, tuple(found[check]))
        if check in found
        else _quiet(check, check in unreached and check not in passed)  # type: ignore[arg-type]
        for check in _ordered(tuple(stages))
    )
    raised = (
        occurrences[0].violation for check, occurrences in found.items() if check.origin() is Origin.UPSTREAM
    )
    return Examination(outcomes, next(raised, None))


@dataclass(frozen=True, slots=True)
class _Single:
    """A check of the call, with its premises and its stage's; `asks`: it says itself if it is evaluable."""

    check: type[Check[Any]]
    premises: frozenset[type[Check[Any]]]
    asks: bool


_EVALUABLE = getattr(Check.evaluable, "__func__", None)


@cache
def _flat(stages: tuple[Any, ...]) -> tuple[_Single | Each | Step, ...]:
    """The stages with each check of the call by itself."""
    found: list[_Single | Each | Step] = []
    for stage in stages:
        if isinstance(stage, (Each, Step)):
            found.append(stage)
            continue
        given = stage.premises if isinstance(stage, Given) else ()
        for check in stage.checks if isinstance(stage, Given) else (stage,):
            asks = getattr(check.evaluable, "__func__", None) is not _EVALUABLE
            found.append(_Single(check, frozenset((*given, *check.premises)), asks))
    return tuple(found)


@cache
def unbroken(stages: tuple[Any, ...]) -> Examination:
    """What `examine` says of a call that passes every check: always the same object."""
    return Examination(tuple(_quiet(check, False) for check in _ordered(stages)), None)  # type: ignore[arg-type]


@cache
def _quiet(check: Any, unreached: bool) -> Outcome:
    """An outcome without a violation: the same for every call."""
    return Outcome(check, Status.NOT_REACHED if unreached else Status.PASSED)


@cache
def _ordered(stages: tuple[Any, ...]) -> tuple[type[Check[Any]], ...]:
    """Every check of the stages once, upstream's first."""
    checks = dict.fromkeys(checks_of(stages))
    return tuple(sorted(checks, key=lambda check: check.origin() is Origin.BEYOND))


def checks_of(stages: Stages) -> Iterator[type[Check[Any]]]:
    """Every check of the stages, in order."""
    for stage in stages:
        if isinstance(stage, (Each, Given)):
            yield from stage.checks
        elif not isinstance(stage, Step):
            yield stage
