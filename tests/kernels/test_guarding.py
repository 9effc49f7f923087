"""Writes where nothing may be written are seen, whatever the layout; those of the elements are not."""

from __future__ import annotations

import pytest
import torch

from kernels.dtypes import DType
from kernels.guarding import GUARD, POISON, Allocating, Watch, elements, guarded, unwritten
from kernels.running import build_tensor
from kernels.spec import TensorSpec
from kernels.values import Ones

LAYOUTS = [
    TensorSpec((4, 6), DType.F32),
    TensorSpec((4, 6), DType.BF16, (16, 1)),
    TensorSpec((4, 6), DType.F8_E4M3FN, (1, 8), 3),
    TensorSpec((3, 2, 5), DType.I64, (20, 10, 2), 1),
    TensorSpec((), DType.F16),
    TensorSpec((0, 4), DType.F32),
]


@pytest.mark.parametrize("spec", LAYOUTS, ids=str)
def test_writing_every_element_is_no_breach(spec: TensorSpec) -> None:
    tensor = build_tensor(spec, Ones(), "cpu")
    watch = Watch({"out": tensor}, ["out"])
    tensor.view(torch.uint8).fill_(1) if spec.dtype is DType.F8_E4M3FN else tensor.fill_(2)
    assert watch.breaches() == ()
    assert int(elements(tensor).sum()) == tensor.numel() * tensor.element_size()


@pytest.mark.parametrize("spec", [spec for spec in LAYOUTS if spec.numel], ids=str)
@pytest.mark.parametrize("distance", [-GUARD, -1, 0, GUARD - 1])
def test_bytes_around_a_tensor_are_watched(spec: TensorSpec, distance: int) -> None:
    tensor = build_tensor(spec, Ones(), "cpu")
    watch = Watch({"out": tensor}, ["out"])
    raw = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    size = tensor.element_size()
    end = spec.storage_bytes - spec.offset * size
    place = distance if distance < 0 else end + distance
    raw[tensor.storage_offset() * size + place] = 0
    [breach] = watch.breaches()
    assert (breach.tensor, breach.count, breach.first) == ("out", 1, place)
    assert breach.where == "outside"


def test_a_gap_between_rows_and_an_input_are_watched() -> None:
    spec = TensorSpec((4, 6), DType.F32, (8, 1))
    out, source = build_tensor(spec, Ones(), "cpu"), build_tensor(spec, Ones(), "cpu")
    watch = Watch({"out": out, "source": source}, ["out"])
    out.as_strided((1,), (1,), out.storage_offset() + 6).fill_(9)
    source[1, 2] = 9
    gap, element = watch.breaches()
    assert (gap.tensor, gap.where, gap.first) == ("out", "between the elements", 6 * 4)
    assert (element.tensor, element.where) == ("source", "that are elements")
    assert "source" in str(element)


def test_allocations_are_poisoned_and_guarded() -> None:
    with Allocating() as allocating:
        first, second = torch.empty(3, 5), torch.empty_strided((2, 3), (1, 4), dtype=torch.bfloat16)
        filled = torch.zeros(4)
    assert len(allocating.made) == 2
    assert first.shape == (3, 5)
    assert second.stride() == (1, 4)
    assert bool((first.view(torch.uint8) == POISON).all())
    assert bool((filled == 0).all())
    assert list(allocating.breaches({})) == []
    first.fill_(1)
    second.fill_(1)
    assert list(allocating.breaches({})) == []
    first.as_strided((1,), (1,), first.storage_offset() + 15).fill_(0)
    [breach] = allocating.breaches({first.data_ptr(): "out"})
    assert (breach.tensor, breach.first) == ("out", 15 * 4)


def test_unwritten_elements_are_counted() -> None:
    actual = guarded(16, "cpu").view(torch.float32)
    actual[:3] = 1
    expected = torch.tensor([1.0, 1, 1, 1])
    assert unwritten(actual, expected) == 1
    expected.view(torch.uint8)[12:] = POISON
    assert unwritten(actual, expected) == 0


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec((), DType.F32),
        TensorSpec((1,), DType.F32, (4,)),
        TensorSpec((0,), DType.F32),
        TensorSpec((2, 3), DType.F32),
        TensorSpec((4, 1), DType.F32, (1, 4)),
        TensorSpec((1, 1), DType.F32, (4, 4)),
    ],
    ids=str,
)
def test_unwritten_elements_of_any_layout_are_counted(spec: TensorSpec) -> None:
    assert unwritten(build_tensor(spec, None, "cpu"), torch.ones(spec.shape)) == spec.numel
    assert unwritten(build_tensor(spec, Ones(), "cpu"), torch.ones(spec.shape)) == 0
