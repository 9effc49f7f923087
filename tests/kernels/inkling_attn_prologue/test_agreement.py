"""Random calls: the checks and the guarded function agree, and what passes every check runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.checking import Severity
from kernels.dtypes import DType
from kernels.inkling_attn_prologue.op import RUNNERS
from kernels.inkling_attn_prologue.signature import PrologueCall
from kernels.live import stated_devices
from kernels.running import materialise
from kernels.spec import TensorSpec
from kernels.values import Arange, Full, Listed, Ones, Randint, Zeros, seeded
from tests.kernels.inkling_attn_prologue.calls import KINDS

BUILT_LIMIT = 1 << 24
"""Bytes of a call's largest tensor."""

DTYPES = [dtype for dtype in DType if dtype.in_torch]
SIZES = st.sampled_from([0, 1, 2, 3, 4, 6, 8, 32, 64, 128, 256, 300])
SCALARS = st.sampled_from(
    [None, True, 0, 3, -128, 64, 100, 128, 256, 384, 512, 8192, 128.0, "256", "x", 2**70]
)
NUMBERS = st.sampled_from([-2, -1, 0, 1, 2, 3, 5, 8, 255, 256])
VALUES = st.one_of(
    st.just(Zeros()),
    st.just(Ones()),
    st.builds(Full, NUMBERS),
    st.builds(Arange, NUMBERS, st.sampled_from([0, 1, 2])),
    st.builds(Randint, st.sampled_from([-2, -1, 0]), st.sampled_from([1, 2, 3, 8, 9, 256])),
    st.builds(Listed, st.lists(NUMBERS, min_size=1, max_size=8).map(tuple)),
)


@st.composite
def changed(draw: Any, call: PrologueCall) -> PrologueCall:
    """The call with one argument changed in one way."""
    parameter = draw(st.sampled_from(call.arguments()))
    value = getattr(call, parameter.name)
    if not parameter.is_tensor:
        flags = st.sampled_from([True, False, None])
        return call.replace(**{parameter.name: draw(flags if parameter.kind is bool else SCALARS)})
    if value is None:
        shape = draw(st.sampled_from([(3,), (6,), (6, 1), (0,), ()]))
        value = TensorSpec(shape, draw(st.sampled_from([DType.BOOL, DType.I64, DType.F32])))
        return call.replace(**{parameter.name: value})
    assert isinstance(value, TensorSpec)
    match draw(st.sampled_from(["dtype", "shape", "strides", "offset", "values", "values", "device"])):
        case "dtype":
            value = replace(value, dtype=draw(st.sampled_from(DTYPES)))
        case "shape":
            shape = list(value.shape)
            if shape:
                shape[draw(st.integers(0, len(shape) - 1))] = draw(SIZES)
            value = replace(value, shape=tuple(shape[draw(st.integers(0, 1)) :]), strides=())
        case "strides":
            steps = st.sampled_from([0, 1, 2, 4, 8, 128, 136, 256, 512])
            value = replace(
                value, strides=tuple(draw(steps) if draw(st.booleans()) else s for s in value.strides)
            )
        case "offset":
            value = replace(value, offset=draw(st.sampled_from([1, 4, 8])))
        case "values":
            value = replace(value, values=draw(VALUES))
        case "device":
            value = replace(value, device=draw(st.sampled_from(["cuda", "cuda:1", "cpu"])))
    return call.replace(**{parameter.name: value})


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
def test_checks_and_the_guarded_function_agree(kind: str, data: st.DataObject) -> None:
    operation = KINDS[kind]
    call = operation.valid
    assert isinstance(call, PrologueCall)
    if data.draw(st.booleans()):
        call = call.quantized()
    for _ in range(data.draw(st.integers(1, 3))):
        call = data.draw(changed(call))
    if max(tensor.storage_bytes for _, tensor in call.tensors()) > BUILT_LIMIT:
        return
    examination = operation.examine(call)
    for outcome in examination.failed():
        for occurrence in outcome.occurrences:
            assert occurrence.violation.explain()
            for fix in occurrence.violation.fixes(occurrence.subject):
                operation.examine(fix.call)
    found = [outcome.occurrences[0].violation for outcome in examination.failed()]
    if examination.raised is None and any(violation.category == "values" for violation in found):
        return  # the guard does not read elements, and running would leave a buffer

    errors = (violation for violation in found if violation.severity is Severity.ERROR)
    predicted = examination.raised or next(errors, None)
    live = materialise(call, seeded(operation.fill(call), 1), "cpu")
    raised: Exception | None = None
    with stated_devices({id(live[name]): tensor.device_index for name, tensor in call.tensors()}):
        try:
            RUNNERS[operation.name].function(**live)
        except Exception as error:  # noqa: BLE001 (whatever the function raises is compared)
            raised = error
    if predicted is None:
        assert raised is None
    else:
        assert (type(raised), str(raised)) == (predicted.raises, predicted.text)
