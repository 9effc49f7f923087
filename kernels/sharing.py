"""Many calls of one operation examined together: a check is evaluated once for all it cannot tell apart.

A check is a pure function of the call's fields. While it is evaluated, what it reads is noted, of a tensor
each attribute and each size apart, and the answer is kept under the values read, in the order of reading:
what is read first is the same for every call, what is read next depends on the values read before it alone. A
call with the same values there has the same answer, whatever else it holds. Steps between checks are kept
alike.

Noting takes many times what evaluating does. Where hardly any call has values that were met before, as among
ten thousand token counts, nothing is noted any more and each call is evaluated by itself; as a whole, where
that takes less time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from time import thread_time
from typing import Any

from kernels.call import TENSOR_ATTRIBUTES, Call
from kernels.checking import Check, Each, Given, Origin, Severity, Stages, Status, Step
from kernels.examining import Event, evaluate, examine, walk
from kernels.noting import Noting, Path, key_of, plain_call, unwatched
from kernels.spec import TensorSpec

Checks = frozenset[type[Check[Any]]]

TRIED = 128
"""Answers of one check that are kept before it is asked whether that is of use."""

LEAST_USE = 5
"""Calls that an answer has to serve on average; else none is kept any more."""

WARM = 512
"""Calls after which sharing is held against examining each call by itself."""

SAMPLE = 32
"""Calls that each of the two is timed on."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the checks say of one call, in short.

    raised   the violation that upstream would raise; what comes after it is not looked at
    failed   the checks that fail where upstream raises nothing, in order
    """

    raised: Check[Any] | None
    failed: tuple[type[Check[Any]], ...] = ()

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


@dataclass(frozen=True, slots=True)
class _Found:
    """What one unit of the walk found: failing checks, the first violation of upstream's, checks unmet."""

    failed: tuple[type[Check[Any]], ...]
    raised: Check[Any] | None
    blocked: Checks


@dataclass(slots=True)
class _Branch:
    """What is read, and what follows for each value of it."""

    path: Path
    following: dict[object, Any]


@dataclass(slots=True)
class _Memo:
    """Answers of one pure function of a call's fields, by the values of what it reads of them: a tree whose
    leaves are the answers, None where nothing is known.

    kept    how many answers it holds
    asked   how often it was asked for one
    alone   nothing is kept any more
    """

    start: Any = None
    kept: int = 0
    asked: int = 0
    alone: bool = False

    def keep(self, point: _Point, reads: Iterable[Path], answer: object) -> None:
        """Remember the answer under the values of what was read, in the order of reading."""
        self.kept += 1
        self.alone = self.kept >= TRIED and self.kept * LEAST_USE > self.asked
        branch: _Branch | None = None
        key: object = None
        for path in reads:
            node = self.start if branch is None else branch.following.get(key)
            if node is None:
                node = _Branch(path, {})
                self._put(branch, key, node)
            if node.__class__ is not _Branch or node.path is not path:
                raise AssertionError(f"reading {path} depends on something other than the call")
            branch, key = node, point.key(path)
        self._put(branch, key, answer)

    def _put(self, branch: _Branch | None, key: object, node: object) -> None:
        if branch is None:
            self.start = node
        else:
            branch.following[key] = node


@dataclass(slots=True)
class _Point:
    """A call between two steps: its fields, and the keys of what was asked of them so far.

    watched   the call as one that notes its readers
    plain     the call
    """

    values: dict[str, Any]
    keys: dict[Path, object] = field(default_factory=dict)
    watched: Call | None = None
    plain: Call | None = None

    def key(self, path: Path) -> object:
        """What tells this call from others in what is read there."""
        try:
            return self.keys[path]
        except KeyError:
            key = self.keys[path] = path.key(self.values)
            return key

    def answer(self, memo: _Memo) -> Any:
        """What is known of this call; None where nothing is."""
        node = memo.start
        if node.__class__ is _Branch:
            memo.asked += 1
            while node.__class__ is _Branch:
                node = node.following.get(self.key(node.path))
        return node


@dataclass(slots=True)
class _Unit:
    """A stretch of the walk that is evaluated as one: a check with what it is given, or a loop.

    memo     what it finds where all its premises hold
    without  the same where some do not, by which
    parts    of a loop each check over all items: where all pass, so does the loop
    """

    stage: Given | Each
    check: type[Check[Any]] | None
    premises: Checks
    memo: _Memo = field(default_factory=_Memo)
    without: dict[Checks, _Memo] = field(default_factory=dict)
    parts: tuple[_Unit, ...] = ()

    def forget(self) -> None:
        """Void what was kept."""
        self.memo = _Memo()
        self.without.clear()
        for part in self.parts:
            part.forget()


class SharedChecks:
    """Examines many calls of one operation as `examine` does, each up to the check that raises."""

    def __init__(self, stages: Stages, call: type[Call]) -> None:
        self._call, self._stages = call, stages
        self._seen = 0
        self._taken = [0.0, 0.0]
        self._names = tuple(field.name for field in dataclasses.fields(call))
        self._units = list(_units(stages))
        self._steps: dict[int, _Memo] = {}
        self._first: dict[str, Any] = {}
        self._moving: set[tuple[str, str]] = set()
        self._fixed: dict[str, tuple[str, ...]] = dict.fromkeys(self._names, ("", *TENSOR_ATTRIBUTES))
        self._moving_tensors: set[str] = set()
        self._reads: dict[Path, None] = {}
        self._noting = Noting(call, self._moving, self._reads)

    def examine(self, call: Call) -> Ruling:
        """What the checks say of a call: by what is shared, or by itself where that turned out quicker."""
        self._seen += 1
        turn = (self._seen - WARM - 1) // SAMPLE
        if turn > 1:
            return _alone(self._stages, call) if self._taken[1] < self._taken[0] else self._shared(call)
        started = thread_time()
        ruling = _alone(self._stages, call) if turn == 1 else self._shared(call)
        if turn >= 0:
            self._taken[turn] += thread_time() - started
        return ruling

    def _shared(self, call: Call) -> Ruling:
        values = {name: getattr(call, name) for name in self._names}
        if not self._first:
            self._first = values
        while True:
            point = self._point(values)
            fixed = len(self._moving)
            ruling = self._examine(point)
            if len(self._moving) == fixed:
                return ruling
            # A step moved what was taken for fixed so far: nobody noted who reads it.

    def _point(self, values: dict[str, Any]) -> _Point:
        """The call of these fields. What differs from the first call moves from now on; what was kept while
        it was taken for fixed is void.
        """
        moved = set(self._differences(values))
        if moved:
            self._moving |= moved
            self._moving_tensors |= {name for name, attribute in moved if attribute}
            for name in self._names:
                places = ((name, attribute) for attribute in ("", *TENSOR_ATTRIBUTES))
                self._fixed[name] = tuple(place[1] for place in places if place not in self._moving)
            self._steps.clear()
            for unit in self._units:
                if isinstance(unit, _Unit):
                    unit.forget()
        return _Point(values)

    def _differences(self, values: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """(field, attribute) of what was taken for fixed and is not."""
        for name, value in values.items():
            first = self._first[name]
            if value is first:
                continue
            tensor = type(value) is TensorSpec
            if tensor is not (type(first) is TensorSpec):
                yield from ((name, attribute) for attribute in self._fixed[name])
            elif tensor:
                for attribute in self._fixed[name]:
                    if attribute and not _alike(getattr(value, attribute), getattr(first, attribute)):
                        yield name, attribute
            elif "" in self._fixed[name] and not _alike(value, first):
                yield name, ""

    def _examine(self, point: _Point) -> Ruling:
        blocked: set[type[Check[Any]]] = set()
        failed: dict[type[Check[Any]], None] = {}
        for unit in self._units:
            if isinstance(unit, Step):
                if blocked.isdisjoint(unit.premises):
                    point = self._stepped(unit, point)
                continue
            memo, unmet = unit.memo, _NONE
            if blocked and not blocked.isdisjoint(unit.premises):
                if unit.check is not None:
                    blocked.add(unit.check)
                    continue
                unmet = unit.premises & blocked
                memo = unit.without.setdefault(unmet, _Memo())
            elif memo.start is _PASSED or (unit.parts and self._all_pass(unit, point)):
                continue
            found = self._answer(unit, unmet, memo, point)
            if found is _PASSED:
                continue
            if found.raised is not None:
                return Ruling(found.raised)
            blocked |= found.blocked
            failed.update(dict.fromkeys(found.failed))
        return Ruling(None, tuple(failed))

    def _all_pass(self, unit: _Unit, point: _Point) -> bool:
        """Whether each check of a loop passes on every item."""
        return all(
            part.memo.start is _PASSED or self._answer(part, _NONE, part.memo, point) is _PASSED
            for part in unit.parts
        )

    def _answer(self, unit: _Unit, unmet: Checks, memo: _Memo, point: _Point) -> _Found:
        """What a unit finds in a call: known already, or evaluated."""
        if memo.alone:
            return _found_in(unit, unmet, self._plain(point))
        found: _Found | None = point.answer(memo)
        if found is None:
            found = _found_in(unit, unmet, self._watched(point))
            repr(found.raised)  # reads what its text holds
            memo.keep(point, self._reads, found)
        return found

    def _stepped(self, step: Step, point: _Point) -> _Point:
        """The call after a step."""
        memo = self._steps.setdefault(id(step), _Memo())
        changes = None if memo.alone else point.answer(memo)
        if changes is None:
            subject = self._plain(point) if memo.alone else self._watched(point)
            before, after = vars(subject), vars(step.run(subject))
            changed = [name for name in self._names if after[name] is not before[name]]
            changes = {name: unwatched(after[name]) for name in changed}
            if not memo.alone:
                memo.keep(point, self._reads, changes)
        return self._point(point.values | changes) if changes else point

    def _watched(self, point: _Point) -> Call:
        """The call of a point, which notes what is read of it from now on."""
        if point.watched is None:
            point.watched = self._noting.watched(point.values, self._moving_tensors)
        self._reads.clear()
        return point.watched

    def _plain(self, point: _Point) -> Call:
        if point.plain is None:
            point.plain = plain_call(self._call, point.values)
        return point.plain


def _alone(stages: Stages, call: Call) -> Ruling:
    """What the checks say of a call, by `examine`."""
    examination = examine(stages, call)
    if examination.raised is not None:
        return Ruling(examination.raised)
    return Ruling(None, tuple(outcome.check for outcome in examination.failed()))


_NONE: Checks = frozenset()
_PASSED = _Found((), None, _NONE)


def _alike(one: Any, other: Any) -> bool:
    """Whether no check can tell two values apart."""
    if one is other:
        return True
    return type(one) is type(other) and key_of(one) == key_of(other)


def _found_in(unit: _Unit, unmet: Checks, subject: Call) -> _Found:
    """What a unit finds in a call."""
    check = unit.check
    if check is not None:
        event = evaluate(check, subject, _NONE)
        passed = event.status is Status.PASSED
        return _PASSED if passed else _found([event], frozenset((check,)))
    blocked = set(unmet)
    events = list(walk((unit.stage,), subject, blocked=blocked))
    return _found(events, frozenset(blocked - unmet))


def _found(events: list[Event], blocked: Checks) -> _Found:
    failed = dict.fromkeys(event.check for event in events if event.status is Status.FAILED)
    raising = (
        event.violations[0]
        for event in events
        if event.violations and event.check.origin() is Origin.UPSTREAM
    )
    unmet = any(event.status is Status.NOT_REACHED for event in events)
    return _Found(tuple(failed), next(raising, None), blocked) if failed or blocked or unmet else _PASSED


def _units(stages: Stages) -> Iterator[_Unit | Step]:
    for stage in stages:
        if isinstance(stage, Step):
            yield stage
        elif isinstance(stage, Each):
            needed = {premise for check in stage.checks for premise in check.premises}
            parts = tuple(
                _Unit(
                    dataclasses.replace(stage, checks=(check,), select=_selecting(stage, check)), None, _NONE
                )
                for check in stage.checks
            )
            yield _Unit(stage, None, frozenset({*stage.premises, *stage.checks, *needed}), parts=parts)
        else:
            given = stage if isinstance(stage, Given) else Given((), (stage,))
            for check in given.checks:
                alone = Given(given.premises, (check,))
                yield _Unit(alone, check, frozenset({*given.premises, *check.premises}))


def _selecting(loop: Each, check: type[Check[Any]]) -> Any:
    """Which of one check is an item's: itself, where the loop selects it."""
    select = loop.select
    return None if select is None else lambda item: (check,) if check in select(item) else ()
