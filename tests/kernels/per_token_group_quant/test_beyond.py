"""Hazards that upstream does not see: the last call that is safe, and the first that is not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kernels.checking import Check, Origin, Severity, Status
from kernels.dtypes import DType
from kernels.examining import Outcome, guard
from kernels.per_token_group_quant.checks import STAGES
from kernels.per_token_group_quant.signature import MASKED, PACKED, VALID, QuantCall
from kernels.registry import operations
from kernels.spec import TensorSpec
from kernels.target import Target
from kernels.values import Arange, Full, Listed, Randint, Randn, Values, Zeros

OPERATION = operations()["per_token_group_quant"]
HAZARDS = [check for check in OPERATION.checks if check.origin() is Origin.BEYOND]
WARNINGS = {
    "float16_with_ue8m0",
    "layout_request_ignored",
    "expected_rows_ignored",
    "column_stride_not_for_tma",
    "packed_scales_before_blackwell",
}
FLOOR = 448 * 2.0**-16
ONE_ABOVE = FLOOR + 2.0**-18
"""float16's next value."""


IDS = TensorSpec((4,), DType.I32)
COUNT = TensorSpec((1,), DType.I32)


def call(input: str, codes: str | None = None, scales: str | None = None, **others: Any) -> QuantCall:  # noqa: A002
    """A call from compact tensor texts; outputs are allocated when left out."""
    given = {"input": input, "output_q": codes, "output_s": scales}
    return QuantCall(**{k: v and TensorSpec.parse(v) for k, v in given.items()}, **others)  # type: ignore[arg-type]


def holding(given: QuantCall, name: str, values: Values, **attributes: Any) -> QuantCall:
    return given.with_tensor(name, values=values, **attributes)


def masked(counts: Values, dtype: DType = DType.I32) -> QuantCall:
    """Two experts of 8 rows."""
    return holding(MASKED, "masked_m", counts, dtype=dtype)


def on_host(given: QuantCall) -> QuantCall:
    """The call with every tensor on the CPU."""
    return given.replace(**{name: replace(tensor, device="cpu") for name, tensor in given.tensors()})


def masked_column_major(strides: str) -> QuantCall:
    return call(
        "bf16[2,8,512]",
        "fp8[2,8,512]",
        f"float32[2,8,4]:stride({strides})",
        masked_m=TensorSpec((2,), DType.I32),
    )


def fp16(values: Values, width: int = 256, **others: Any) -> QuantCall:
    return holding(call(f"fp16[4,{width}]", scale_ue8m0=True, **others), "input", values)


def packed(target: str | None) -> QuantCall:
    """Column-major words of four exponents."""
    aimed = None if target is None else Target(target)
    return call("bf16[5,1024]", scale_ue8m0=True, column_major_scales=True, target=aimed)


def sorted_by(ids: TensorSpec = IDS, count: TensorSpec = COUNT) -> QuantCall:
    return VALID.replace(sorted_token_ids=ids, num_tokens_post_padded=count, num_valid_tokens=4)


def experts(count: int) -> QuantCall:
    return call(f"bf16[{count},1,128]", masked_m=TensorSpec((count,), DType.I32))


SILU = {"fuse_silu_and_mul": True}
BF16_INFINITE = 2.0**128 - 2.0**119
BF16_ZEROED = 2.0**126 + 2.0**119
"""bfloat16's next value above 2^126."""

SAFE: dict[str, list[QuantCall]] = {
    "codes_unaligned": [
        VALID.with_tensor("output_q", offset=16),
        VALID.with_tensor("output_q", strides=(272, 1)),
        call("bf16[1,256]", "fp8[1,256]:stride(264,1)", "float32[1,2]"),
        call("bf16[0,256]", "fp8[0,256]:offset(8)", "float32[0,2]"),
        MASKED.with_tensor("output_q", strides=(4112, 512, 1)),
        call("float32[4,200]"),  # refused for its group size; its rows are as long as they are
    ],
    "codes_overlap": [
        VALID.with_tensor("output_q", strides=(256, 1)),
        call("bf16[1,256]", "fp8[1,256]:stride(0,1)", "float32[1,2]"),
        call("bf16[0,256]", "fp8[0,256]:stride(0,1)", "float32[0,2]"),
        MASKED.with_tensor("output_q", strides=(512, 1024, 1)),  # tokens first, experts inside
        VALID.with_tensor("output_q", strides=(256, 2)),  # refused for its last stride
    ],
    "scales_overlap": [
        VALID.with_tensor("output_s", strides=(2, 1)),
        VALID.with_tensor("output_s", strides=(1, 4)),
        call("bf16[4,128]", "fp8[4,128]", "float32[4,1]:stride(1,1)"),
        call("bf16[1,256]", "fp8[1,256]", "float32[1,2]:stride(1,1)"),
        masked_column_major("32,1,8"),
        masked_column_major("8,1,16"),  # experts inside a group
    ],
    "masked_rows_out_of_range": [
        masked(Listed((0, 8))),
        masked(Listed((0, 8, 20))),  # more elements than experts
        masked(Full(8)),
        masked(Randint(0, 9)),
        masked(Arange(0, 8)),
        masked(Randn()),
        MASKED,
    ],
    "float16_with_ue8m0": [
        fp16(Full(ONE_ABOVE)),
        fp16(Full(-ONE_ABOVE)),
        fp16(Full(FLOOR)),  # proved: the other check's
        fp16(Listed((0.0,) * 127 + (ONE_ABOVE,))),
        call("bf16[4,256]", scale_ue8m0=True),
        call("fp16[4,256]"),
        call("fp16[0,256]", scale_ue8m0=True),
    ],
    "float16_groups_overflow": [
        fp16(Full(ONE_ABOVE)),
        fp16(Randn(std=1e-5)),
        fp16(Listed((0.0,) * 127 + (ONE_ABOVE,))),
        fp16(Listed((0.0, ONE_ABOVE))),  # repeated
        fp16(Full(0.5), 512, **SILU),
        holding(call("bf16[4,256]", scale_ue8m0=True), "input", Zeros()),
        holding(call("fp16[4,256]"), "input", Zeros()),
        fp16(Listed((0.0,) * 128 + (1.0,) * 128), group_size=96),  # no groups to tell
    ],
    "input_not_finite": [
        holding(call("fp16[4,256]"), "input", Full(65_519.0)),
        holding(VALID, "input", Full(math.nextafter(BF16_INFINITE, 0)), dtype=DType.F64),
        holding(VALID, "input", Full(3.38e38)),
        holding(call("float32[4,256]"), "input", Full(3.4028235e38)),
        holding(VALID, "input", Randn(std=1e38)),
    ],
    "magnitude_beyond_reciprocal": [
        holding(VALID, "input", Full(2.0**126)),
        holding(VALID, "input", Full(2.0**126 + 2.0**118)),  # rounds to 2^126
        holding(PACKED, "input", Full(3e38)),
        holding(VALID, "input", Full(BF16_INFINITE)),  # infinite: the other check's
    ],
    "layout_request_ignored": [
        call("bf16[4,256]", column_major_scales=True),
        call("bf16[0,256]", column_major_scales=True),
        call("bf16[1,256]", "fp8[1,256]", "float32[1,2]", column_major_scales=True),
        call("bf16[4,128]", "fp8[4,128]", "float32[4,1]", column_major_scales=True),
        call("bf16[4,256]", "fp8[4,256]", "float32[4,2]:stride(1,4)", column_major_scales=True),
    ],
    "expected_rows_ignored": [MASKED.replace(expected_m=4), VALID],
    "column_stride_not_for_tma": [
        call("bf16[5,256]", "fp8[5,256]", "float32[5,2]:stride(1,8)"),
        call("bf16[5,128]", "fp8[5,128]", "float32[5,1]:stride(1,5)"),
        call("bf16[5,384]", "fp8[5,384]", "float32[5,3]"),
        call("bf16[5,256]", column_major_scales=True),
        masked_column_major("36,1,8"),
    ],
    "packed_scales_before_blackwell": [
        packed(None),
        packed("sm100"),
        packed("sm103a"),
        packed("gfx950"),
        call("bf16[5,256]", scale_ue8m0=True, target=Target("sm90")),
        call("bf16[5,256]", column_major_scales=True, target=Target("sm90")),
    ],
    "sorted_layout_misread": [sorted_by(), sorted_by(count=TensorSpec((), DType.I32)), VALID],
    "rows_on_host": [VALID.replace(num_tokens_post_padded=COUNT), sorted_by()],
    "too_large_for_one_launch": [
        experts(65_535),
        call(f"bf16[{2**26 - 1},1024]"),
        call(f"bf16[2,{2**26 - 1},1024]", masked_m=TensorSpec((2,), DType.I32)),
        call("bf16[70000,0,128]", masked_m=TensorSpec((70_000,), DType.I32)),
    ],
}

HAZARDOUS: dict[str, list[tuple[QuantCall, str]]] = {
    "codes_unaligned": [
        (VALID.with_tensor("output_q", offset=8), "address is 8 bytes"),
        (VALID.with_tensor("output_q", strides=(264, 1)), "row stride is 264 bytes"),
        (MASKED.with_tensor("output_q", strides=(4104, 512, 1)), "expert stride is 4104 bytes"),
    ],
    "codes_overlap": [
        (VALID.with_tensor("output_q", strides=(240, 1)), "row stride 240, span 256"),
        (MASKED.with_tensor("output_q", strides=(4080, 512, 1)), "expert stride 4080, span 4096"),
        (MASKED.with_tensor("output_q", strides=(512, 1008, 1)), "row stride 1008, span 1024"),
    ],
    "scales_overlap": [
        (VALID.with_tensor("output_s", strides=(1, 1)), "row stride 1, span 2"),
        (VALID.with_tensor("output_s", strides=(1, 3)), "column stride 3, span 4"),
        (masked_column_major("28,1,8"), "expert stride 28, span 32"),
        (MASKED.with_tensor("output_s", strides=(31, 4, 1)), "expert stride 31, span 32"),
    ],
    "masked_rows_out_of_range": [
        (masked(Listed((0, 9))), "masked_m holds 9, outside 0 … 8"),
        (masked(Full(-1), DType.I64), "masked_m holds -1,"),
        (masked(Randint(0, 10)), "masked_m holds 9,"),
        (masked(Randint(-1, 3)), "masked_m holds -1,"),
        (masked(Arange(8, 1)), "masked_m holds 9,"),
        (masked(Full(math.inf)), "masked_m holds inf,"),
        (masked(Full(10**5000)), "masked_m holds inf,"),
    ],
    "float16_with_ue8m0": [
        (call("fp16[4,256]", scale_ue8m0=True), "up to 0.0068359375"),
        (fp16(Randn(mean=100)), "up to"),
        (fp16(Arange(0, 0.01)), "up to"),
        (fp16(Full(0.5), 512, **SILU), "up to"),
    ],
    "float16_groups_overflow": [
        (fp16(Full(FLOOR)), f"up to {FLOOR} quantises"),
        (fp16(Full(FLOOR + 2.0**-19)), "quantises"),  # float16 rounds it to the floor
        (fp16(Zeros()), "up to 0 "),
        (fp16(Listed((1.0,) * 128 + (0.0, FLOOR) * 64)), f"up to {FLOOR} "),
        (fp16(Listed((1.0,) * 3 + (0.0,) * 509)), "up to 0.0 "),  # the second of two rows
        (fp16(Full(0.05), 512, **SILU), "up to 0.0025"),  # 0.05², and less by the sigmoid
    ],
    "input_not_finite": [
        (holding(call("fp16[4,256]"), "input", Full(65_520.0)), "65520.0, which is not finite in float16"),
        (holding(VALID, "input", Full(BF16_INFINITE)), "not finite in bfloat16"),
        (holding(VALID, "input", Full(math.nan)), "nan, which"),
        (holding(VALID, "input", Listed((0.0, math.nan, 1.0))), "nan, which"),
        (holding(VALID, "input", Listed((1.0, -math.inf))), "-inf, which"),
        (holding(VALID, "input", Full(-(10**5000))), "-inf, which"),
    ],
    "magnitude_beyond_reciprocal": [
        (holding(VALID, "input", Full(BF16_ZEROED)), "is above 2^126"),
        (holding(VALID, "input", Full(-BF16_ZEROED)), "is above 2^126"),
        (holding(call("float32[4,256]"), "input", Full(2.0**126 + 2.0**103)), "is above 2^126"),
        (holding(call("bf16[4,256]", out_dtype=DType.I8), "input", Full(3e38)), "magnitude 3e+38"),
    ],
    "layout_request_ignored": [(VALID.replace(column_major_scales=True), "is row-major")],
    "expected_rows_ignored": [(VALID.replace(expected_m=0), "without masked_m")],
    "column_stride_not_for_tma": [
        (call("bf16[5,256]", "fp8[5,256]", "float32[5,2]:stride(1,6)"), "column stride 6"),
        (masked_column_major("34,1,8"), "expert stride 34"),
    ],
    "packed_scales_before_blackwell": [
        (packed("sm90"), "the target is sm90"),
        (packed("sm120"), "the target is sm120"),
    ],
    "sorted_layout_misread": [
        (sorted_by(TensorSpec((4,), DType.I32, device="cpu")), "sorted_token_ids is on cpu"),
        (sorted_by(TensorSpec((4,), DType.I32, (2,))), "laid out with strides (2,)"),
        (
            sorted_by(count=TensorSpec((1,), DType.I32, device="cuda:1")),
            "num_tokens_post_padded is on cuda:1",
        ),
        (sorted_by(count=TensorSpec((0,), DType.I32)), "num_tokens_post_padded is empty"),
    ],
    "rows_on_host": [
        (on_host(VALID).replace(num_tokens_post_padded=COUNT), "num_tokens_post_padded on cuda:0"),
        (
            on_host(MASKED).replace(num_tokens_post_padded=TensorSpec((1,), DType.I32, device="cuda:1")),
            "num_tokens_post_padded on cuda:1",
        ),
    ],
    "too_large_for_one_launch": [
        (experts(65_536), "65536 experts"),
        (call(f"bf16[{2**26},1024]"), "4294967296 threads"),
        (call(f"bf16[2,{2**26},1024]", masked_m=TensorSpec((2,), DType.I32)), "4294967296 threads"),
    ],
}

SAFE_CALLS = [(check, given) for check, calls in SAFE.items() for given in calls]
HAZARDOUS_CALLS = [(check, *case) for check, cases in HAZARDOUS.items() for case in cases]


def outcome(given: QuantCall, identifier: str) -> Outcome:
    [found] = [item for item in OPERATION.examine(given).outcomes if item.check.id() == identifier]
    return found


def violations(given: QuantCall, identifier: str) -> Iterator[Check[Any]]:
    for occurrence in outcome(given, identifier).occurrences:
        yield occurrence.violation


def test_every_hazard_is_tried_from_both_sides() -> None:
    assert {check.id() for check in HAZARDS} == set(SAFE) == set(HAZARDOUS)


@pytest.mark.parametrize(("identifier", "given"), SAFE_CALLS)
def test_safe(identifier: str, given: QuantCall) -> None:
    assert outcome(given, identifier).status is Status.PASSED


@pytest.mark.parametrize(("identifier", "given", "text"), HAZARDOUS_CALLS)
def test_hazardous(identifier: str, given: QuantCall, text: str) -> None:
    [violation] = violations(given, identifier)
    assert text in violation.text


@pytest.mark.parametrize(("identifier", "given", "text"), HAZARDOUS_CALLS)
def test_upstream_takes_a_hazardous_call(identifier: str, given: QuantCall, text: str) -> None:
    examination = OPERATION.examine(given)
    assert examination.raised is None
    assert examination.rejected == (identifier not in WARNINGS)


@pytest.mark.parametrize(("identifier", "given", "text"), HAZARDOUS_CALLS)
def test_fixes_of_a_hazard_remove_it(identifier: str, given: QuantCall, text: str) -> None:
    for occurrence in outcome(given, identifier).occurrences:
        for fix in occurrence.violation.fixes(occurrence.subject):
            assert outcome(fix.call, identifier).status is Status.PASSED, fix.title


def test_warnings_are_those_that_corrupt_nothing_or_depend_on_values_not_known() -> None:
    assert {check.id() for check in HAZARDS if check.severity is Severity.WARNING} == WARNINGS


@pytest.mark.parametrize("check", HAZARDS, ids=lambda check: check.id())
def test_a_running_call_is_refused_for_its_layout_alone(check: type[Check[QuantCall]]) -> None:
    """Values would have to be read from the GPU, and a warning refuses nothing."""
    example = check.example()
    assert example is not None
    if check.reads_values or check.severity is Severity.WARNING:
        guard(STAGES, example)
    else:
        with pytest.raises(ValueError, match=r"output_|launch|sorted_token_ids|input is on") as raised:
            guard(STAGES, example)
        assert type(raised.value.violation) is check  # type: ignore[attr-defined]


def test_a_hazard_does_not_hide_behind_upstreams_refusal() -> None:
    given = VALID.with_tensor("output_q", offset=8).with_dtype("input", DType.F64)
    examination = OPERATION.examine(given)
    assert examination.raised is not None
    assert [item.check.id() for item in examination.failed()] == [
        "unsupported_input_dtype",
        "codes_unaligned",
    ]


@pytest.mark.parametrize(
    ("counts", "clamped"),
    [
        (Listed((-3, 20)), Listed((0, 8))),
        (Listed((5, 9)), Listed((5, 8))),
        (Full(20), Full(8)),
        (Randint(-4, 100, seed=3), Randint(0, 9, seed=3)),
        (Randint(20, 30), Randint(8, 9)),
        (Arange(7, 5), Listed((7, 8))),
    ],
)
def test_counts_are_clamped_one_by_one(counts: Values, clamped: Values) -> None:
    [violation] = violations(masked(counts), "masked_rows_out_of_range")
    [fix] = violation.fixes(masked(counts))
    assert fix.call == masked(clamped)
    assert not fix.safe


def test_a_long_sequence_of_counts_has_no_fix() -> None:
    given = holding(experts(2**40), "masked_m", Arange(0, 1))
    [violation] = violations(given, "masked_rows_out_of_range")
    assert list(violation.fixes(given)) == []


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        (Listed((0, 9)), "the count of expert 1 is 9 "),
        (Arange(9, -9), "the count of expert 0 is 9 "),
        (Full(9), "every count is 9 "),
        (Randint(-2, 3), "counts are drawn from -2 "),
        (Randint(0, 11), "counts are drawn up to 10 "),
    ],
)
def test_the_expert_is_named_where_the_values_tell(counts: Values, text: str) -> None:
    [violation] = violations(masked(counts), "masked_rows_out_of_range")
    assert violation.explain().startswith(text)


@pytest.mark.parametrize("step", [1, 0.5])
def test_sizes_beyond_any_float_are_examined(step: float) -> None:
    huge = TensorSpec((2**62,) * 40, DType.F16, values=Arange(1, step))
    assert OPERATION.examine(PACKED.replace(input=huge)).rejected


def test_unknown_generators_prove_nothing() -> None:
    assert OPERATION.examine(holding(VALID, "input", Randn(std=1e39))).failed() == ()
