"""What the operation refuses, with the class and text that upstream answers, and what it takes."""

from __future__ import annotations

from typing import Any

import pytest

from kernels.call import Call
from kernels.checking import Status
from kernels.dtypes import DType
from kernels.per_token_group_quant.signature import MASKED, VALID, QuantCall
from kernels.registry import operations
from kernels.spec import TensorSpec

OPERATION = operations()["per_token_group_quant"]
CUH = "python/sglang/kernels/jit/csrc/gemm/per_token_group_quant.cuh"


def call(**arguments: Any) -> QuantCall:
    """A call from compact tensor texts; the input is bfloat16 [4, 256] unless given."""
    read = {
        name: TensorSpec.parse(value) if isinstance(value, str) and "[" in value else value
        for name, value in {"input": "bf16[4,256]", **arguments}.items()
    }
    return QuantCall(**read)


def buffers(input: str, codes: str, scales: str, **others: Any) -> QuantCall:  # noqa: A002 (the argument's name)
    return call(input=input, output_q=codes, output_s=scales, **others)


REFUSED = {
    "packed scales without UE8M0": (
        buffers("bf16[4,256]", "fp8[4,256]", "int32[4,1]"),
        ValueError,
        "int32-packed scale buffers require scale_ue8m0=True",
    ),
    "UE8M0 with float scales": (
        buffers("bf16[4,256]", "fp8[4,256]", "float32[4,2]", scale_ue8m0=True),
        ValueError,
        "scale_ue8m0=True requires an int32-packed output_s",
    ),
    "half-precision scales": (
        buffers("bf16[4,256]", "fp8[4,256]", "float16[4,2]"),
        ValueError,
        "Unsupported output_s dtype torch.float16",
    ),
    "group size 96": (call(group_size=96), AssertionError, ""),
    "double input": (call(input="float64[4,256]"), AssertionError, ""),
    "codes alone": (call(output_q="fp8[4,256]"), AssertionError, ""),
    "scales alone": (call(output_s="float32[4,2]"), AssertionError, ""),
    "ragged groups": (call(input="bf16[4,192]"), RuntimeError, f"Failed at {CUH}:506: "),
    "SiLU of a single-width input": (
        buffers("bf16[4,256]", "fp8[4,256]", "float32[4,2]", fuse_silu_and_mul=True),
        RuntimeError,
        f"Failed at {CUH}:507: ",
    ),
    "too many scale columns": (
        buffers("bf16[4,256]", "fp8[4,256]", "float32[4,3]"),
        RuntimeError,
        f"Failed at {CUH}:508: ",
    ),
    "a mask of complex numbers": (
        MASKED.with_dtype("masked_m", DType.C64),
        ValueError,
        "DLDataType contains unknown type_code=5",
    ),
    "a mask of complex numbers, of two dimensions": (
        MASKED.with_tensor("masked_m", shape=(2, 1), dtype=DType.C128),
        ValueError,
        "DLDataType contains unknown type_code=5",
    ),
    "three dimensions without a mask": (
        call(input="bf16[2,2,256]"),
        RuntimeError,
        (
            "Tensor match failed for Tensor<2, 2, 256>[strides=<512, 256, 1>, dtype=bfloat16, device=cuda:0] "
            f"at {CUH}:487\n- Root cause: Tensor dimension mismatch: expected 2 but got 3"
        ),
    ),
    "rows of 528 bytes": (
        call(input="bf16[4,256]:stride(264,1)"),
        RuntimeError,
        f"Failed at {CUH}:498: input token stride must keep rows 32B-aligned for the vectorized loads",
    ),
    "a view 16 bytes in": (
        call(input="bf16[4,256]:offset(8)"),
        RuntimeError,
        f"Failed at {CUH}:496: input base pointer must be 32B-aligned for the vectorized loads",
    ),
    "one row of codes too many": (
        buffers("bf16[4,256]", "fp8[5,256]", "float32[4,2]"),
        RuntimeError,
        (
            "Tensor match failed for Tensor<5, 256>[strides=<256, 1>, dtype=float8_e4m3fn, device=cuda:0] "
            f"at {CUH}:488\n- Root cause: Size mismatch for shape#0('num_tokens'): expected 4 but got 5"
        ),
    ),
    "input left on the CPU": (
        buffers("bf16[4,256]:device(cpu)", "fp8[4,256]", "float32[4,2]"),
        RuntimeError,
        (
            "Tensor match failed for Tensor<4, 256>[strides=<256, 1>, dtype=float8_e4m3fn, device=cuda:0] "
            f"at {CUH}:488\n- Root cause: Device mismatch: expected cpu but got cuda:0"
        ),
    ),
    "everything on the CPU": (
        call(input="bf16[4,256]:device(cpu)"),
        NotImplementedError,
        "Could not run 'sglang::per_token_group_quant' with arguments from the 'CPU' backend.",
    ),
    "a count too many": (
        call(input="bf16[2,8,512]", masked_m="int32[3]"),
        RuntimeError,
        (
            f"Tensor match failed for Tensor<3>[strides=<1>, dtype=int32, device=cuda:0] at {CUH}:616\n"
            "- Root cause: Size mismatch for shape#0('num_experts'): expected 2 but got 3"
        ),
    ),
    "16-bit counts": (
        call(input="bf16[2,8,512]", masked_m="int16[2]"),
        RuntimeError,
        (
            f"Tensor match failed for Tensor<2>[strides=<1>, dtype=int16, device=cuda:0] at {CUH}:616\n"
            "- Root cause: Dtype value [int16] not in the allowed options: [int32, int64]"
        ),
    ),
    "integer codes with UE8M0": (
        call(out_dtype=DType.I8, scale_ue8m0=True),
        RuntimeError,
        'static assertion failed with "ue8m0 scales imply fp8 output"',
    ),
    "group size 0": (call(group_size=0), ZeroDivisionError, "integer division or modulo by zero"),
    "float group size": (
        call(group_size=128.0),
        TypeError,
        (
            "empty(): argument 'size' failed to unpack the object at pos 2 with error "
            '"type must be tuple of ints,but got float"'
        ),
    ),
    "flat scales": (
        buffers("bf16[4,256]", "fp8[4,256]", "float32[8]"),
        IndexError,
        "Dimension out of range (expected to be in range of [-1, 0], but got -2)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_upstreams_class_and_text(name: str) -> None:
    refused, error, text = REFUSED[name]
    raised = OPERATION.examine(refused).raised
    assert raised is not None
    assert raised.raises is error
    assert raised.text == text or (text.startswith("static assertion") and text in raised.text)


TAKEN = {
    "plain": call(),
    "packed, column-major": call(input="bf16[5,768]", scale_ue8m0=True, column_major_scales=True),
    "five groups packed": call(input="fp16[17,640]", scale_ue8m0=True),
    "float input": call(input="float32[3,512]", column_major_scales=True),
    "int8, group 256": call(input="bf16[9,1024]", out_dtype=DType.I8, group_size=256),
    "fused SiLU": call(input="bf16[6,512]", fuse_silu_and_mul=True),
    "masked, packed, column-major": buffers(
        "bf16[3,16,512]",
        "fp8[3,16,512]",
        "int32[3,16,1]:stride(16,1,16)",
        masked_m="int32[3]",
        scale_ue8m0=True,
    ),
    "half of a wider buffer": call(input="bf16[4,256]:stride(512,1):offset(256)"),
    "no rows": call(input="bf16[0,256]"),
    "group 16 packed": call(input="bf16[2,64]", group_size=16, scale_ue8m0=True),
    "dense SiLU": call(input="bf16[6,512]", fuse_silu_and_mul=True, silu_and_mul_mode="dense"),
    "64-bit counts": MASKED.with_dtype("masked_m", DType.I64),
}


WARNED = {"five groups packed": {"float16_with_ue8m0"}}


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str) -> None:
    examination = OPERATION.examine(TAKEN[name])
    assert not examination.rejected
    assert {outcome.check.id() for outcome in examination.failed()} == WARNED.get(name, set())


@pytest.mark.parametrize(
    ("given", "shape", "strides"),
    [
        (call(input="bf16[5,768]"), (5, 6), (6, 1)),
        (call(input="bf16[5,768]", column_major_scales=True), (5, 6), (1, 8)),
        (call(input="bf16[5,768]", scale_ue8m0=True, column_major_scales=True), (5, 2), (1, 8)),
        (call(input="bf16[5,768]", scale_ue8m0=True), (5, 2), (2, 1)),
        (call(input="bf16[1,128]", column_major_scales=True), (1, 1), (1, 4)),
        (
            call(input="bf16[3,5,768]", masked_m="int32[3]", scale_ue8m0=True, column_major_scales=True),
            (3, 5, 2),
            (16, 1, 8),
        ),
    ],
)
def test_omitted_scales_are_laid_out_as_upstream_allocates_them(
    given: QuantCall, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    scales = given.allocated().scales
    assert (scales.shape, scales.strides) == (shape, strides)


def test_both_alignment_faults_of_an_odd_view_are_listed_and_one_copy_repairs_them() -> None:
    view = call(input="bf16[16,4096]:stride(4100,1):offset(4)")
    examination = OPERATION.examine(view)
    assert [outcome.check.id() for outcome in examination.failed()] == [
        "input_address_unaligned",
        "input_row_stride_unaligned",
    ]
    fix = next(iter(examination.failed()[0].occurrences[0].violation.fixes(view)))
    assert not OPERATION.examine(fix.call).failed()


def test_three_faults_at_once_are_all_listed_although_the_first_would_hide_them() -> None:
    wrong = buffers("float64[4,256]", "fp8_e5m2[4,256]", "int32[4,3]", group_size=96)
    failed = {outcome.check.id() for outcome in OPERATION.examine(wrong).failed()}
    assert failed >= {
        "packed_scales_without_ue8m0",
        "unsupported_input_dtype",
        "unsupported_code_dtype",
        "unsupported_group_size",
        "group_size_does_not_divide",
        "scale_columns_differ",
    }


def test_group_size_zero_leaves_only_what_divides_by_it_unreached() -> None:
    outcomes = OPERATION.examine(VALID.replace(group_size=0)).outcomes
    unreached = {outcome.check.id() for outcome in outcomes if outcome.status is Status.NOT_REACHED}
    assert unreached == {
        "group_size_does_not_divide",
        "input_width_differs",
        "scale_columns_differ",
        "row_major_scales_have_gaps",
        "column_major_scales_have_gaps",
        "scale_offsets_overflow",
    }


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"output_q": TensorSpec((7, 512), DType.I8)},
        {"output_s": TensorSpec((7, 2), DType.I32), "scale_ue8m0": True},
        {"masked_m": TensorSpec((3,), DType.I32)},
        {"fuse_silu_and_mul": True},
    ],
)
def test_a_missing_input_is_fitted_to_what_was_given(given: dict[str, Any]) -> None:
    fitted: Call = OPERATION.fit(given)
    examination = OPERATION.examine(fitted)
    alone = {"scales_without_codes", "codes_without_scales"}
    assert {outcome.check.id() for outcome in examination.failed()} <= alone
