"""Calls that may print what was captured: one place of a call changed to a value that the message told."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import islice, pairwise
from typing import Any, Final

from app.lookup.file_moves import (
    files,
    numbers,
    renamed,
    resized,
    retyped,
    storable,
    widened,
    without_listed,
)
from catalog.faults import Case, demonstrate
from catalog.match import Capture
from kernels.call import Argument, Call
from kernels.checkpoint import Checkpoint
from kernels.dtypes import DType
from kernels.registry import Operation
from kernels.spec import TensorSpec

SCALARS: Final = (int, float, bool, str, DType)
DESCRIBED: Final = frozenset({"shape", "strides", "dtype", "device"})
"""Holes of a launcher's message that describe the whole tensor."""
MOST_PAIRED: Final = 8
"""Changes for one value that are tried with each of as many for the next."""

_DEVICE: Final = re.compile(r"(?:cuda|hip|cpu)(?::[0-9]{1,3})?")


@cache
def passing(operation: Operation) -> tuple[Call, ...]:
    """Calls that pass, each with other optional arguments, numbers of dimensions or tensors in its file: the
    valid one, then what fixes lead to.
    """
    found: dict[tuple[Any, ...], Call] = {}
    calls = [operation.valid]
    for check in operation.checks:
        shown = demonstrate(Case(operation, check))
        calls += [shown.fix.call] if shown is not None and shown.fix is not None else []
    for call in calls:
        form = tuple((name, _form(value)) for name, value in call.stated())
        if form not in found and not operation.examine(call).failed():
            found[form] = call
    return tuple(found.values())


def _form(value: Any) -> Any:
    if isinstance(value, Checkpoint):
        return frozenset(name.rpartition(".")[2] for name in value.tensors)
    return getattr(value, "ndim", None)


def described(case: Case, call: Call, captures: Iterable[Capture]) -> Iterator[Call]:
    """Calls that hold the tensor which a launcher's message describes (the first that the check reads)
    beside those of a call that passes, and then one more value in another tensor.
    """
    told = {capture.name: capture.value for capture in captures if capture.name in DESCRIBED}
    if set(told) != DESCRIBED:
        return
    try:
        sizes, strides = numbers(told["shape"]), numbers(told["strides"])
        tensor = TensorSpec(sizes, DType.parse(told["dtype"]), strides, device=_device(told["device"]))
    except ValueError:
        return  # cut or redacted
    first, *others = case.check.arguments()
    bases = [
        base for base in (call, *passing(case.operation)) if isinstance(getattr(base, first), TensorSpec)
    ]
    bases.sort(key=lambda base: getattr(base, first).ndim != tensor.ndim)
    calls = [base.replace(**{first: replace(tensor, offset=getattr(base, first).offset)}) for base in bases]
    yield from calls
    more = [capture for capture in captures if capture.name not in DESCRIBED]
    for changed in calls:
        for name in others:
            other = getattr(changed, name)
            for capture in more if isinstance(other, TensorSpec) else ():
                for attribute in ("shape", "device"):
                    for second in _tensors(other, attribute, capture):
                        yield changed.replace(**{name: second})


def towards(case: Case, call: Call, printed: Sequence[str], wanted: Mapping[int, Capture]) -> Iterator[Call]:
    """Calls changed in one place towards the values still wanted, the likeliest places first."""
    return filter(storable, _towards(case, call, printed, wanted))


def _towards(case: Case, call: Call, printed: Sequence[str], wanted: Mapping[int, Capture]) -> Iterator[Call]:
    kinds = {parameter.name: parameter for parameter in call.arguments()}
    for index, capture in wanted.items():
        yield from renamed(call, printed[index], capture.value)
        yield from _set(case, call, kinds, capture)
        yield from without_listed(call, capture, passing(case.operation))
    for name, value in files(call):
        for file in retyped(value, list(wanted.values())):
            yield call.replace(**{name: file})
    for index, capture in wanted.items():
        yield from _resized(case, call, printed[index], capture.value)
    for left, right in pairwise(wanted.values()):
        for first in islice(_set(case, call, kinds, left), MOST_PAIRED):
            yield from islice(_set(case, first, kinds, right), MOST_PAIRED)
    yield from _toggled(case, call, kinds)
    for name, value in files(call):
        for file in retyped(value, list(wanted.values())):
            yield from (call.replace(**{name: other}) for other in resized(file, lambda size: [size + 1]))


def _set(case: Case, call: Call, kinds: Mapping[str, Argument], capture: Capture) -> Iterator[Call]:
    """The captured value in one place that the check reads, the place named by the hole first."""
    places = sorted(_places(case), key=lambda place: not capture.name.startswith(place[0]))
    for name, attribute in places:
        value = getattr(call, name)
        if isinstance(value, TensorSpec):
            for tensor in _tensors(value, attribute, capture):
                yield call.replace(**{name: tensor})
        elif not attribute and kinds[name].kind in SCALARS:
            for scalar in _scalars(kinds[name].kind, capture):
                yield call.replace(**{name: scalar})


def _places(case: Case) -> Iterable[tuple[str, str]]:
    """(argument, attribute or "") for what the check reads, then the other attributes of its tensors."""
    found = dict.fromkeys(
        (name, attribute) for name, _, attribute in (path.partition(".") for path in case.check.looks_at)
    )
    for name in case.check.arguments():
        found |= dict.fromkeys((name, attribute) for attribute in ("dtype", "shape", "strides", "device"))
    return found


def _tensors(tensor: TensorSpec, attribute: str, capture: Capture) -> Iterator[TensorSpec]:
    sizes = numbers(capture.value)
    whole = bool(sizes) and all(number >= 0 for number in sizes)
    match attribute:
        case "dtype" if capture.kind in ("dtype", "text"):
            with suppress(ValueError):
                yield replace(tensor, dtype=DType.parse(capture.value))
        case "device" if _DEVICE.fullmatch(capture.value):
            yield replace(tensor, device=_device(capture.value))
        case "shape" if whole and capture.kind in ("shape", "text"):
            yield replace(tensor, shape=sizes, strides=(), offset=0)
        case "shape" if whole and capture.kind == "int":
            for index in range(tensor.ndim):
                shape = (*tensor.shape[:index], sizes[0], *tensor.shape[index + 1 :])
                yield replace(tensor, shape=shape, strides=())
            if sizes[0] <= 8:  # a number of dimensions
                yield replace(tensor, shape=(*tensor.shape, 1, 1, 1, 1, 1, 1, 1, 1)[: sizes[0]], strides=())
        case "strides" if whole and capture.kind in ("shape", "text") and len(sizes) == tensor.ndim:
            yield replace(tensor, strides=sizes)
        case "strides" if whole and capture.kind == "int":
            for index in range(tensor.ndim):
                yield replace(
                    tensor, strides=(*tensor.strides[:index], sizes[0], *tensor.strides[index + 1 :])
                )


def _device(text: str) -> str:
    return "cuda" if text == "cuda:0" else text


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


def _resized(case: Case, call: Call, printed: str, captured: str) -> Iterator[Call]:
    """Where another number is printed than wanted, sizes and strides that would make up the difference:
    a printed number may be a size, a multiple of it, or one further than it.
    """
    shown, sought = numbers(printed), numbers(captured)
    pairs = (
        [pair for pair in zip(shown, sought, strict=True) if pair[0] != pair[1]]
        if (len(shown) == len(sought))
        else []
    )
    read = case.check.arguments()
    given = {parameter.name: getattr(call, parameter.name) for parameter in call.arguments()}
    names = sorted(given, key=lambda name: (name not in read, type(given[name]) is not int))
    for old, new in pairs:
        for name in names:
            value = given[name]
            if isinstance(value, TensorSpec):
                for axis in range(value.ndim):
                    for size in _moved(value.shape[axis], old, new):
                        shape = (*value.shape[:axis], size, *value.shape[axis + 1 :])
                        yield call.replace(**{name: replace(value, shape=shape, strides=())})
                    for size in _moved(value.strides[axis], old, new) if name in read else ():
                        strides = (*value.strides[:axis], size, *value.strides[axis + 1 :])
                        yield call.replace(**{name: replace(value, strides=strides)})
            elif type(value) is int:
                for size in _moved(value, old, new):
                    yield call.replace(**{name: size})
            elif isinstance(value, Checkpoint):
                yield call.replace(**{name: widened(value, old, new)})
                for file in resized(value, partial(_moved, old=old, new=new)):
                    yield call.replace(**{name: file})


def _moved(size: int, old: int, new: int) -> Iterator[int]:
    """What a size would be, if the number printed for it went from `old` to `new`."""
    found = {new if size == old else -1, size + new - old if abs(size - old) <= 8 else -1}
    if old and size * new % old == 0:
        found.add(size * new // old)
    if new > 0 and old > 0:
        found.add(round(size * old / new))  # a count of parts, where the size of one is printed
    yield from sorted(number for number in found if 0 <= number < 2**62 and number != size)


def _toggled(case: Case, call: Call, kinds: Mapping[str, Argument]) -> Iterator[Call]:
    """Any other type, flag or presence of what the check reads: a message may spell these in its own way."""
    for name, parameter in kinds.items():
        value = getattr(call, name)
        if isinstance(value, bool):
            yield call.replace(**{name: not value})
        elif parameter.nullable and value is not None:
            yield call.replace(**{name: None})
    for name in case.check.arguments():
        value = getattr(call, name)
        if isinstance(value, TensorSpec):
            yield from (call.replace(**{name: replace(value, dtype=dtype)}) for dtype in DType)
