"""Fix search: every failing check's own fixes, alone and chained until the whole call passes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import monotonic

from kernels.call import Call, Edit
from kernels.checking import Examination, Fix, Occurrence, Severity
from kernels.registry import Operation

log = logging.getLogger("faultbook.fixes")

MAX_EVALUATIONS = 200
"""Examinations one search may spend; a call with more faults than that gets the fixes found so far."""

MAX_SECONDS = 1.0
"""Time for one search: of a file with thousands of layers one examination alone takes long."""

MAX_CHAIN = 24
"""Fixes applied one after another: every check of an operation, twice over for the largest today."""

MAX_FIXES = 5
"""Fixes offered."""


@dataclass(frozen=True, slots=True)
class Repair:
    """A call that passes every check, and how to get there."""

    title: str
    call: Call
    edits: tuple[Edit, ...]
    safe: bool
    note: str


@dataclass(slots=True)
class Budget:
    """What is left of a search: examinations, and the time at which it ends."""

    evaluations: int
    deadline: float

    def spent(self) -> bool:
        """Whether the search has to stop."""
        return self.evaluations <= 0 or monotonic() > self.deadline


def search(operation: Operation, call: Call, examination: Examination) -> list[Repair]:
    """Repairs of a call, fewest edits first, safe before unsafe; each was examined and passes."""
    budget = Budget(MAX_EVALUATIONS, monotonic() + MAX_SECONDS)
    found: dict[str, Repair] = {}
    for fix in _fixes(call, examination):
        repair = _completed(operation, call, fix, budget)
        if repair is not None and repair.edits:
            found.setdefault(_written(repair.call), repair)
        if budget.spent():
            break
    ranked = sorted(found.values(), key=lambda repair: (len(repair.edits), not repair.safe))
    return ranked[:MAX_FIXES]


def _fixes(call: Call, examination: Examination) -> Iterator[Fix[Call]]:
    """Fixes of the failing checks as changes of `call`, those of errors before those of warnings."""
    failed = sorted(examination.failed(), key=lambda outcome: outcome.check.severity is not Severity.ERROR)
    for outcome in failed:
        for occurrence in outcome.occurrences:
            for fix in _offered(occurrence):
                yield replace(fix, call=_rebased(call, occurrence.subject, fix.call))


def _offered(occurrence: Occurrence) -> Iterator[Fix[Call]]:
    """The fixes of one violation. A diagnosis stands without a suggestion: one that cannot be made for this
    call is our mistake, which the log has, and the checks' outcome is answered all the same.
    """
    try:
        yield from occurrence.violation.fixes(occurrence.subject)
    except Exception:
        log.exception("no fix could be made for %s", occurrence.violation.id())


def _rebased(call: Call, subject: object, fixed: Call) -> Call:
    """The fixed call without what upstream fills in by itself, where the fix leaves that alone.

    Later checks see the call with outputs allocated; a fix of the input should not pass those outputs.
    """
    if not isinstance(subject, Call):
        return fixed
    names = [parameter.name for parameter in call.arguments()]
    filled = [name for name in names if getattr(subject, name) is not getattr(call, name)]
    if any(getattr(fixed, name) is not getattr(subject, name) for name in filled):
        return fixed
    return fixed.replace(**{name: getattr(call, name) for name in filled})


def _completed(operation: Operation, call: Call, fix: Fix[Call], budget: Budget) -> Repair | None:
    """`fix`, then the first fix of whatever still fails, until nothing does; None when that leads nowhere."""
    titles, notes, safe = [fix.title], [fix.note], fix.safe
    current, seen = fix.call, {_written(call)}
    for _ in range(MAX_CHAIN):
        if _written(current) in seen or budget.spent():
            return None
        seen.add(_written(current))
        budget.evaluations -= 1
        examination = operation.examine(current)
        following = next(_fixes(current, examination), None) if examination.rejected else None
        if following is None:
            break
        titles.append(following.title)
        notes.append(following.note)
        safe = safe and following.safe
        current = following.call
    if examination.rejected or not current.describable:
        return None
    title = titles[0] + "".join(f"; {later[0].lower()}{later[1:]}" for later in titles[1:])
    return Repair(title, current, call.edits_to(current), safe, "; ".join(dict.fromkeys(filter(None, notes))))


def _written(call: Call) -> str:
    """What tells calls apart: 128 and 128.0 are equal as values and different as arguments."""
    return repr(call)
