"""A call that was examined while all that each check read was noted, and what other calls differ in from it.

A check is a pure function of the call's fields. What it reads first is the same for every call, what it reads
next depends on the values read before it alone: of a call with the same values there, it says the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kernels.call import TENSOR_ATTRIBUTES, Call
from kernels.checking import Check, Each, Given, Stages, Status, Step
from kernels.examining import walk
from kernels.noting import Noting, Path, key_of
from kernels.spec import TensorSpec

MOST_DIFFERENCES = 256
"""Sets of differences whose readers an anchor keeps."""

Checks = frozenset[type[Check[Any]]]

UNREACHED: Check[Any] = Check()
"""In place of a violation."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What is evaluated as one: a check of the call, or one check over all items of a loop.

    needs   the checks without which it is not reached, and theirs
    loop    the loop; None for a check of the call
    alone   the loop with this check alone
    """

    check: type[Check[Any]]
    needs: Checks
    loop: Each | None = None
    alone: Each | None = None

    def first(self, subject: Any) -> Check[Any] | None:
        """The first violation in a subject in which all that it needs passes, None where it passes; UNREACHED
        where it cannot be evaluated, and of a loop in place of a violation.
        """
        if self.alone is not None:
            passes = all(event.status is Status.PASSED for event in walk((self.alone,), subject))
            return None if passes else UNREACHED
        if not self.check.evaluable(subject):
            return UNREACHED
        return next(iter(self.check.find(subject)), None)


@dataclass(frozen=True, slots=True)
class Segment:
    """The units between two steps, and the step before them; None at the beginning."""

    step: Step | None
    units: tuple[Unit, ...]


def segments(stages: Stages) -> tuple[Segment, ...]:
    """The stages in units."""
    found: list[Segment] = []
    step: Step | None = None
    units: list[Unit] = []
    needs: dict[type[Check[Any]], Checks] = {}
    for stage in stages:
        if isinstance(stage, Step):
            found.append(Segment(step, tuple(units)))
            step, units = stage, []
            continue
        loop = stage if isinstance(stage, Each) else None
        given = stage.premises if isinstance(stage, (Each, Given)) else ()
        for check in stage.checks if isinstance(stage, (Each, Given)) else (stage,):
            direct = (*given, *check.premises)
            needs[check] = frozenset(direct).union(*(needs.get(premise, _NONE) for premise in direct))
            units.append(Unit(check, needs[check], loop, None if loop is None else _alone(loop, check)))
    return (*found, Segment(step, tuple(units)))


def _alone(loop: Each, check: type[Check[Any]]) -> Each:
    """The loop with one of its checks."""
    select = loop.select
    chosen = None if select is None else (lambda item: (check,) if check in select(item) else ())
    return dataclasses.replace(loop, checks=(check,), select=chosen)


@dataclass(frozen=True, slots=True)
class _Field:
    """What was read of one field of the call.

    place   among the fields
    own     its value at the anchor
    paths   all that was read of it
    parts   of a tensor: attribute → what was read of that, with its keys at the anchor
    """

    place: int
    own: Any
    paths: tuple[Path, ...]
    parts: tuple[tuple[str, tuple[tuple[Path, object], ...]], ...]

    def differences(self, value: Any) -> Iterator[Path]:
        """What was read and is another in another value."""
        own = self.own
        if value.__class__ is not TensorSpec or own.__class__ is not TensorSpec:
            if key_of(value) != key_of(own):
                yield from self.paths
            return
        for attribute, paths in self.parts:
            other, mine = getattr(value, attribute), getattr(own, attribute)
            if other is not mine and key_of(other) != key_of(mine):
                for path, key in paths:
                    if path.within(value) != key:
                        yield path


@dataclass(slots=True)
class Stretch:
    """A segment as it was evaluated at the anchor.

    checks     of the units
    fields     what was read
    readers    path → places of the units that read it
    doubtful   places of the units that did not pass
    known      differences → the units to evaluate, and the checks that pass
    """

    step: Step | None
    units: tuple[Unit, ...]
    checks: Checks
    fields: tuple[_Field, ...]
    readers: dict[Path, list[int]]
    doubtful: tuple[int, ...]
    known: dict[tuple[Path, ...], tuple[tuple[Unit, ...], Checks]] = field(default_factory=dict)

    def affected(self, values: tuple[Any, ...]) -> tuple[tuple[Unit, ...], Checks]:
        """The units to evaluate in a call of these fields, and the checks that pass where reached."""
        differing = tuple(
            [
                path
                for read in self.fields
                if values[read.place] is not read.own
                for path in read.differences(values[read.place])
            ]
        )
        found = self.known.get(differing)
        if found is None:
            places = {*self.doubtful, *(place for path in differing for place in self.readers[path])}
            units = tuple(self.units[place] for place in sorted(places))
            passing = self.checks.difference(unit.check for unit in units)
            if len(self.known) >= MOST_DIFFERENCES:
                self.known.clear()
            found = self.known[differing] = units, passing
        return found


def anchored(plan: tuple[Segment, ...], call: Call) -> tuple[Stretch, ...]:
    """The call as an anchor: its stretches up to a step that it does not reach."""
    reads: dict[Path, None] = {}
    noting = Noting(type(call), _EVERYTHING, reads)
    blocked: set[type[Check[Any]]] = set()
    stretches = []
    for segment in plan:
        if segment.step is not None:
            if not blocked.isdisjoint(segment.step.premises):
                break
            call = segment.step.run(call)
        values = {item.name: getattr(call, item.name) for item in dataclasses.fields(call)}
        watched = noting.watched(values, {name for name, _ in call.tensors()})
        readers: dict[Path, list[int]] = {}
        doubtful = []
        for place, unit in enumerate(segment.units):
            reads.clear()
            if not blocked.isdisjoint(unit.needs) or unit.first(watched) is not None:
                blocked.add(unit.check)
                doubtful.append(place)
            for path in reads:
                readers.setdefault(path, []).append(place)
        fields = tuple(_fields(values, readers))
        checks = frozenset(unit.check for unit in segment.units)
        stretches.append(Stretch(segment.step, segment.units, checks, fields, readers, tuple(doubtful)))
    return tuple(stretches)


def _fields(values: dict[str, Any], readers: dict[Path, list[int]]) -> Iterator[_Field]:
    for place, (name, value) in enumerate(values.items()):
        paths = tuple(path for path in readers if path.name == name)
        parts = tuple(
            (attribute, tuple((path, path.within(value)) for path in paths if path.attribute == attribute))
            for attribute in TENSOR_ATTRIBUTES
            if any(path.attribute == attribute for path in paths)
        )
        if paths:
            yield _Field(place, value, paths, parts)


class _Everything:
    """Notes whatever is read."""

    def __contains__(self, _place: object) -> bool:
        return True


_EVERYTHING = _Everything()
_NONE: Checks = frozenset()
