"""From what a message printed back to a call that prints it: the diagnosis request that a match comes with.

A message tells a few sizes and types of the call that broke. The record's own failing example is changed
until its check prints the same values: for each value, every attribute that the check reads is tried.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from catalog.additions import request
from catalog.faults import Case, Fault
from catalog.match import Capture, Match
from kernels.call import Call
from kernels.checking import Check
from kernels.dtypes import DType
from kernels.message import holes
from kernels.spec import TensorSpec

PLACE: Final = ("file", "line")
"""Holes of a launcher's message that say where it was raised."""
SCALARS: Final = (int, float, bool, str, DType)
MOST_NUMBERS: Final = 16
"""Sizes read from one value."""
MOST_TRIED: Final = 100
"""Calls examined for one check; one takes some tens of microseconds."""

_NUMBERS: Final = re.compile(r"-?[0-9]{1,18}")
_DEVICE: Final = re.compile(r"(?:cuda|hip|cpu)(?::[0-9]{1,3})?")

Wanted = Mapping[int, Capture]
"""Hole → what it printed, for the holes that depend on the call."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A call that breaks the check, and the holes for which it prints what was pasted."""

    call: Call
    agreeing: frozenset[int]


def prefilled(fault: Fault, match: Match) -> tuple[str, dict[str, Any]] | None:
    """Operation and diagnosis request for a match; None where no call of ours raises the record's error."""
    wanted = {index: item for index, item in enumerate(match.captures) if item.name not in PLACE}
    best: tuple[Case, _Attempt] | None = None
    for case in _likely_first(fault.cases, match):
        example = case.check.example()
        attempt = None if example is None else _closest(case, example, wanted)
        if attempt is not None and (best is None or len(attempt.agreeing) > len(best[1].agreeing)):
            best = case, attempt
        if best is not None and len(best[1].agreeing) == len(wanted):
            break
    if best is None:
        return None
    case, attempt = best
    return case.operation.name, request(case.operation, attempt.call)


def _likely_first(cases: Sequence[Case], match: Match) -> list[Case]:
    """The checks whose sites have the line that the text names come first."""
    named = {int(item.value) for item in match.captures if item.name == "line" and item.value.isdigit()}
    lines = named or set(match.site.lines if match.site is not None else ())
    return sorted(
        cases, key=lambda case: lines.isdisjoint(line for site in case.check.sites for line in site.lines)
    )


def _closest(case: Case, example: Call, wanted: Wanted) -> _Attempt | None:
    """The example, changed value by value to print what is wanted."""
    best = _attempt(case, example, wanted)
    tried = 0
    for index, capture in wanted.items():
        if best is None or index in best.agreeing:
            continue
        for call in _changed(case, best.call, capture):
            tried += 1
            if tried > MOST_TRIED:
                return best
            attempt = _attempt(case, call, wanted) or _attempt(case, _refitted(case, call), wanted)
            if attempt is not None and len(attempt.agreeing) > len(best.agreeing):
                best = attempt
                break
    return best


def _attempt(case: Case, call: Call | None, wanted: Wanted) -> _Attempt | None:
    """How well the call fits, if its first error is this check's."""
    if call is None:
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
    return _Attempt(
        call, frozenset(index for index, capture in wanted.items() if _same(printed[index], capture.value))
    )


def _printed(violation: Check[Any]) -> list[str]:
    return [
        hole.fill(value) for hole, value in zip(holes(violation.message), violation.printed(), strict=True)
    ]


def _same(printed: str, captured: str) -> bool:
    """A repr is captured without its quotes."""
    return captured in (printed, printed.strip("'\""))


def _refitted(case: Case, call: Call) -> Call | None:
    """The arguments that the check reads, the others sized to them as for a request that leaves them out."""
    read = set(case.check.arguments())
    given = {name: value for name, value in call.stated() if name in read}
    try:
        return case.operation.fit(given)
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError):
        return None  # they do not determine the others: keep the example's


def _changed(case: Case, call: Call, capture: Capture) -> Iterator[Call]:
    """Calls with the captured value in one place that the check reads, the place named by the hole first."""
    places = sorted(_places(case), key=lambda place: not capture.name.startswith(place[0]))
    kinds = {parameter.name: parameter.kind for parameter in call.arguments()}
    for name, attribute in places:
        value = getattr(call, name)
        if isinstance(value, TensorSpec):
            for tensor in _tensors(value, attribute, capture):
                yield call.replace(**{name: tensor})
        elif not attribute and kinds[name] in SCALARS:
            for scalar in _scalars(kinds[name], capture):
                yield call.replace(**{name: scalar})


def _places(case: Case) -> Iterable[tuple[str, str]]:
    """(argument, attribute or "") for everything the check reads, then for other tensors of its argument."""
    found = dict.fromkeys(
        (name, attribute) for name, _, attribute in (path.partition(".") for path in case.check.looks_at)
    )
    for name in case.check.arguments():
        found |= dict.fromkeys((name, attribute) for attribute in ("dtype", "shape", "strides", "device"))
    return found


def _tensors(tensor: TensorSpec, attribute: str, capture: Capture) -> Iterator[TensorSpec]:
    numbers = tuple(int(number) for number in _NUMBERS.findall(capture.value[:400])[:MOST_NUMBERS])
    sizes = bool(numbers) and all(number >= 0 for number in numbers)
    match attribute:
        case "dtype" if capture.kind in ("dtype", "text"):
            with suppress(ValueError):
                yield replace(tensor, dtype=DType.parse(capture.value))
        case "device" if _DEVICE.fullmatch(capture.value):
            yield replace(tensor, device="cuda" if capture.value == "cuda:0" else capture.value)
        case "shape" if sizes and capture.kind in ("shape", "text"):
            yield replace(tensor, shape=numbers, strides=(), offset=0)
        case "shape" if sizes and capture.kind == "int":
            for index in range(tensor.ndim):
                shape = (*tensor.shape[:index], numbers[0], *tensor.shape[index + 1 :])
                yield replace(tensor, shape=shape, strides=())
            if numbers[0] <= 8:  # a number of dimensions
                yield replace(tensor, shape=(*tensor.shape, 1, 1, 1, 1, 1, 1, 1, 1)[: numbers[0]], strides=())
        case "strides" if sizes and capture.kind in ("shape", "text") and len(numbers) == tensor.ndim:
            yield replace(tensor, strides=numbers)
        case "strides" if sizes and capture.kind == "int":
            for index in range(tensor.ndim):
                yield replace(
                    tensor, strides=(*tensor.strides[:index], numbers[0], *tensor.strides[index + 1 :])
                )


def _scalars(kind: type, capture: Capture) -> Iterator[Any]:
    """The captured text as a value of the kind that the argument has, and as it stands."""
    if kind is DType:
        with suppress(ValueError):
            yield DType.parse(capture.value)
        return
    try:
        value = ast.literal_eval(capture.value[:100])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = None
    if isinstance(value, (bool, int, float, str)):
        yield value
    if kind is str:
        yield capture.value
