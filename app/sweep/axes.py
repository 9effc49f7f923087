"""What is varied: an argument, an attribute of a tensor, or one of its sizes or strides; and its values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.diagnose.arguments import read_arguments
from app.errors import Fault
from app.http.bodies import pointer
from app.sweep.schemas import MAX_POINTS, Range
from kernels.call import TENSOR_ATTRIBUTES, Call, plain
from kernels.registry import Operation
from kernels.spec import MAX_SIZE, TensorSpec, row_major
from kernels.target import Target

_PATH = re.compile(r"([A-Za-z_][A-Za-z_0-9]*)(?:\.([a-z]+)(?:\.(-?[0-9]{1,3}))?)?")

INDEXED = ("shape", "strides")


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing that is varied.

    attribute   of the tensor `name`; "" where the whole argument varies
    index       of a size or stride; None where the whole attribute varies
    place       the same counted from the front, in the tensor that is varied
    given       the values as JSON; `values` are what a call holds for them
    """

    path: str
    name: str
    attribute: str
    index: int | None
    given: tuple[Any, ...]
    values: tuple[Any, ...]
    place: int | None = None

    def applied(self, tensor: TensorSpec, value: Any) -> TensorSpec:
        """The tensor with one of the values; a new shape is laid out row-major.

        Raises ValueError where strides and shape have different lengths.
        """
        if self.index is not None:
            numbers = list(getattr(tensor, self.attribute))
            numbers[self.index] = value
            value = tuple(numbers)
        if self.attribute == "shape":
            return replace(tensor, shape=value, strides=row_major(value))
        return replace(tensor, **{self.attribute: value})


class Wrong(Exception):
    """What is wrong with an axis."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__(*faults)
        self.faults = faults


def read_axis(operation: Operation, call: Call, path: str, values: Sequence[Any] | Range) -> Axis:
    """An axis of a sweep around `call`; raises Wrong with every fault."""
    name, attribute, index = _parsed(operation, path)
    if isinstance(values, Range):
        values = _numbers(path, values)
    parts = Axis(path, name, attribute, index, tuple(values), ())
    if name == "target":
        read = [_target(value) for value in values]
    elif not attribute:
        read = [_argument(operation, name, value, {}, ()) for value in values]
    else:
        tensor = getattr(call, name)
        if not isinstance(tensor, TensorSpec):
            raise Wrong(_fault(path, f"{name} is absent from this call: describe it in arguments"))
        if index is not None and not -tensor.ndim <= index < tensor.ndim:
            raise Wrong(_fault(path, f"{name} has {tensor.ndim} dimensions"))
        if index is not None:
            parts = replace(parts, place=index % tensor.ndim)
        read = [
            (value, [])
            if index is not None and _is_size(value)
            else _attribute(operation, parts, tensor, value)
            for value in values
        ]
    faults = [
        Fault(pointer(("vary", path, place)) + inside, detail)
        for place, (_, wrong) in enumerate(read)
        for inside, detail in wrong
    ]
    if faults:
        raise Wrong(*faults)
    return replace(parts, values=tuple(value for value, _ in read))


def _parsed(operation: Operation, path: str) -> tuple[str, str, int | None]:
    found = _PATH.fullmatch(path)
    if found is None:
        raise Wrong(_fault(path, "write an argument, or argument.attribute, or argument.shape.0"))
    name, attribute, index = found[1], found[2] or "", found[3]
    signature = {parameter.name: parameter for parameter in operation.call.arguments()}
    if name not in signature and not (name == "target" and not attribute):
        raise Wrong(_fault(path, f"no argument of this name; the arguments are {', '.join(signature)}"))
    if attribute and not signature[name].is_tensor:
        raise Wrong(_fault(path, f"{name} is no tensor and has no attributes"))
    if attribute and attribute not in TENSOR_ATTRIBUTES:
        raise Wrong(_fault(path, f"a tensor's attributes are {', '.join(TENSOR_ATTRIBUTES)}"))
    if index is not None and attribute not in INDEXED:
        raise Wrong(_fault(path, f"only {' and '.join(INDEXED)} have a number behind them"))
    return name, attribute, None if index is None else int(index)


Read = tuple[Any, list[tuple[str, str]]]
"""A value, and its faults: a pointer within the value, and what is wrong."""


def _argument(
    operation: Operation, name: str, value: Any, around: Mapping[str, Any], inside: tuple[str | int, ...]
) -> Read:
    """`value` as the argument; of faults within it the pointer loses `inside`, where the value stands."""
    read, faults = read_arguments(operation.call, {name: {**around, **value} if around else value}, ())
    start = pointer((name, *inside))
    wrong = [
        (fault.pointer.removeprefix(start) if fault.pointer.startswith(start) else "", fault.detail)
        for fault in faults
    ]
    return read.get(name), wrong


def _attribute(operation: Operation, axis: Axis, tensor: TensorSpec, value: Any) -> Read:
    """`value` as the axis' attribute of a tensor."""
    around = {"shape": [1], "dtype": tensor.dtype.torch_name, **plain(tensor)}
    attribute, whole, inside = axis.attribute, value, (axis.attribute,)
    if axis.index is not None:
        place = axis.index % tensor.ndim
        whole = [*getattr(tensor, attribute)]
        whole[place] = value
        inside = (attribute, place)  # type: ignore[assignment]
    if attribute in INDEXED:
        around.pop("strides", None)
    if attribute == "strides" and isinstance(whole, list):
        around["shape"] = [1] * len(whole)  # their number is told apart, with the shape that they meet
    if whole is None and attribute != "values":
        return None, [("", f"{attribute} has a value")]
    read, wrong = _argument(operation, axis.name, {attribute: whole}, around, inside)
    if wrong:
        return None, wrong
    found = getattr(read, attribute)
    return (found if axis.index is None else found[axis.index]), wrong


def _is_size(value: Any) -> bool:
    """Whether a tensor may have it as a size or stride; reading a whole tensor takes far longer."""
    return type(value) is int and 0 <= value <= MAX_SIZE


def _target(value: Any) -> Read:
    try:
        return (None if value is None else Target.parse(value)), []
    except (TypeError, ValueError) as error:
        return None, [("", str(error) if isinstance(value, str) else "an architecture is a name: sm90")]


def _numbers(path: str, wanted: Range) -> range:
    numbers = range(wanted.start, wanted.stop + 1, wanted.step)
    # Not len(), which holds 64 bits.
    if not 0 < (wanted.stop - wanted.start) // wanted.step + 1 <= MAX_POINTS:
        detail = "holds no number" if not numbers else f"holds more than {MAX_POINTS:,} numbers"
        raise Wrong(_fault(path, f"the range {detail}"))
    return numbers


def _fault(path: str, detail: str) -> Fault:
    return Fault(pointer(("vary", path)), detail)


def clashes(axes: Sequence[Axis]) -> Iterator[Fault]:
    """Axes of which one sets what the other sets too."""
    for axis in axes[1:]:
        first = axes[0]
        same = axis.name == first.name and (
            not axis.attribute
            or not first.attribute
            or (axis.attribute == first.attribute and (None in (axis.index, first.index)))
            or (axis.attribute, axis.place) == (first.attribute, first.place)
        )
        if same:
            yield _fault(axis.path, f"varies what {first.path} varies already")
