"""What converts a tensor for a fix gives the fix's own layout, and keeps the elements."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.converting import converted
from kernels.dtypes import DType
from kernels.live import spec_of, torch_dtype
from kernels.spec import TensorSpec, row_major
from kernels.values import Zeros


@pytest.mark.parametrize(
    ("before", "after", "expression"),
    [
        ("float64[4,256]", "bfloat16[4,256]", "x.to(torch.bfloat16)"),
        ("float16[4,256]:device(cpu)", "bfloat16[4,256]", 'x.to(torch.bfloat16).to(device="cuda")'),
        ("int32[2]:device(cpu)", "int32[2]", 'x.to(device="cuda")'),
        ("uint8[8,128]", "float8_e4m3fn[8,128]", "x.view(torch.float8_e4m3fn)"),
        ("float8_e8m0fnu[8,4]", "uint8[8,4]", "x.view(torch.uint8)"),
        ("float32[8,4]", "float8_e8m0fnu[8,4]", "x.to(torch.float8_e8m0fnu)"),
        ("bfloat16[4,256]:stride(512,2)", "bfloat16[4,256]", "x.contiguous()"),
        ("bfloat16[128,1,4]", "bfloat16[128,4]", "x.reshape(128, 4)"),
        ("float32[2,8]", "float32[8,2]:stride(1,8)", "x.t()"),
        ("float32[2,8]", "float32[8,2]", "x.t().contiguous()"),
        ("bfloat16[3]:offset(1)", "bfloat16[3]", "x.clone(memory_format=torch.contiguous_format)"),
        ("bfloat16[3,4]", "bfloat16[3,4]", None),
        ("bfloat16[3,4]", "bfloat16[3,5]", None),
        ("bfloat16[3,4]", "bfloat16[3,4]:offset(8)", None),
    ],
)
def test_what_is_written(before: str, after: str, expression: str | None) -> None:
    assert converted("x", TensorSpec.parse(before), TensorSpec.parse(after)) == expression


def test_rows_padded_to_a_wider_step_are_copied_into_memory_of_that_step() -> None:
    before, after = (
        TensorSpec.parse("bfloat16[3,5]:stride(7,1)"),
        TensorSpec.parse("bfloat16[3,5]:stride(8,1)"),
    )
    assert converted("x", before, after) == (
        'torch.empty_strided((3, 5), (8, 1), dtype=torch.bfloat16, device="cuda").copy_(x)'
    )


def test_other_elements_are_their_owners_to_say() -> None:
    spec = TensorSpec((4,), DType.I32)
    assert converted("x", spec, replace(spec, values=Zeros())) is None


SHAPES = st.sampled_from([(), (0,), (6,), (1, 6), (6, 1), (2, 3), (3, 2), (2, 1, 3), (4, 4), (0, 3)])
DTYPES = st.sampled_from([DType.F32, DType.BF16, DType.F16, DType.I32, DType.U8, DType.F8_E4M3FN])


@st.composite
def specs(draw: st.DrawFn) -> TensorSpec:
    shape = draw(SHAPES)
    wider = row_major(tuple(size + draw(st.integers(0, 2)) for size in shape))
    strides = draw(st.sampled_from([row_major(shape), wider, tuple(reversed(row_major(shape[::-1])))]))
    return TensorSpec(shape, draw(DTYPES), strides, draw(st.sampled_from([0, 0, 4])), "cpu")


@given(specs(), specs())
def test_every_expression_gives_the_layout_that_is_wanted(before: TensorSpec, after: TensorSpec) -> None:
    expression = converted("x", before, after)
    if expression is None:
        return
    memory = torch.arange(before.offset + before.extent).to(torch_dtype(before.dtype))
    x = memory.as_strided(before.shape, before.strides, before.offset)
    made = eval(expression, {"x": x, "torch": torch})  # noqa: S307 (our own expression)
    found = spec_of(made)
    assert (found.shape, found.dtype) == (after.shape, after.dtype)
    assert found.strides == after.strides or (made.numel() == 0 and found.is_contiguous)
    assert made.storage_offset() == 0
    if before.dtype is after.dtype:
        assert sorted(made.flatten().tolist()) == sorted(x.flatten().tolist())
        assert before.shape != after.shape or made.tolist() == x.tolist()
