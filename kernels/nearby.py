"""Calls examined by what tells them from one examined before, the anchor: only checks that read the
difference are evaluated, and those that did not pass at the anchor; the others pass.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from kernels.anchors import UNREACHED, Checks, Stretch, anchored, segments
from kernels.call import Call
from kernels.checking import Check, Each, Origin, Stages
from kernels.examining import Examination, Ruling, examine, unbroken, walk

MOST_FORMS = 16
"""Anchors of one operation, one for each set of arguments that are present; the least used are dropped."""

BEFORE = 8
"""Calls of a form that are examined in full before one is its anchor: noting takes twenty times as long."""

FAR = 32
"""Calls far from their form's anchor after which one of them takes its place."""

NEAR = 0.5
"""Share of the checks that are evaluated for a call which still is near."""


@dataclass(slots=True)
class _Form:
    """Calls in which the same arguments are present.

    anchor   one of them; empty where there is none yet
    seen     calls examined without an anchor, or far from it
    """

    anchor: tuple[Stretch, ...] = ()
    seen: int = 0


class Nearby:
    """Examines calls of one operation as `examine` does; for one thread at a time.

    unbroken   what is said of every call that passes all checks
    """

    def __init__(self, stages: Stages, call: type[Call]) -> None:
        self._stages = tuple(stages)
        self._values = attrgetter(*(item.name for item in dataclasses.fields(call)))
        self._plan = segments(stages)
        self.unbroken = unbroken(self._stages)
        units = [unit for segment in self._plan for unit in segment.units]
        checks = [unit.check for unit in units]
        self._most = int(len(checks) * NEAR)
        self._repeated = frozenset(check for check in checks if checks.count(check) > 1)
        self._looped = frozenset().union(*(unit.needs for unit in units if unit.loop is not None))
        self._forms: OrderedDict[tuple[bool, ...], _Form] = OrderedDict()

    def examine(self, call: Call) -> Examination:
        """Every check's outcome for a call."""
        form = self._form(call)
        if len(form.anchor) < len(self._plan):
            return examine(self._stages, call)
        subject, passing, evaluated = call, _NONE, 0
        for stretch in form.anchor:
            if stretch.step is not None:
                subject = stretch.step.run(subject)
            units, others = stretch.affected(self._values(subject))
            evaluated += len(units)
            for unit in units:
                if unit.first(subject) is not None:
                    self._settle(form, call, evaluated)
                    return self._in_full(call, passing | others)
            passing = passing | stretch.checks if passing else stretch.checks
        self._settle(form, call, evaluated)
        return self.unbroken

    def rule(self, call: Call) -> Ruling:
        """What the checks say of a call, in short."""
        form = self._form(call)
        if len(form.anchor) < len(self._plan):
            return Ruling.of(examine(self._stages, call))
        blocked: set[type[Check[Any]]] = set()
        failed: list[type[Check[Any]]] = []
        subject, passing, evaluated = call, _NONE, 0
        for stretch in form.anchor:
            if stretch.step is not None:
                if not blocked.isdisjoint(stretch.step.premises):
                    return Ruling.of(self._in_full(call, passing - blocked))
                subject = stretch.step.run(subject)
            units, others = stretch.affected(self._values(subject))
            evaluated += len(units)
            for unit in units:
                check, reached = unit.check, not blocked or blocked.isdisjoint(unit.needs)
                first = unit.first(subject) if reached else UNREACHED
                if first is None:
                    continue
                if unit.loop is not None or check in self._looped:
                    # What is blocked within loops is the walk's to say.
                    self._settle(form, call, evaluated)
                    raised = _raised(unit.loop, subject) if unit.loop is not None and reached else None
                    return (
                        Ruling(raised)
                        if raised
                        else Ruling.of(self._in_full(call, (passing | others) - blocked))
                    )
                if first is not UNREACHED:
                    if check.origin() is Origin.UPSTREAM:
                        self._settle(form, call, evaluated)
                        return Ruling(first)
                    failed.append(check)
                blocked.add(check)
            passing = passing | stretch.checks if passing else stretch.checks
        self._settle(form, call, evaluated)
        return Ruling(None, tuple(failed))

    def _in_full(self, call: Call, passing: Checks) -> Examination:
        """The whole walk."""
        return examine(self._stages, call, passing=passing - self._repeated)

    def _form(self, call: Call) -> _Form:
        key = tuple([value is None for value in self._values(call)])
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = _Form()
            if len(self._forms) > MOST_FORMS:
                self._forms.popitem(last=False)
        else:
            self._forms.move_to_end(key)
        if len(form.anchor) < len(self._plan):
            self._count(form, call, FAR if form.anchor else BEFORE)
        return form

    def _settle(self, form: _Form, call: Call, evaluated: int) -> None:
        """Count a call that was far, and make it the anchor where many were."""
        if evaluated > self._most:
            self._count(form, call, FAR)

    def _count(self, form: _Form, call: Call, most: int) -> None:
        """Count a call that its form's anchor does not serve; the last of `most` is the next anchor."""
        form.seen += 1
        if form.seen >= most:
            form.anchor, form.seen = anchored(self._plan, call), 0


_NONE: Checks = frozenset()


def _raised(loop: Each, subject: Any) -> Check[Any] | None:
    """The violation that upstream raises in a loop of which nothing is blocked."""
    for event in walk((loop,), subject):
        if event.violations and event.check.origin() is Origin.UPSTREAM:
            return event.violations[0]
    return None
