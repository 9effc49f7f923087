"""What can be said where editing the call does not help: no value does, the library is at fault, what else to
do.
"""

from __future__ import annotations

from typing import Any

from app.diagnose.fixes import Repair
from kernels.call import Argument, Call
from kernels.checking import Check, Severity, Status
from kernels.examining import Examination, Examine
from kernels.expressions import literal

MAX_TRIALS = 16
"""Examinations of one answer's trials of values."""


def advice(call: Call, examination: Examination, repairs: tuple[Repair, ...], examine: Examine) -> list[str]:
    """Sentences on failing checks, those that upstream makes first; `examine` is what was found by."""
    said: dict[str, None] = {}
    remedies: set[str] = set()
    trials = MAX_TRIALS
    signature = {parameter.name: parameter for parameter in call.arguments()}
    for outcome in examination.failed():
        if outcome.check.severity is not Severity.ERROR:
            continue
        first = outcome.occurrences[0]
        fault = first.violation.library_fault(first.subject)
        if fault:
            said[f"The library is at fault, not the call ({outcome.check.id()}): {fault}."] = None
        remedy = first.violation.remedy(first.subject)
        remedy = "" if remedy in remedies else remedy
        remedies.add(remedy)
        hopeless = []
        for name in outcome.check.arguments():
            parameter = signature[name]
            others = _others(parameter, getattr(call, name))
            if not others or len(others) > trials or _mends(name, repairs):
                continue
            trials -= len(others)
            if not any(_passes(examine(call.replace(**{name: value})), outcome.check) for value in others):
                listed = ", ".join(literal(value) for value in parameter.choices)
                hopeless.append(f"no value of {name} helps (tried: {listed})")
        parts = [*hopeless, *([remedy] if remedy else [])]
        if parts:
            said[f"{outcome.check.id()}: {'; '.join(parts)}."] = None
    return list(said)


def _others(parameter: Argument, value: Any) -> list[Any]:
    """The supported values that an argument does not have."""
    return [choice for choice in parameter.choices if choice != value or type(choice) is not type(value)]


def _mends(name: str, repairs: tuple[Repair, ...]) -> bool:
    """Whether a repair gives the argument another value, and changes nothing else."""
    return any({edit.argument for edit in repair.edits} == {name} for repair in repairs)


def _passes(examination: Examination, check: type[Check[Any]]) -> bool:
    return any(each.check is check and each.status is Status.PASSED for each in examination.outcomes)
