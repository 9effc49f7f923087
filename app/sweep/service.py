"""A sweep: every point is the call that POST /api/diagnose would examine for its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from time import thread_time
from typing import Any

from pydantic import TypeAdapter

from app.diagnose.completing import complete
from app.diagnose.questions import read_call
from app.diagnose.schemas import RaisedModel
from app.errors import ContentTooLarge, Fault, InvalidRequest
from app.http.bodies import invalid, load_json, pointer
from app.sweep.axes import Axis, Wrong, clashes, read_axis
from app.sweep.regions import regions
from app.sweep.schemas import MAX_POINTS, ExtentModel, PointModel, RegionModel, SweepModel, SweepRequest
from catalog import current
from catalog.store import load_catalog
from kernels.call import Call
from kernels.checking import Check
from kernels.examining import Ruling
from kernels.nearby import Nearby
from kernels.registry import Operation
from kernels.target import Target

_REQUEST = TypeAdapter(SweepRequest)

MAX_SECONDS = 20.0
"""Processor time of one sweep: a call with thousands of layers takes long at each of its points."""

Given = Mapping[str, Any]


def sweep(body: bytes) -> SweepModel:
    """The answer to a request's body; InvalidRequest lists every fault, NotFound an unknown operation,
    ContentTooLarge what would take too many points or too long.
    """
    operation, given, assumed, axes = _read(load_json(body))
    count = 1
    for axis in axes:
        count *= len(axis.values)
    if count > MAX_POINTS:
        detail = f"{count:,} combinations, and a sweep has at most {MAX_POINTS:,}"
        raise ContentTooLarge(f"The request asks for {detail}.", faults=[Fault("/vary", detail)])
    combinations = list(product(*(range(len(axis.values)) for axis in axes)))
    points = _points(operation, given, axes, combinations)
    width = len(axes[-1].values)
    return SweepModel(
        operation=operation.name,
        points=points,
        regions=list(_regions(axes, points, width)),
        passing=sum(point.passes for point in points),
        assumed=list(assumed),
        dataset_version=current.version(),
    )


def _read(value: Any) -> tuple[Operation, dict[str, Any], tuple[str, ...], list[Axis]]:
    envelope, operation, given = read_call(value, _REQUEST)
    target = None if envelope.target is None else Target.parse(envelope.target)
    call, assumed = complete(operation, given, target)
    if target is not None:
        given["target"] = target
    axes = []
    faults: list[Fault] = []
    for path, values in envelope.vary.items():
        try:
            axes.append(read_axis(operation, call, path, values))
        except Wrong as wrong:
            faults += wrong.faults
    faults += clashes(axes)
    if faults:
        raise invalid([], value, faults)
    varied = {axis.name for axis in axes if not axis.attribute}
    told = [sentence for sentence in assumed if sentence.partition(" = ")[0] not in varied]
    for axis in axes:
        tensor = getattr(call, axis.name, None)
        if axis.attribute == "shape" and tensor is not None and not tensor.is_default:
            told.append(f"{axis.name} is laid out row-major in every shape of it")
    return operation, given, tuple(told), axes


def _points(
    operation: Operation, given: Given, axes: list[Axis], combinations: list[tuple[int, ...]]
) -> list[PointModel]:
    nearby = Nearby(operation.stages, operation.call)
    calls = _Calls(operation, given, axes)
    until = thread_time() + MAX_SECONDS
    points = []
    for done, places in enumerate(combinations):
        if thread_time() > until:
            detail = f"{done:,} of {len(combinations):,} points took {MAX_SECONDS:g} s, the most of a sweep"
            raise ContentTooLarge(f"{detail}.", faults=[Fault("/vary", detail)])
        ruling = nearby.rule(calls.at(places))
        raised = None if ruling.raised is None else _raised(operation, ruling.raised)
        values = {axis.path: axis.given[place] for axis, place in zip(axes, places, strict=True)}
        points.append(_point(values, ruling, raised))
    return points


def _raised(operation: Operation, violation: Check[Any]) -> RaisedModel:
    check = type(violation)
    return RaisedModel(
        error_class=check.raises.__name__,
        message=violation.text,
        record_id=load_catalog().record_id_of(operation, check),
        at_check=check.id(),
    )


def _point(values: dict[str, Any], ruling: Ruling, raised: RaisedModel | None) -> PointModel:
    rules: type[Check[Any]] | None = ruling.rules
    return PointModel(
        values=values,
        passes=rules is None,
        raised=raised,
        ruled_by=None if rules is None else rules.id(),
        warnings=[check.id() for check in ruling.warnings],
    )


class _Calls:
    """The calls of a sweep: what is varied put into the arguments given, the rest fitted to them."""

    def __init__(self, operation: Operation, given: Given, axes: list[Axis]) -> None:
        self._operation, self._given = operation, given
        # A tensor's strides are those of its new shape, so they come after it.
        order = sorted(range(len(axes)), key=lambda at: axes[at].attribute == "strides")
        late = {at for at in order if axes[at].attribute and axes[at].name not in given}
        varied = {axes[at].name for at in order if not axes[at].attribute}
        self._early = [(at, axes[at]) for at in order if at not in late or axes[at].name in varied]
        self._late = [(at, axes[at]) for at in order if at in late and axes[at].name not in varied]
        self._fitted: tuple[list[int], Call] | None = None

    def at(self, places: tuple[int, ...]) -> Call:
        """The call of a point."""
        arguments = dict(self._given)
        self._put(arguments, self._early, places)
        if self._late:
            fitted = self._around(arguments, places)
            for _, axis in self._late:
                arguments.setdefault(axis.name, getattr(fitted, axis.name))
            self._put(arguments, self._late, places)
        return self._operation.fit(arguments)

    def _put(self, arguments: dict[str, Any], axes: list[tuple[int, Axis]], places: tuple[int, ...]) -> None:
        for at, axis in axes:
            if axis.attribute:
                arguments[axis.name] = _applied(axis, arguments[axis.name], places[at])
            else:
                arguments[axis.name] = axis.values[places[at]]

    def _around(self, arguments: dict[str, Any], places: tuple[int, ...]) -> Call:
        """The call before the axes whose tensors were not given; neighbours mostly share it."""
        early = [places[at] for at, _ in self._early]
        if self._fitted is None or self._fitted[0] != early:
            self._fitted = early, self._operation.fit(arguments)
        return self._fitted[1]


def _applied(axis: Axis, tensor: Any, place: int) -> Any:
    try:
        return axis.applied(tensor, axis.values[place])
    except ValueError as error:
        fault = Fault(pointer(("vary", axis.path, place)), f"{error} of {axis.name}")
        raise InvalidRequest("The values do not fit each other.", faults=[fault]) from None


def _regions(axes: list[Axis], points: list[PointModel], width: int) -> Iterator[RegionModel]:
    for region in regions([point.ruled_by for point in points], width):
        spans = (region.rows, region.columns)[-len(axes) :]
        ruled_by = points[region.rows[0] * width + region.columns[0]].ruled_by
        yield RegionModel(
            passes=ruled_by is None,
            ruled_by=ruled_by,
            points=(region.rows[1] - region.rows[0]) * (region.columns[1] - region.columns[0]),
            values={
                axis.path: ExtentModel(first=axis.given[begin], last=axis.given[end - 1], count=end - begin)
                for axis, (begin, end) in zip(axes, spans, strict=True)
            },
        )
