"""Described tensors: layout facts equal torch's own, and both written forms read back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.dtypes import DType, Safetensors, Torch
from kernels.live import spec_of, torch_dtype
from kernels.spec import TensorSpec, row_major
from kernels.values import Arange, Full, Listed, Ones, Randint, Randn, Text, Zeros, bounds

shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@given(shapes)
def test_row_major_strides_are_those_of_torch(shape: tuple[int, ...]) -> None:
    assert row_major(shape) == torch.empty(shape).stride()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=4))
def test_contiguity_is_judged_as_torch_does(layout: list[tuple[int, int]]) -> None:
    shape, strides = tuple(size for size, _ in layout), tuple(stride for _, stride in layout)
    spec = TensorSpec(shape, DType.F32, strides)
    live = torch.empty(max(spec.extent, 1)).as_strided(shape, strides)
    assert spec.is_contiguous == live.is_contiguous()


@given(shapes, st.integers(0, 9), st.sampled_from(list(DType)), st.sampled_from(["cuda", "cuda:3", "cpu"]))
def test_the_compact_form_reads_back(shape: tuple[int, ...], offset: int, dtype: DType, device: str) -> None:
    for strides in ((), tuple(range(len(shape)))):
        spec = TensorSpec(shape, dtype, strides, offset, device)
        assert TensorSpec.parse(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("int32", "cannot read"),
        ("int32[16,14", "cannot read"),
        ("int32[-1]", "cannot read"),
        ("floaty[3]", "unknown dtype"),
        ("int32[3,4]:stride(1)", "1 strides for 2 dimensions"),
        ("int32[3]:colour(2)", "unknown tensor attribute"),
        ("int32[3,,4]", "expected whole numbers"),
        ("int32[" + "9" * 40 + "]", "expected whole numbers"),
    ],
)
def test_what_cannot_be_read_says_why(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TensorSpec.parse(text)


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype.in_torch])
def test_every_type_is_torchs_of_the_same_name_and_width(dtype: DType) -> None:
    live = torch_dtype(dtype)
    assert (str(live), live.itemsize) == (str(Torch(dtype)), dtype.itemsize)
    assert DType.parse(str(live)) is dtype
    assert DType.parse(str(Safetensors(dtype))) is dtype


def test_types_have_the_short_names_people_write() -> None:
    names = {
        "bf16": DType.BF16,
        "fp16": DType.F16,
        "fp32": DType.F32,
        "fp8_e4m3": DType.F8_E4M3FN,
        "U8": DType.U8,
    }
    assert {name: DType.parse(name) for name in names} == names


def test_a_live_view_is_described_with_its_strides_and_alignment() -> None:
    buffer = torch.empty(4, 512, dtype=torch.bfloat16)
    spec = spec_of(buffer[:, 256:])
    assert (spec.shape, spec.strides, spec.dtype, spec.device) == ((4, 256), (512, 1), DType.BF16, "cpu")
    assert (spec.offset - spec_of(buffer).offset) % 256 == 0


@given(st.integers(1, 40), st.integers(-3, 3), st.integers(-3, 3))
def test_bounds_are_those_of_the_elements(count: int, start: int, step: int) -> None:
    elements = [start + step * index for index in range(count)]
    assert bounds(Arange(start, step), (count,)) == (min(elements), max(elements))
    assert bounds(Listed((tuple(elements),)), (count,)) == (min(elements), max(elements))


def test_bounds_prove_nothing_about_normal_values_or_no_elements() -> None:
    assert bounds(Randn(), (3,)) is None
    assert bounds(Full(3), (0, 4)) is None
    assert bounds(Randint(2, 5), (1,)) == (2, 4)
    assert (bounds(Zeros(), (2,)), bounds(Ones(), (2,))) == ((0, 0), (1, 1))


def test_a_text_is_its_bytes_then_zeros() -> None:
    assert bounds(Text("abc"), (2,)) == (97, 98)
    assert bounds(Text("abc"), (3,)) == (97, 99)
    assert bounds(Text("abc"), (2**40,)) == (0, 99)
    assert bounds(Text(""), (1,)) == (0, 0)
