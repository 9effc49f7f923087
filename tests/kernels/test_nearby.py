"""Of every call is said what `examine` says of it alone, whatever was examined before."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.calls import calls, changed
from kernels.call import Call, argument
from kernels.checking import Check, Severity
from kernels.dtypes import DType
from kernels.examining import Ruling
from kernels.nearby import BEFORE, FAR, MOST_FORMS, Nearby
from kernels.registry import Operation, operations
from kernels.spec import TensorSpec
from kernels.values import Full

QUANT = operations()["per_token_group_quant"]


def same_as_alone(operation: Operation, calls: Iterable[Any]) -> None:
    """Each call twice in a row, so that anchors are made; by both ways of asking."""
    nearby, ruling = (Nearby(operation.stages, operation.call) for _ in range(2))
    for call in calls:
        alone = operation.examine(call)
        assert repr(nearby.examine(call)) == repr(alone)
        short, whole = ruling.rule(call), Ruling.of(alone)
        assert repr(short.raised) == repr(whole.raised)
        assert short.raised is not None or short.failed == whole.failed
        assert (short.rules is not None) == alone.rejected


@pytest.mark.parametrize("name", list(operations()))
def test_examples_of_every_check_one_after_another(name: str) -> None:
    operation = operations()[name]
    examples = [example for check in operation.checks if (example := check.example()) is not None]
    valid = [operation.valid] * BEFORE
    same_as_alone(operation, [*valid, *examples, *valid, *reversed(examples)])


@pytest.mark.parametrize("name", list(operations()))
def test_drawn_calls_and_their_neighbours(name: str) -> None:
    operation, random = operations()[name], Random(name)
    drawn = islice(calls(operation, 31), 40)
    neighbours = (changed(call, random) if turn else call for call in drawn for turn in range(10))
    same_as_alone(operation, (call for call in neighbours if call.describable))


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
    drawn = st.builds(
        lambda first, second: valid.replace(**{one: first, two: second}),
        tensors(getattr(valid, one)),
        tensors(getattr(valid, two)),
    )
    same_as_alone(operation, [valid] * BEFORE + data.draw(st.lists(drawn, min_size=2, max_size=8)))


@pytest.mark.parametrize("size", [0, 1, 1.0, True, "1", 128, 128.0, None])
def test_equal_values_of_other_types_are_other_calls(size: Any) -> None:
    sizes = [1, 1.0, True, 128, size, 128.0, 0, False, 0.0, size]
    without = QUANT.valid.without("output_q", "output_s")
    bases = (QUANT.valid, without)
    same_as_alone(QUANT, [base.replace(group_size=item) for item in sizes * 2 for base in bases])


def test_outputs_that_only_some_calls_have_allocated() -> None:
    valid = QUANT.valid
    several = [valid, valid.without("output_s"), valid.without("output_q", "output_s"), valid]
    same_as_alone(QUANT, [call.replace(group_size=size) for size in (128, 64, 3, 0) * 3 for call in several])


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


def test_only_what_reads_the_difference_is_evaluated() -> None:
    nearby = Nearby((SecondIsRead,), SumCall)
    for _ in range(BEFORE):
        nearby.examine(SumCall(5, 0, None))
    SecondIsRead.evaluations = 0
    assert not any(nearby.examine(SumCall(5, two, None)).rejected for two in range(10))
    assert SecondIsRead.evaluations == 0
    assert nearby.examine(SumCall(7, 3, None)).rejected
    assert not nearby.examine(SumCall(7, 0, None)).rejected


def test_attributes_of_a_tensor_are_read_apart() -> None:
    nearby = Nearby((SecondIsRead,), SumCall)
    for _ in range(BEFORE):
        nearby.examine(SumCall(tensor=TensorSpec((1,), DType.F16)))
    SecondIsRead.evaluations = 0
    assert not any(nearby.examine(SumCall(tensor=TensorSpec((n,), DType.F16))).rejected for n in range(20))
    assert SecondIsRead.evaluations == 0
    assert nearby.examine(SumCall(tensor=TensorSpec((1,), DType.BF16))).rejected


def test_fields_are_the_calls_own() -> None:
    nearby = Nearby(QUANT.stages, QUANT.call)
    before = dataclasses.asdict(QUANT.valid)
    for _ in range(BEFORE):
        nearby.examine(QUANT.valid)
    nearby.examine(QUANT.valid.replace(group_size=3))
    assert dataclasses.asdict(QUANT.valid) == before


def test_calls_far_from_their_anchor_get_one_of_their_own() -> None:
    valid = QUANT.valid
    far = [valid.with_tensor("input", shape=(2, 4, 256 + size)) for size in range(FAR + 2)]
    same_as_alone(QUANT, [*[valid] * BEFORE, *far, valid])


def test_anchors_are_bounded() -> None:
    nearby = Nearby(QUANT.stages, QUANT.call)
    optional = [item.name for item in QUANT.call.arguments() if not item.required]
    for number in range(1 << 6):
        absent = {name: None for place, name in enumerate(optional[:6]) if number >> place & 1}
        nearby.examine(QUANT.valid.replace(**absent))
    assert len(nearby._forms) == MOST_FORMS
