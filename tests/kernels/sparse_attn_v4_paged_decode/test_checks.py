"""Every refusal: class and exact text, what else fails, its fixes, and the example of each check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from kernels.checking import Check, Origin, Status
from kernels.dtypes import DType
from kernels.sparse_attn_v4_paged_decode.checks import OPERATIONS
from kernels.sparse_attn_v4_paged_decode.signature import FP8, QUANTIZED, VALID, SparseCall
from kernels.spec import TensorSpec
from kernels.target import Target
from kernels.values import Full, Listed, bounds

[OPERATION] = OPERATIONS

UPSTREAM_ORDER = [
    ("q_not_gpu", 652, 723, "Triton sparse_attn_v4_paged_decode requires CUDA/HIP tensors"),
    ("q_dtype", 656, 727, "sparse_attn_v4_paged_decode expects fp16/bf16 q, got {q.dtype}"),
    (
        "kv_not_fp8",
        663,
        734,
        "kv_scales supplied but unified_kv is {unified_kv.dtype}, expected {_FP8_DTYPE}",
    ),
    ("scales_dtype", 668, 739, "kv_scales must be fp32, got {kv_scales.dtype}"),
    ("d_group", 671, 742, "D={D_check} must be divisible by GROUP_SIZE={_FP8_GROUP_SIZE}"),
    (
        "scales_shape",
        676,
        747,
        (
            "kv_scales shape {tuple(kv_scales.shape)} does not match expected "
            "({unified_kv.shape[0]}, {expected_g})"
        ),
    ),
    ("kv_dtype", 684, 755, "unified_kv dtype mismatch: kv={unified_kv.dtype}, q={q.dtype}"),
]


def test_upstreams_checks_are_these_in_this_order() -> None:
    declared = [check for check in OPERATION.checks if check.sites]
    found = [
        (check.id(), check.sites[0].pinned, check.sites[0].released, check.message) for check in declared
    ]
    assert found == UPSTREAM_ORDER
    assert {check.raises for check in declared} == {RuntimeError}
    assert {site.file.path for check in declared for site in check.sites} == {
        "python/sglang/kernels/ops/attention/dsv4/unified_kv_kernels/paged_decode.py"
    }


def q(dtype: DType, *shape: int, device: str = "cuda") -> SparseCall:
    return VALID.replace(q=TensorSpec(shape or (2, 16, 128), dtype, device=device))


def pool(dtype: DType, *shape: int) -> SparseCall:
    return VALID.replace(unified_kv=TensorSpec(shape or (8, 128), dtype))


def scales(dtype: DType, *shape: int) -> SparseCall:
    return QUANTIZED.replace(kv_scales=TensorSpec(shape, dtype))


def narrow(width: int, tokens: int = 2) -> SparseCall:
    return VALID.replace(
        q=TensorSpec((tokens, 16, width), DType.BF16),
        unified_kv=TensorSpec((8, width), DType.BF16),
        kv_indptr=TensorSpec((tokens + 1,), DType.I32),
        softmax_scale=width**-0.5,
    )


@dataclass(frozen=True)
class Failing:
    call: SparseCall
    raises: type[Exception]
    text: str
    failed: tuple[str, ...]


RUNTIME = RuntimeError
FAILING = {
    "1": Failing(
        q(DType.BF16, device="cpu"),
        RUNTIME,
        "Triton sparse_attn_v4_paged_decode requires CUDA/HIP tensors",
        ("q_not_gpu",),
    ),
    "2": Failing(
        q(DType.F32),
        RUNTIME,
        "sparse_attn_v4_paged_decode expects fp16/bf16 q, got torch.float32",
        ("q_dtype", "kv_dtype"),
    ),
    "3": Failing(
        q(DType.F8_E4M3FN),
        RUNTIME,
        "sparse_attn_v4_paged_decode expects fp16/bf16 q, got torch.float8_e4m3fn",
        ("q_dtype", "kv_dtype"),
    ),
    "4": Failing(
        pool(DType.F16),
        RUNTIME,
        "unified_kv dtype mismatch: kv=torch.float16, q=torch.bfloat16",
        ("kv_dtype",),
    ),
    "5": Failing(
        pool(FP8),
        RUNTIME,
        "unified_kv dtype mismatch: kv=torch.float8_e4m3fn, q=torch.bfloat16",
        ("kv_dtype",),
    ),
    "6": Failing(
        VALID.with_scales(),
        RUNTIME,
        "kv_scales supplied but unified_kv is torch.bfloat16, expected torch.float8_e4m3fn",
        ("kv_not_fp8",),
    ),
    "7": Failing(
        pool(DType.U8).with_scales(),
        RUNTIME,
        "kv_scales supplied but unified_kv is torch.uint8, expected torch.float8_e4m3fn",
        ("kv_not_fp8",),
    ),
    "8": Failing(
        pool(DType.F8_E5M2).with_scales(),
        RUNTIME,
        "kv_scales supplied but unified_kv is torch.float8_e5m2, expected torch.float8_e4m3fn",
        ("kv_not_fp8",),
    ),
    "8 on MI300": Failing(
        QUANTIZED.replace(target=Target("gfx942")),
        RUNTIME,
        "kv_scales supplied but unified_kv is torch.float8_e4m3fn, expected torch.float8_e4m3fnuz",
        ("kv_not_fp8",),
    ),
    "8, MI300's type elsewhere": Failing(
        pool(DType.F8_E4M3FNUZ).with_scales().replace(target=Target("sm90")),
        RUNTIME,
        "kv_scales supplied but unified_kv is torch.float8_e4m3fnuz, expected torch.float8_e4m3fn",
        ("kv_not_fp8",),
    ),
    "9": Failing(
        scales(DType.BF16, 8, 2), RUNTIME, "kv_scales must be fp32, got torch.bfloat16", ("scales_dtype",)
    ),
    "10": Failing(
        scales(DType.F8_E8M0, 8, 2),
        RUNTIME,
        "kv_scales must be fp32, got torch.float8_e8m0fnu",
        ("scales_dtype",),
    ),
    "11": Failing(
        pool(FP8, 8, 96).replace(kv_scales=TensorSpec((8, 2), DType.F32)),
        RUNTIME,
        "D=96 must be divisible by GROUP_SIZE=64",
        ("d_group", "scales_shape", "pool_width_differs"),
    ),
    "12": Failing(
        scales(DType.F32, 2, 8),
        RUNTIME,
        "kv_scales shape (2, 8) does not match expected (8, 2)",
        ("scales_shape",),
    ),
    "13": Failing(
        scales(DType.F32, 8),
        RUNTIME,
        "kv_scales shape (8,) does not match expected (8, 2)",
        ("scales_shape",),
    ),
    "14": Failing(
        scales(DType.F32), RUNTIME, "kv_scales shape () does not match expected (8, 2)", ("scales_shape",)
    ),
    "15": Failing(
        scales(DType.F32, 8, 1),
        RUNTIME,
        "kv_scales shape (8, 1) does not match expected (8, 2)",
        ("scales_shape",),
    ),
    "16": Failing(
        scales(DType.F32, 7, 2),
        RUNTIME,
        "kv_scales shape (7, 2) does not match expected (8, 2)",
        ("scales_shape",),
    ),
    "17": Failing(
        scales(DType.BF16, 8, 2).with_dtype("q", DType.F32),
        RUNTIME,
        "sparse_attn_v4_paged_decode expects fp16/bf16 q, got torch.float32",
        ("q_dtype", "scales_dtype"),
    ),
    "18": Failing(
        q(DType.BF16, 16, 128),
        ValueError,
        "not enough values to unpack (expected 3, got 2)",
        ("q_has_too_few_dimensions",),
    ),
    "19": Failing(
        VALID.with_tensor("kv_indices", device="cpu"),
        ValueError,
        "Pointer argument (at 3) cannot be accessed from Triton (cpu tensor?)",
        ("pointer_on_host",),
    ),
    "pool on the CPU": Failing(
        VALID.with_tensor("unified_kv", device="cpu"),
        ValueError,
        "Pointer argument (at 1) cannot be accessed from Triton (cpu tensor?)",
        ("pointer_on_host",),
    ),
    "scales and spans on the CPU": Failing(
        QUANTIZED.with_tensor("kv_scales", device="cpu").with_tensor("kv_indptr", device="cpu"),
        ValueError,
        "Pointer argument (at 2) cannot be accessed from Triton (cpu tensor?)",
        ("pointer_on_host",),
    ),
    "spans on the CPU": Failing(
        VALID.with_tensor("kv_indptr", device="cpu"),
        ValueError,
        "Pointer argument (at 4) cannot be accessed from Triton (cpu tensor?)",
        ("pointer_on_host",),
    ),
    "sink on the CPU, joined splits": Failing(
        VALID.with_tensor("attn_sink", device="cpu"),
        ValueError,
        "Pointer argument (at 3) cannot be accessed from Triton (cpu tensor?)",
        ("sink_on_host",),
    ),
    "sink on the CPU, one split": Failing(
        VALID.with_tensor("attn_sink", device="cpu").replace(kv_splits=1),
        ValueError,
        "Pointer argument (at 5) cannot be accessed from Triton (cpu tensor?)",
        ("sink_on_host",),
    ),
    "-1 splits": Failing(
        VALID.replace(kv_splits=-1),
        RuntimeError,
        "Trying to create tensor with negative dimension -1: [2, -1, 16]",
        ("splits_negative",),
    ),
    "-2 splits of 65 heads": Failing(
        q(DType.BF16, 3, 65, 128).replace(
            kv_splits=-2,
            kv_indptr=TensorSpec((4,), DType.I32),
            attn_sink=TensorSpec((65,), DType.F32),
        ),
        RuntimeError,
        "Trying to create tensor with negative dimension -2: [3, -2, 128]",
        ("splits_negative",),
    ),
    "2.0 splits": Failing(
        VALID.replace(kv_splits=2.0),
        TypeError,
        (
            "empty(): argument 'size' failed to unpack the object at pos 2 with error "
            '"type must be tuple of ints,but got float"'
        ),
        ("splits_not_an_integer",),
    ),
    "16 columns a head": Failing(
        narrow(16),
        ZeroDivisionError,
        "integer division or modulo by zero",
        ("head_too_narrow_to_join",),
    ),
    "9 columns a head": Failing(
        narrow(9).replace(kv_splits=2),
        ZeroDivisionError,
        "integer division or modulo by zero",
        ("head_too_narrow_to_join",),
    ),
    "scale beyond floats": Failing(
        VALID.replace(softmax_scale=10**400),
        OverflowError,
        "int too large to convert to float",
        ("softmax_scale_is_too_large",),
    ),
    "20": Failing(
        q(DType.BF16, 0, 16, 128),
        ZeroDivisionError,
        "integer division or modulo by zero",
        ("nothing_to_reduce",),
    ),
    "20 with 4 splits": Failing(
        q(DType.BF16, 0, 16, 128).replace(kv_splits=4),
        ZeroDivisionError,
        "integer division or modulo by zero",
        ("nothing_to_reduce",),
    ),
    "no heads": Failing(
        q(DType.F16, 2, 0, 128).with_dtype("unified_kv", DType.F16),
        ZeroDivisionError,
        "integer division or modulo by zero",
        ("nothing_to_reduce",),
    ),
    "q of 4 dimensions": Failing(
        q(DType.BF16, 2, 1, 16, 128),
        ValueError,
        "too many values to unpack (expected 3)",
        ("q_has_too_many_dimensions",),
    ),
    "flat pool": Failing(
        pool(DType.BF16, 1024),
        IndexError,
        "Dimension out of range (expected to be in range of [-1, 0], but got 1)",
        ("pool_has_no_slots",),
    ),
    "pool without dimensions": Failing(
        VALID.with_tensor("unified_kv", shape=()),
        IndexError,
        "Dimension specified as 0 but tensor has no dimensions",
        ("pool_has_no_dimensions",),
    ),
    "pool without dimensions, scales": Failing(
        QUANTIZED.with_tensor("unified_kv", shape=()),
        IndexError,
        "tuple index out of range",
        ("pool_has_no_width", "pool_has_no_dimensions"),
    ),
    "scale a word": Failing(
        VALID.replace(softmax_scale="x"),
        ValueError,
        "could not convert string to float: 'x'",
        ("softmax_scale_is_not_a_numeral",),
    ),
    "scale absent": Failing(
        VALID.replace(softmax_scale=None),
        TypeError,
        "float() argument must be a string or a real number, not 'NoneType'",
        ("softmax_scale_is_not_a_number",),
    ),
}


@pytest.mark.parametrize("row", FAILING)
def test_refused_with_upstreams_class_and_text(row: str) -> None:
    case = FAILING[row]
    examination = OPERATION.examine(case.call)
    assert examination.raised is not None
    error = examination.raised.exception()
    assert (type(error), str(error)) == (case.raises, case.text)
    assert tuple(outcome.check.id() for outcome in examination.failed()) == case.failed


@pytest.mark.parametrize("row", FAILING)
def test_applying_each_failing_checks_first_fix_ends_in_a_valid_call(row: str) -> None:
    call = FAILING[row].call
    for _ in OPERATION.checks:
        failed = OPERATION.examine(call).failed()
        if not failed:
            return
        occurrence = failed[0].occurrences[0]
        fix = next(iter(occurrence.violation.fixes(occurrence.subject)))
        assert fix.edits(call), "a fix changes something"
        call = fix.call
    pytest.fail(f"still failing: {[outcome.check.id() for outcome in OPERATION.examine(call).failed()]}")


FIRST_FIXES: dict[str, list[tuple[str, str, Any]]] = {
    "1": [("q", "device", "cuda")],
    "2": [("q", "dtype", "bfloat16")],
    "4": [("unified_kv", "dtype", "bfloat16")],
    "5": [("kv_scales", "presence", {"shape": [8, 2], "dtype": "float32"})],
    "6": [("kv_scales", "presence", None)],
    "7": [("unified_kv", "dtype", "float8_e4m3fn")],
    "9": [("kv_scales", "dtype", "float32")],
    "11": [("unified_kv", "shape", [8, 128])],
    "12": [("kv_scales", "shape", [8, 2]), ("kv_scales", "strides", [1, 8])],
    "15": [("kv_scales", "shape", [8, 2])],
    "18": [("q", "shape", [1, 16, 128])],
    "20": [("kv_splits", "value", 1)],
    "flat pool": [("unified_kv", "shape", [8, 128])],
}


@pytest.mark.parametrize("row", FIRST_FIXES)
def test_the_first_fix_of_the_first_failure_is_enough(row: str) -> None:
    call = FAILING[row].call
    raised = OPERATION.examine(call).raised
    assert raised is not None
    fix = next(iter(raised.fixes(call)))
    assert [(edit.argument, edit.attribute, edit.after) for edit in fix.edits(call)] == FIRST_FIXES[row]
    assert fix.safe
    assert not OPERATION.examine(fix.call).failed()


@pytest.mark.parametrize(
    ("shape", "safe"),
    [
        ((2, 8), True),
        ((8,), True),
        ((), True),
        ((8, 1), True),
        ((16,), True),
        ((8, 2, 1), True),
        ((7, 2), False),
        ((8, 3), False),
        ((4, 4), False),
    ],
)
def test_scales_are_kept_only_where_none_is_lost(shape: tuple[int, ...], safe: bool) -> None:
    call = scales(DType.F32, *shape)
    raised = OPERATION.examine(call).raised
    assert raised is not None
    fixes = list(raised.fixes(call))
    assert [fix.safe for fix in fixes] == [safe]
    assert not OPERATION.examine(fixes[0].call).failed()


UPSTREAM = [
    check for check in OPERATION.checks if check.origin() is Origin.UPSTREAM and not check.unreachable
]


@pytest.mark.parametrize("check", UPSTREAM, ids=lambda check: check.id())
def test_an_example_breaks_its_own_check_first_and_every_fix_passes_it(check: type[Check[Any]]) -> None:
    example = check.example()
    assert isinstance(example, SparseCall)
    raised = OPERATION.examine(example).raised
    assert type(raised) is check
    fixes = list(raised.fixes(example))
    assert fixes
    for fix in fixes:
        [outcome] = [o for o in OPERATION.examine(fix.call).outcomes if o.check is check]
        assert outcome.status is Status.PASSED, fix.title


def test_an_unscaled_fp8_pool_is_never_cast() -> None:
    call = pool(FP8)
    raised = OPERATION.examine(call).raised
    assert raised is not None
    assert [edit.argument for fix in raised.fixes(call) for edit in fix.edits(call)] == ["kv_scales"]


def test_everything_on_the_cpu_moves_together() -> None:
    call = VALID.replace(**{name: replace(tensor, device="cpu") for name, tensor in VALID.tensors()})
    raised = OPERATION.examine(call).raised
    assert raised is not None
    [fix] = raised.fixes(call)
    assert fix.call == VALID


ACCEPTED = {
    "1": VALID,
    "2": SparseCall(
        q=TensorSpec((1, 128, 512), DType.BF16),
        unified_kv=TensorSpec((4096, 512), DType.BF16),
        kv_indices=TensorSpec((1152,), DType.I32),
        kv_indptr=TensorSpec((2,), DType.I32),
        attn_sink=TensorSpec((128,), DType.F32),
        softmax_scale=512**-0.5,
    ),
    "3": SparseCall(
        q=TensorSpec((3, 5, 64), DType.F16),
        unified_kv=TensorSpec((90, 64), DType.F16),
        kv_indices=TensorSpec((93,), DType.I32),
        kv_indptr=TensorSpec((4,), DType.I32, values=Listed((0, 0, 23, 93))),
        attn_sink=TensorSpec((5,), DType.F32),
        softmax_scale=0.125,
    ),
    "4": SparseCall(
        q=TensorSpec((2, 40, 448), DType.BF16),
        unified_kv=TensorSpec((128, 448), DType.BF16),
        kv_indices=TensorSpec((87,), DType.I32),
        kv_indptr=TensorSpec((3,), DType.I32, values=Listed((0, 10, 87))),
        attn_sink=TensorSpec((40,), DType.F32),
        softmax_scale=448**-0.5,
    ),
    "7": SparseCall(
        q=TensorSpec((300, 128, 512), DType.BF16),
        unified_kv=TensorSpec((4096, 512), DType.BF16),
        kv_indices=TensorSpec((9600,), DType.I32),
        kv_indptr=TensorSpec((301,), DType.I32),
        attn_sink=TensorSpec((128,), DType.F32),
        softmax_scale=512**-0.5,
    ),
    "5": QUANTIZED,
    "6": QUANTIZED.with_tensor("kv_scales", strides=(1, 8)),
    "8": VALID.with_tensor("q", strides=(128, 256, 1)).with_tensor("unified_kv", strides=(1, 8)),
    "9": VALID.with_dtype("kv_indices", DType.I64).with_dtype("kv_indptr", DType.I64),
    "10": VALID.with_tensor("attn_sink", values=Full(float("-inf"))),
    "11": VALID.with_tensor("kv_indptr", values=Listed((4, 7, 8))),
    "no token, one split": VALID.with_tensor("q", shape=(0, 16, 128)).replace(kv_splits=1),
    "scale as text": VALID.replace(softmax_scale="0.125"),
    "scales of 1 dimension's numbers": QUANTIZED.replace(kv_splits=2),
    "16 columns a head, one split": narrow(16).replace(kv_splits=1),
    "17 columns a head": narrow(17),
    "16 columns a head, 17 tokens": narrow(16, 17),
    "True split": VALID.replace(kv_splits=True),
    "1.0 split": VALID.replace(kv_splits=1.0),
    "128 splits": VALID.replace(kv_splits=128),
    "an empty list on the CPU": VALID.with_tensor("kv_indices", shape=(0,), device="cpu"),
}


@pytest.mark.parametrize("row", ACCEPTED)
def test_accepted(row: str) -> None:
    examination = OPERATION.examine(ACCEPTED[row])
    assert examination.raised is None
    assert all(outcome.status is Status.PASSED for outcome in examination.outcomes)


def test_a_check_without_its_premise_is_not_reached() -> None:
    outcomes = {o.check.id(): o.status for o in OPERATION.examine(q(DType.BF16, 16, 128)).outcomes}
    assert outcomes["nothing_to_reduce"] is Status.NOT_REACHED
    assert outcomes["kv_dtype"] is Status.PASSED


GIVEN: list[tuple[Mapping[str, Any], Mapping[str, tuple[int, ...]]]] = [
    ({}, {"q": (2, 16, 128), "unified_kv": (8, 128), "kv_indptr": (3,), "attn_sink": (16,)}),
    (
        {"q": TensorSpec((8, 64, 512), DType.BF16), "unified_kv": TensorSpec((4096, 512), FP8)},
        {"kv_indices": (32,), "kv_indptr": (9,), "attn_sink": (64,)},
    ),
    (
        {"q": TensorSpec((4, 8, 128), DType.F16), "kv_scales": TensorSpec((32, 8), DType.F32)},
        {"unified_kv": (32, 128), "kv_scales": (32, 8)},
    ),
    ({"kv_scales": TensorSpec((32, 8), DType.F32)}, {"q": (2, 16, 512), "unified_kv": (32, 512)}),
    (
        {"kv_indptr": TensorSpec((6,), DType.I32), "attn_sink": TensorSpec((4,), DType.F32)},
        {"q": (5, 4, 128), "kv_indices": (20,)},
    ),
    ({"unified_kv": TensorSpec((0, 64), DType.F16)}, {"q": (2, 16, 64), "kv_indices": (0,)}),
    ({"q": TensorSpec((), DType.BF16), "unified_kv": TensorSpec((), FP8)}, {"kv_indptr": (3,)}),
]


@pytest.mark.parametrize(("given", "shapes"), GIVEN)
def test_a_partial_call_is_completed_to_fit(
    given: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    call = OPERATION.fit(given)
    assert {name: getattr(call, name).shape for name in shapes} == shapes
    assert {name: getattr(call, name) for name in given} == given


def test_missing_arguments_never_break_a_check() -> None:
    assert OPERATION.fit({}) == VALID
    for name, tensor in QUANTIZED.tensors():
        completed = OPERATION.fit({name: replace(tensor, device="cuda:1")})
        failed = [outcome.check.id() for outcome in OPERATION.examine(completed).failed()]
        assert failed == (["kv_dtype"] if name == "unified_kv" else []), name
        assert {tensor.device for _, tensor in completed.tensors()} == {"cuda:1"}


@pytest.mark.parametrize("call", [*ACCEPTED.values(), *(OPERATION.fit(given) for given, _ in GIVEN)])
def test_the_fill_reads_slots_of_the_pool_only(call: SparseCall) -> None:
    values = OPERATION.fill(call)
    starts = bounds(values["kv_indptr"], call.kv_indptr.shape)
    assert starts is not None
    assert starts[0] == 0
    assert starts[1] <= call.kv_indices.numel
    used = bounds(values["kv_indices"], call.kv_indices.shape)
    if used and starts[1]:
        assert used[0] >= 0
        assert used[1] < call.unified_kv.shape[0]
