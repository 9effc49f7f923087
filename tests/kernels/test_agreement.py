"""Level checks and the guarded function say the same of a call, whatever is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.call import Argument, Call
from kernels.checking import Severity, walk
from kernels.dtypes import DType
from kernels.registry import Operation, folder_of, operations
from kernels.spec import TensorSpec

LARGEST = 4 << 20
"""Bytes of a call's tensors that a test builds."""

SIZES = st.sampled_from([0, 1, 2, 3, 4, 5, 8, 16, 64, 128, 192, 256])
DTYPES = st.sampled_from([dtype for dtype in DType if dtype.in_torch])
SCALARS = st.sampled_from([0, 1, 2, 16, 64, 96, 128, 256, -1, 128.0, 0.5, True, False, None, "dense", "x"])
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


@pytest.mark.parametrize(
    "name", ["per_token_group_quant", "quanto_int8_checkpoint", "sparse_attn_v4_paged_decode"]
)
@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_checks_and_function_agree(interpreted: None, name: str, data: st.DataObject) -> None:
    operation = operations()[name]
    call = data.draw(mutated_calls(operation)).replace(target=None)  # no GPU here to be of that architecture
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
    from kernels.live import stated_devices
    from kernels.running import materialise

    runner = import_module(f"kernels.{folder_of(operation)}.op").RUNNERS[name]
    build = runner.build or materialise
    arguments = build(call, operation.fill(call), "cpu")
    with stated_devices({id(arguments[given]): tensor.device_index for given, tensor in call.tensors()}):
        raised = _raised(lambda: runner.function(**arguments))
    wanted = None if expected is None else (expected.raises, expected.text)
    assert raised == wanted, call


def _raised(function: Callable[[], object]) -> tuple[type[Exception], str] | None:
    """What the function raises, class and text."""
    try:
        function()
    except Exception as error:  # noqa: BLE001 (any exception is an answer here)
        return type(error), str(error)
    return None
