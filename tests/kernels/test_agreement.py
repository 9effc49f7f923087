"""Level checks and the guarded function say the same of a call, whatever is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.call import Argument, Call
from kernels.checking import Severity
from kernels.checkpoint import Checkpoint
from kernels.dtypes import DType
from kernels.examining import walk
from kernels.registry import Operation, folder_of, operations
from kernels.safetensors_file.file_start import FileStart
from kernels.shards import Shards
from kernels.spec import TensorSpec

LARGEST = 4 << 20
"""Bytes of a call's tensors that a test builds."""

SIZES = st.sampled_from([0, 1, 2, 3, 4, 5, 8, 16, 64, 128, 192, 256])
DTYPES = st.sampled_from([dtype for dtype in DType if dtype.in_torch])
SCALARS = st.sampled_from([0, 1, 2, 16, 64, 96, 128, 256, -1, 128.0, 0.5, True, False, None, "dense", "x"])
STORED = st.sampled_from([dtype.safetensors for dtype in DType if dtype.in_torch and dtype.safetensors])
DEVICES = st.sampled_from(["cuda", "cuda:1", "cpu"])


@st.composite
def mutated_tensors(draw: st.DrawFn, spec: TensorSpec) -> TensorSpec:
    """One tensor with one attribute changed."""
    match draw(st.sampled_from(["dtype", "size", "shape", "strides", "offset", "device"])):
        case "dtype":
            return TensorSpec(spec.shape, draw(DTYPES), spec.strides, spec.offset, spec.device)
        case "size" if spec.ndim:
            shape = list(spec.shape)
            shape[draw(st.integers(0, spec.ndim - 1))] = draw(SIZES)
            return TensorSpec(tuple(shape), spec.dtype, device=spec.device)
        case "strides" if spec.ndim:
            strides = list(spec.strides)
            strides[draw(st.integers(0, spec.ndim - 1))] = draw(SIZES)
            return TensorSpec(spec.shape, spec.dtype, tuple(strides), spec.offset, spec.device)
        case "offset":
            return TensorSpec(spec.shape, spec.dtype, spec.strides, draw(st.integers(1, 40)), spec.device)
        case "device":
            return TensorSpec(spec.shape, spec.dtype, spec.strides, spec.offset, draw(DEVICES))
        case _:
            shape = draw(st.lists(SIZES, max_size=4))
            return TensorSpec(tuple(shape), spec.dtype, device=spec.device)


@st.composite
def mutated_files(draw: st.DrawFn, file: Checkpoint) -> Checkpoint:
    """One entry of a checkpoint's header changed: a tensor's type or shape, its name, its metadata."""
    if not file.tensors:
        return file
    name = draw(st.sampled_from(list(file.tensors)))
    header = file.tensors[name]
    match draw(st.sampled_from(["dtype", "size", "shape", "without", "name", "metadata"])):
        case "dtype":
            return file.with_tensor(name, replace(header, dtype=draw(STORED)))
        case "size" if header.shape:
            shape = list(header.shape)
            shape[draw(st.integers(0, len(shape) - 1))] = draw(SIZES)
            return file.with_tensor(name, replace(header, shape=tuple(shape)))
        case "shape":
            shape = draw(st.lists(SIZES, max_size=3))
            return file.with_tensor(name, replace(header, shape=tuple(shape)))
        case "name":
            return file.without_tensors(name).with_tensor(f"other.{name}", header)
        case "metadata" if file.metadata:
            key = draw(st.sampled_from(list(file.metadata)))
            return file.with_metadata(
                key, draw(st.sampled_from(["", "{}", "[1]", "mxfp8", "quanto", "e30="]))
            )
        case _:
            return file.without_tensors(name)


@st.composite
def mutated_starts(draw: st.DrawFn, start: FileStart) -> FileStart:
    """The beginning of a file with some bytes replaced, or cut."""
    at = draw(st.integers(0, len(start.data)))
    data = start.data[:at] + draw(st.binary(max_size=4)) + start.data[at + draw(st.integers(0, 4)) :]
    return FileStart(data, len(data))


@st.composite
def mutated_calls(draw: st.DrawFn, operation: Operation) -> Call:
    """A call that passes, or an example that does not, with up to three arguments changed."""
    examples = [check.example() for check in operation.checks]
    call = draw(st.sampled_from([operation.valid, *(example for example in examples if example is not None)]))
    for _ in range(draw(st.integers(0, 3))):
        parameter = draw(st.sampled_from(operation.call.arguments()))
        call = call.replace(**{parameter.name: draw(_value(parameter, getattr(call, parameter.name)))})
    return call


def _value(parameter: Argument, value: Any) -> st.SearchStrategy[Any]:
    if parameter.is_tensor:
        present = value if value is not None else TensorSpec((4,), DType.I32)
        changed = mutated_tensors(present)
        return st.one_of(changed, st.none()) if parameter.nullable else changed
    if parameter.kind is DType:
        return st.one_of(st.none(), DTYPES)
    if isinstance(value, Checkpoint):
        return mutated_files(value)
    if isinstance(value, FileStart):
        return mutated_starts(value)
    return SCALARS if parameter.kind in (int, float, bool, str) else st.just(value)


@pytest.mark.parametrize("name", list(operations()))
@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_is_described_is_examined_and_its_fixes_are_calls(name: str, data: st.DataObject) -> None:
    operation = operations()[name]
    call = data.draw(mutated_calls(operation))
    for outcome in operation.examine(call).failed():
        for occurrence in outcome.occurrences:
            assert occurrence.violation.explain()
            assert occurrence.violation.describe_actual(occurrence.subject) is not None
            for fix in occurrence.violation.fixes(occurrence.subject):
                operation.examine(fix.call)


@pytest.mark.parametrize("name", [name for name, found in operations().items() if not found.needs])
@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_checks_and_function_agree(interpreted: None, name: str, data: st.DataObject) -> None:
    operation = operations()[name]
    call = real(data.draw(mutated_calls(operation)))
    if sum(tensor.storage_bytes for _, tensor in call.tensors()) > LARGEST:
        return
    expected = next(
        (
            event.violations[0]
            for event in walk(operation.stages, call, values=False)
            if event.violations and event.check.severity is Severity.ERROR
        ),
        None,
    )
    if expected is None and operation.examine(call).rejected:
        return  # values that live tensors are not read for; a described call is refused before it runs
    if not built(call):
        return
    from kernels.live import stated_devices
    from kernels.running import materialise

    runner = import_module(f"kernels.{folder_of(operation)}.op").RUNNERS[name]
    build = runner.build or materialise
    arguments = build(call, operation.fill(call), "cpu")
    with stated_devices({id(arguments[given]): tensor.device_index for given, tensor in call.tensors()}):
        raised = _raised(lambda: runner.function(**arguments))
    wanted = None if expected is None else (expected.raises.__name__, expected.text)
    assert raised == wanted, call


def real(call: Call) -> Call:
    """The call as it can be made here: for no GPU's architecture, and on files that are whole."""
    starts = {name: value for name, value in call.stated() if isinstance(value, FileStart)}
    whole = {
        name: FileStart(start.data, len(start.data)) for name, start in starts.items() if start.size is None
    }
    return call.replace(target=None, **whole)


def built(call: Call) -> bool:
    """Whether the library writes such a file from Python at all: not one of 6-bit elements, of 4-bit ones in
    odd rows, of texts as elements, or of more bytes than a test is to write.
    """
    for _, value in call.stated():
        if isinstance(value, FileStart) and (value.size or 0) > LARGEST:
            return False
        for file in (
            [value]
            if isinstance(value, Checkpoint)
            else (value or {}).values()
            if isinstance(value, Shards)
            else []
        ):
            for header in file.tensors.values():
                if header.dtype.startswith("F6") or header.dtype == "F4" or header.nbytes > LARGEST:
                    return False
    return True


def _raised(function: Callable[[], object]) -> tuple[str, str] | None:
    """What the function raises, class and text."""
    try:
        function()
    except Exception as error:  # noqa: BLE001 (any exception is an answer here)
        return type(error).__name__, str(error)
    return None
