"""Shared examination says of every call what `examine` says of it alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.call import Call, argument
from kernels.checking import Check, Severity
from kernels.dtypes import DType
from kernels.registry import Operation, operations
from kernels.sharing import SAMPLE, WARM, SharedChecks
from kernels.spec import TensorSpec
from kernels.values import Full

QUANT = operations()["per_token_group_quant"]


def same_as_alone(operation: Operation, calls: list[Any]) -> None:
    shared = SharedChecks(operation.stages, operation.call)
    for call in calls:
        together, alone = shared.examine(call), operation.examine(call)
        if alone.raised is None:
            assert together.failed == tuple(outcome.check for outcome in alone.failed())
        assert (together.rules is not None) == alone.rejected
        assert type(together.raised) is type(alone.raised)
        if alone.raised is not None and together.raised is not None:
            assert together.raised.text == alone.raised.text
            assert together.raised.explain() == alone.raised.explain()


@pytest.mark.parametrize("name", list(operations()))
def test_examples_of_every_check_one_after_another(name: str) -> None:
    operation = operations()[name]
    examples = [example for check in operation.checks if (example := check.example()) is not None]
    same_as_alone(operation, [operation.valid, *examples, operation.valid, *reversed(examples)])


def tensors(spec: TensorSpec) -> st.SearchStrategy[TensorSpec]:
    sizes = st.sampled_from(sorted({0, 1, 3, *spec.shape, *(2 * size for size in spec.shape)}))
    return st.builds(
        lambda shape, dtype, strides, values: TensorSpec(shape, dtype, strides, values=values),
        st.tuples(*[sizes for _ in spec.shape]),
        st.sampled_from(list(DType)),
        st.one_of(st.just(()), st.tuples(*[sizes for _ in spec.shape])),
        st.sampled_from([None, Full(1), Full(1.0), Full(True)]),
    )


@pytest.mark.parametrize("name", ["per_token_group_quant", "sparse_attn_v4_paged_decode"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_drawn_calls(name: str, data: st.DataObject) -> None:
    operation = operations()[name]
    valid = operation.valid
    one, two = (data.draw(st.sampled_from([name for name, _ in valid.tensors()])) for _ in range(2))
    calls = st.builds(
        lambda first, second: valid.replace(**{one: first, two: second}),
        tensors(getattr(valid, one)),
        tensors(getattr(valid, two)),
    )
    same_as_alone(operation, data.draw(st.lists(calls, min_size=2, max_size=8)))


@pytest.mark.parametrize("size", [0, 1, 1.0, True, "1", 128, 128.0, None])
def test_equal_values_of_other_types_are_other_calls(size: Any) -> None:
    sizes = [1, 1.0, True, 128, size, 128.0, 0, False, 0.0, size]
    without = QUANT.valid.without("output_q", "output_s")
    same_as_alone(QUANT, [base.replace(group_size=item) for item in sizes for base in (QUANT.valid, without)])


def test_outputs_that_only_some_calls_have_allocated() -> None:
    valid = QUANT.valid
    calls = [valid, valid.without("output_s"), valid.without("output_q", "output_s"), valid]
    same_as_alone(QUANT, [call.replace(group_size=size) for size in (128, 64, 3, 0) for call in calls])


@dataclass(frozen=True)
class SumCall(Call):
    """Two numbers, and a tensor."""

    one: int = argument("a number", default=1)
    two: int = argument("a number", default=1)
    tensor: TensorSpec | None = argument("a tensor", default=None)


@dataclass(frozen=True)
class SecondIsRead(Check[SumCall]):
    """Reads `two` only where `one` is 7, and of the tensor the element type."""

    raises = ValueError
    reason = "the second is {got}"
    requires = "a second of 0"
    category = "values"
    severity = Severity.ERROR
    got: int

    evaluations = 0

    @classmethod
    def find(cls, call: SumCall, /) -> Iterator[Self]:
        cls.evaluations += 1
        if call.one == 7 and call.two:
            yield cls(call.two)
        if call.tensor is not None and call.tensor.dtype is DType.BF16:
            yield cls(0)


def test_a_check_is_evaluated_once_for_what_it_cannot_tell_apart() -> None:
    shared = SharedChecks((SecondIsRead,), SumCall)
    SecondIsRead.evaluations = 0
    grid = [SumCall(one, two) for one in range(5, 10) for two in range(10)]
    rulings = [shared.examine(call) for call in grid]
    assert [ruling.rules is SecondIsRead for ruling in rulings] == [c.one == 7 and c.two > 0 for c in grid]
    # Of the first call nothing is known to move, of the next ones only `two`: 1 + 1, then one for each `one`
    # from the first that moves on, and ten where it is 7.
    assert SecondIsRead.evaluations <= 1 + 1 + 4 + 10


def test_attributes_of_a_tensor_are_read_apart() -> None:
    shared = SharedChecks((SecondIsRead,), SumCall)
    SecondIsRead.evaluations = 0
    for size in range(20):
        for dtype in (DType.F16, DType.BF16):
            call = SumCall(tensor=TensorSpec((size,), dtype))
            assert (shared.examine(call).rules is SecondIsRead) == (dtype is DType.BF16)
    assert SecondIsRead.evaluations <= 4


def test_fields_are_the_calls_own() -> None:
    shared = SharedChecks(QUANT.stages, QUANT.call)
    before = dataclasses.asdict(QUANT.valid)
    shared.examine(QUANT.valid)
    shared.examine(QUANT.valid.replace(group_size=3))
    assert dataclasses.asdict(QUANT.valid) == before


def test_many_calls_that_share_nothing_are_ruled_as_each_alone() -> None:
    """Beyond the calls after which the quicker way is chosen, whichever that is."""
    base = QUANT.valid.without("output_q", "output_s")
    widths = range(8, WARM + 3 * SAMPLE)
    calls = [base.with_tensor("input", shape=(4, width)) for width in widths]
    same_as_alone(QUANT, calls)
