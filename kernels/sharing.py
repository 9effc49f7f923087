"""Many calls of one operation examined together: a check is evaluated once for all it cannot tell apart.

A check is a pure function of the call's fields. While it is evaluated, what it reads is noted, of a tensor
each attribute apart, and the answer is kept under the values read, in the order of reading: what is read
first is the same for every call, what is read next depends on the values read before it alone. A call with
the same values there has the same answer, whatever else it holds. Steps between checks are kept alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kernels.call import TENSOR_ATTRIBUTES, Call
from kernels.checking import (
    Check,
    Each,
    Event,
    Given,
    Origin,
    Severity,
    Stages,
    Status,
    Step,
    evaluate,
    walk,
)
from kernels.spec import TensorSpec
from kernels.values import Values

Checks = frozenset[type[Check[Any]]]


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
    """What is read, as a path, and what follows for each value by its identity."""

    path: str
    following: dict[int, Any]


@dataclass(slots=True)
class _Memo:
    """Answers of one pure function of a call's fields, by the values of what it reads of them: a tree whose
    leaves are the answers, None where nothing is known.
    """

    start: Any = None

    def keep(self, point: _Point, reads: Iterable[str], answer: object) -> None:
        """Remember the answer under the values of what was read, in the order of reading."""
        branch: _Branch | None = None
        key = 0
        for path in reads:
            node = self.start if branch is None else branch.following.get(key)
            if node is None:
                node = _Branch(path, {})
                self._put(branch, key, node)
            if node.__class__ is not _Branch or node.path != path:
                raise AssertionError(f"reading {path} depends on something other than the call")
            branch, key = node, point.identities[path]
        self._put(branch, key, answer)

    def _put(self, branch: _Branch | None, key: int, node: object) -> None:
        if branch is None:
            self.start = node
        else:
            branch.following[key] = node


@dataclass(slots=True)
class _Point:
    """A call between two steps: its fields, what tells it apart, and itself as one that notes its readers."""

    values: dict[str, Any]
    identities: dict[str, int]
    subject: Call | None = None

    def answer(self, memo: _Memo) -> Any:
        """What is known of this call; None where nothing is."""
        node = memo.start
        while node.__class__ is _Branch:
            node = node.following.get(self.identities[node.path])
        return node


def _path(name: str, attribute: str = "") -> str:
    """What is read: a field as such, or an attribute of the tensor that it holds."""
    return f"{name}.{attribute}"


def _identity(values: dict[str, Any], name: str, attribute: str) -> int:
    """What tells values of a path apart; of a tensor as such only that it is one."""
    value = values[name]
    if isinstance(value, TensorSpec):
        return id(getattr(value, attribute)) if attribute else 0
    return id(value)


@dataclass(slots=True)
class _Unit:
    """A stretch of the walk that is evaluated as one: a check with what it is given, or a loop.

    memo     what it finds where all its premises hold
    without  the same where some do not, by which
    """

    stage: Given | Each
    check: type[Check[Any]] | None
    premises: Checks
    memo: _Memo = field(default_factory=_Memo)
    without: dict[Checks, _Memo] = field(default_factory=dict)


class SharedChecks:
    """Examines many calls of one operation as `examine` does, each up to the check that raises."""

    def __init__(self, stages: Stages, call: type[Call]) -> None:
        self._names = tuple(field.name for field in dataclasses.fields(call))
        self._units = list(_units(stages))
        self._first: dict[str, Any] = {}
        self._moving: dict[str, tuple[str, str]] = {}
        self._known: dict[Any, Any] = {}
        self._steps: dict[int, _Memo] = {}
        self._reads: dict[str, None] = {}
        self._traced = _traced(call, self._moving, self._reads)
        self._tensors = {name: _traced_tensor(name, self._moving, self._reads) for name in self._names}

    def examine(self, call: Call) -> Ruling:
        """What the checks say of a call."""
        values = {name: self._same(name, getattr(call, name)) for name in self._names}
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
        moved = {_path(*place): place for place in self._differences(values)}
        if not moved.keys() <= self._moving.keys():
            self._moving.update(moved)
            self._steps.clear()
            for unit in self._units:
                if isinstance(unit, _Unit):
                    unit.memo = _Memo()
                    unit.without.clear()
        return _Point(values, {path: _identity(values, *place) for path, place in self._moving.items()})

    def _differences(self, values: dict[str, Any]) -> Iterator[tuple[str, str]]:
        for name, value in values.items():
            first = self._first[name]
            if value is first:
                continue
            tensors = isinstance(value, TensorSpec), isinstance(first, TensorSpec)
            if not all(tensors):
                yield name, ""
            if any(tensors):
                for attribute in TENSOR_ATTRIBUTES:
                    if not all(tensors) or getattr(value, attribute) is not getattr(first, attribute):
                        yield name, attribute

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
            found = point.answer(memo)
            if found is None:
                found = self._evaluate(unit, unmet, memo, point)
            if found is _PASSED:
                continue
            if found.raised is not None:
                return Ruling(found.raised)
            blocked |= found.blocked
            failed.update(dict.fromkeys(found.failed))
        return Ruling(None, tuple(failed))

    def _evaluate(self, unit: _Unit, unmet: Checks, memo: _Memo, point: _Point) -> _Found:
        """Evaluate a unit on a call, and keep what it found."""
        subject = self._watched(point)
        check = unit.check
        if check is not None:
            event = evaluate(check, subject, _NONE)
            passed = event.status is Status.PASSED
            found = _PASSED if passed else _found([event], frozenset((check,)))
        else:
            blocked = set(unmet)
            events = list(walk((unit.stage,), subject, blocked=blocked))
            found = _found(events, frozenset(blocked - unmet))
        memo.keep(point, self._reads, found)
        return found

    def _stepped(self, step: Step, point: _Point) -> _Point:
        """The call after a step."""
        memo = self._steps.setdefault(id(step), _Memo())
        changes = point.answer(memo)
        if changes is None:
            subject = self._watched(point)
            before, after = vars(subject), vars(step.run(subject))
            changed = [name for name in self._names if after[name] is not before[name]]
            changes = {name: self._same(name, after[name]) for name in changed}
            memo.keep(point, self._reads, changes)
        return self._point(point.values | changes) if changes else point

    def _watched(self, point: _Point) -> Call:
        """The call of a point, which notes what is read of it from now on."""
        if point.subject is None:
            point.subject = object.__new__(self._traced)
            fields = vars(point.subject)
            fields.update(point.values)
            for name in {name for name, _ in self._moving.values()}:
                if isinstance(fields[name], TensorSpec):
                    fields[name] = _rebuilt(self._tensors[name], fields[name], lambda item: item)
        self._reads.clear()
        return point.subject

    def _same(self, name: str, value: Any) -> Any:
        """One object for all values that no check can tell apart; it lives as long as what is kept by it."""
        if self._first and value is self._first[name]:
            return value
        if isinstance(value, TensorSpec):
            # 1 and 1.0 are equal as values and different as elements.
            key = value if value.values is None else (value, repr(value.values))
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = _rebuilt(TensorSpec, value, self._one)
            return known
        return self._one(value)

    def _one(self, value: Any) -> Any:
        if isinstance(value, (int, float, str, tuple, Values)):
            return self._known.setdefault((type(value), repr(value)), value)
        return self._known.setdefault(id(value), value)


_NONE: Checks = frozenset()
_PASSED = _Found((), None, _NONE)


def _found(events: list[Event], blocked: Checks) -> _Found:
    failed = dict.fromkeys(event.check for event in events if event.status is Status.FAILED)
    raising = (
        event.violations[0]
        for event in events
        if event.violations and event.check.origin() is Origin.UPSTREAM
    )
    return _Found(tuple(failed), next(raising, None), blocked) if failed or blocked else _PASSED


def _units(stages: Stages) -> Iterator[_Unit | Step]:
    for stage in stages:
        if isinstance(stage, Step):
            yield stage
        elif isinstance(stage, Each):
            needed = {premise for check in stage.checks for premise in check.premises}
            yield _Unit(stage, None, frozenset({*stage.premises, *stage.checks, *needed}))
        else:
            given = stage if isinstance(stage, Given) else Given((), (stage,))
            for check in given.checks:
                alone = Given(given.premises, (check,))
                yield _Unit(alone, check, frozenset({*given.premises, *check.premises}))


def _traced(call: type[Call], moving: Container[str], reads: dict[str, None]) -> type[Call]:
    """A class of the same calls that notes in `reads` which of the `moving` fields are read.

    What a call works out once and keeps is worked out at each reading instead: whoever reads it reads what it
    rests on.
    """
    computed = {
        name: member.func
        for base in reversed(call.__mro__)
        for name, member in vars(base).items()
        if isinstance(member, cached_property)
    }

    paths = {field.name: _path(field.name) for field in dataclasses.fields(call)}

    def read(self: Call, name: str) -> Any:
        if name in computed:
            return computed[name](self)
        path = paths.get(name)
        if path is not None and path in moving:
            reads[path] = None
        return object.__getattribute__(self, name)

    return type(call.__name__, (call,), {"__getattribute__": read})


def _traced_tensor(argument: str, moving: Container[str], reads: dict[str, None]) -> type[TensorSpec]:
    """A class of the same tensors that notes in `reads` which `moving` attributes of an argument are read."""
    paths = {attribute: _path(argument, attribute) for attribute in TENSOR_ATTRIBUTES}

    def read(self: TensorSpec, name: str) -> Any:
        path = paths.get(name)
        if path is not None and path in moving:
            reads[path] = None
        return object.__getattribute__(self, name)

    def equals(self: TensorSpec, other: object) -> bool:
        return isinstance(other, TensorSpec) and _attributes(self) == _attributes(other)

    members = {
        "__slots__": (),
        "__getattribute__": read,
        "__eq__": equals,
        "__hash__": TensorSpec.__hash__,
    }
    return type(TensorSpec.__name__, (TensorSpec,), members)


def _attributes(tensor: TensorSpec) -> tuple[Any, ...]:
    return tuple(getattr(tensor, attribute) for attribute in TENSOR_ATTRIBUTES)


def _rebuilt(kind: type[TensorSpec], tensor: TensorSpec, one: Callable[[Any], Any]) -> TensorSpec:
    """The same tensor as an instance of `kind`, each attribute replaced by `one` object for it."""
    made = object.__new__(kind)
    for attribute in TENSOR_ATTRIBUTES:
        object.__setattr__(made, attribute, one(getattr(tensor, attribute)))
    return made
