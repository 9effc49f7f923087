"""What upstream takes and should not: the boundary of every check of our own, its severity, and what it
leaves alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import inf, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.checking import Origin, Severity, Status
from kernels.dtypes import DType
from kernels.running import materialise
from kernels.sparse_attn_v4_paged_decode import reference
from kernels.sparse_attn_v4_paged_decode.checks import OPERATIONS
from kernels.sparse_attn_v4_paged_decode.reads import elements, slots_read, spans
from kernels.sparse_attn_v4_paged_decode.signature import FP8, QUANTIZED, VALID, SparseCall, fit
from kernels.spec import TensorSpec
from kernels.target import Target
from kernels.values import Arange, Full, Listed, Ones, Randint, Randn, Text, Values, Zeros

[OPERATION] = OPERATIONS
BEYOND = [check for check in OPERATION.checks if check.origin() is Origin.BEYOND]

SEVERITIES = {
    "pool_has_too_many_dimensions": "error",
    "pool_width_differs": "error",
    "on_another_device": "error",
    "fp8_not_compiled": "error",
    "indices_not_integers": "error",
    "spans_type_too_narrow": "error",
    "indices_of_unusual_type": "warning",
    "list_not_dense": "error",
    "spans_too_few": "error",
    "sinks_too_few": "error",
    "sinks_of_other_shape": "warning",
    "sink_type_unknown": "error",
    "slot_offsets_wrap": "error",
    "head_too_narrow": "error",
    "splits_not_a_power_of_two": "error",
    "softmax_scale_not_finite": "error",
    "softmax_scale_unusual": "warning",
    "spans_out_of_range": "error",
    "spans_decrease": "error",
    "slots_out_of_range": "error",
    "values_not_finite": "error",
    "scales_unfit_for_float16": "warning",
    "scales_not_positive": "warning",
}


def test_each_hazard_is_as_bad_as_what_it_ends_in() -> None:
    assert {check.id(): check.severity.value for check in BEYOND} == SEVERITIES


def test_ours_come_after_upstreams_and_never_change_what_is_raised() -> None:
    origins = [check.origin() for check in OPERATION.checks]
    assert origins == sorted(origins, key=lambda origin: origin is Origin.BEYOND)
    call = VALID.replace(kv_splits=3, softmax_scale=nan).with_dtype("kv_indices", DType.BOOL)
    assert OPERATION.examine(call).raised is None
    both = OPERATION.examine(call.with_dtype("q", DType.F32))
    assert both.raised is not None
    assert both.raised.id() == "q_dtype"


def with_q(*shape: int, dtype: DType = DType.BF16, **changes: object) -> SparseCall:
    """VALID with other queries, and a pool, spans and sinks that fit them."""
    tokens, heads, width = shape
    return VALID.replace(
        q=TensorSpec(shape, dtype),
        unified_kv=TensorSpec((8, width), dtype),
        kv_indptr=TensorSpec((tokens + 1,), DType.I32),
        attn_sink=TensorSpec((heads,), DType.F32),
        softmax_scale=max(width, 1) ** -0.5,
    ).replace(**changes)


def spans_of(*offsets: float) -> SparseCall:
    return VALID.with_tensor("kv_indptr", values=Listed(offsets))


def slots_of(*slots: float, call: SparseCall | None = None) -> SparseCall:
    return (call or VALID).with_tensor("kv_indices", values=Listed(slots))


def scaled(values: Values, dtype: DType = DType.BF16) -> SparseCall:
    return QUANTIZED.with_dtype("q", dtype).with_tensor("kv_scales", values=values)


def pool_of(*shape: int, strides: tuple[int, ...] = (), dtype: DType = DType.BF16) -> SparseCall:
    return VALID.replace(
        q=TensorSpec((2, 16, shape[-1]), dtype),
        unified_kv=TensorSpec(shape, dtype, strides),
        softmax_scale=shape[-1] ** -0.5,
    )


HALF = VALID.with_dtype("q", DType.F16).with_dtype("unified_kv", DType.F16)
LAST = spans_of(0, 3, 6)  # entries 6 and 7 of kv_indices are not read

FAILING: dict[str, tuple[SparseCall, str]] = {
    "a page dimension": (pool_of(8, 1, 128), "pool_has_too_many_dimensions"),
    "wider pool": (VALID.with_tensor("unified_kv", shape=(8, 129)), "pool_width_differs"),
    "narrower pool": (VALID.with_tensor("unified_kv", shape=(8, 127)), "pool_width_differs"),
    "wider FP8 pool": (
        QUANTIZED.with_tensor("unified_kv", shape=(8, 192)).with_scales(),
        "pool_width_differs",
    ),
    "sink on another GPU": (VALID.with_tensor("attn_sink", device="cuda:1"), "on_another_device"),
    "scales on another GPU": (QUANTIZED.with_tensor("kv_scales", device="cuda:7"), "on_another_device"),
    "FP8 on Ampere": (QUANTIZED.replace(target=Target("sm80")), "fp8_not_compiled"),
    "FP8 on the last Ampere": (QUANTIZED.replace(target=Target("sm87")), "fp8_not_compiled"),
    "meta slots": (VALID.with_tensor("kv_indices", device="meta"), "on_another_device"),
    "slots of floats": (VALID.with_dtype("kv_indices", DType.F32), "indices_not_integers"),
    "slots of bools": (VALID.with_dtype("kv_indices", DType.BOOL), "indices_not_integers"),
    "spans of doubles": (VALID.with_dtype("kv_indptr", DType.F64), "indices_not_integers"),
    "short slots": (VALID.with_dtype("kv_indices", DType.I16), "indices_of_unusual_type"),
    "unsigned spans": (VALID.with_dtype("kv_indptr", DType.U32), "indices_of_unusual_type"),
    "spans of bytes in many splits": (VALID.with_dtype("kv_indptr", DType.U8), "spans_type_too_narrow"),
    "spans of bytes in 8 splits": (
        VALID.with_dtype("kv_indptr", DType.I8).replace(kv_splits=8),
        "spans_type_too_narrow",
    ),
    "FP8 and spans of bytes in 4 splits": (
        QUANTIZED.with_dtype("kv_indptr", DType.I8).replace(kv_splits=4),
        "spans_type_too_narrow",
    ),
    "spans of bytes in 4 splits": (
        VALID.with_dtype("kv_indptr", DType.I8).replace(kv_splits=4),
        "indices_of_unusual_type",
    ),
    "spans of bytes in one": (
        VALID.with_dtype("kv_indptr", DType.U8).replace(kv_splits=1),
        "indices_of_unusual_type",
    ),
    "spans of 16 bits in 2048 splits": (
        VALID.with_dtype("kv_indptr", DType.I16).replace(kv_splits=2048),
        "spans_type_too_narrow",
    ),
    "every second slot": (VALID.with_tensor("kv_indices", strides=(2,)), "list_not_dense"),
    "a table of slots": (VALID.with_tensor("kv_indices", shape=(2, 4)), "list_not_dense"),
    "spans in a column": (VALID.with_tensor("kv_indptr", shape=(3, 1)), "list_not_dense"),
    "strided spans": (VALID.with_tensor("kv_indptr", strides=(2,)), "list_not_dense"),
    "one sink expanded": (VALID.with_tensor("attn_sink", strides=(0,)), "list_not_dense"),
    "T spans": (VALID.with_tensor("kv_indptr", shape=(2,)), "spans_too_few"),
    "H - 1 sinks": (VALID.with_tensor("attn_sink", shape=(15,)), "sinks_too_few"),
    "H + 1 sinks": (VALID.with_tensor("attn_sink", shape=(17,)), "sinks_of_other_shape"),
    "a row of sinks": (VALID.with_tensor("attn_sink", shape=(1, 16)), "sinks_of_other_shape"),
    "complex sinks": (VALID.with_dtype("attn_sink", DType.C64), "sink_type_unknown"),
    "exponents for sinks": (VALID.with_dtype("attn_sink", DType.F8_E8M0), "sink_type_unknown"),
    "4,194,305 slots of 512": (pool_of(4_194_305, 512), "slot_offsets_wrap"),
    "4.3 million slots, FP8": (
        QUANTIZED.replace(
            q=TensorSpec((2, 16, 512), DType.BF16),
            unified_kv=TensorSpec((4_300_000, 512), FP8),
            softmax_scale=512**-0.5,
        ).with_scales(),
        "slot_offsets_wrap",
    ),
    "few slots far apart": (pool_of(3, 128, strides=(2**30, 1)), "slot_offsets_wrap"),
    "8 columns": (with_q(2, 16, 8), "head_too_narrow"),
    "no columns": (with_q(2, 16, 0), "head_too_narrow"),
    "0 splits": (VALID.replace(kv_splits=0), "splits_not_a_power_of_two"),
    "3 splits": (VALID.replace(kv_splits=3), "splits_not_a_power_of_two"),
    "False split": (VALID.replace(kv_splits=False), "splits_not_a_power_of_two"),
    "scale NaN": (VALID.replace(softmax_scale=nan), "softmax_scale_not_finite"),
    "scale inf": (VALID.replace(softmax_scale=inf), "softmax_scale_not_finite"),
    "scale NaN as text": (VALID.replace(softmax_scale="nan"), "softmax_scale_not_finite"),
    "scale 0": (VALID.replace(softmax_scale=0), "softmax_scale_unusual"),
    "negative scale": (VALID.replace(softmax_scale=-(128**-0.5)), "softmax_scale_unusual"),
    "scale 1": (VALID.replace(softmax_scale=1), "softmax_scale_unusual"),
    "scale 1 / D": (VALID.replace(softmax_scale=1 / 128), "softmax_scale_unusual"),
    "span past the list": (spans_of(0, 3, 9), "spans_out_of_range"),
    "span before the list": (spans_of(-1, 3, 8), "spans_out_of_range"),
    "spans past the list by steps": (
        VALID.with_tensor("kv_indptr", values=Arange(0, 5)),
        "spans_out_of_range",
    ),
    "spans drawn past the list": (
        VALID.with_tensor("kv_indptr", values=Randint(0, 10)),
        "spans_out_of_range",
    ),
    "normal spans": (VALID.with_tensor("kv_indptr", values=Randn(std=2.0)), "spans_out_of_range"),
    "a text for spans": (VALID.with_tensor("kv_indptr", values=Text("\t")), "spans_out_of_range"),
    "NaN span": (spans_of(0, nan, 8), "spans_out_of_range"),
    "falling spans": (spans_of(0, 5, 3), "spans_decrease"),
    "spans falling by steps": (VALID.with_tensor("kv_indptr", values=Arange(8, -4)), "spans_decrease"),
    "spans repeated": (spans_of(3, 8), "spans_decrease"),  # 3 8 3
    "slot P": (slots_of(0, 1, 2, 3, 4, 5, 6, 8), "slots_out_of_range"),
    "slot -1": (slots_of(-1, 1, 2, 3, 4, 5, 6, 7), "slots_out_of_range"),
    "slot -1, repeated list": (slots_of(1, -1), "slots_out_of_range"),
    "slot of a billion": (VALID.with_tensor("kv_indices", values=Full(10**9)), "slots_out_of_range"),
    "slots drawn to P": (VALID.with_tensor("kv_indices", values=Randint(0, 9)), "slots_out_of_range"),
    "slots drawn from -1": (VALID.with_tensor("kv_indices", values=Randint(-1, 8)), "slots_out_of_range"),
    "slots by steps past P": (VALID.with_tensor("kv_indices", values=Arange(1)), "slots_out_of_range"),
    "a text for slots": (VALID.with_tensor("kv_indices", values=Text("0123")), "slots_out_of_range"),
    "normal slots": (VALID.with_tensor("kv_indices", values=Randn(mean=3.5)), "slots_out_of_range"),
    "a slot of an empty pool": (
        VALID.with_tensor("unified_kv", shape=(0, 128)).with_tensor("kv_indptr", values=Listed((0, 1, 1))),
        "slots_out_of_range",
    ),
    "NaN query": (VALID.with_tensor("q", values=Full(nan)), "values_not_finite"),
    "a query that float16 has not": (HALF.with_tensor("q", values=Full(65_520)), "values_not_finite"),
    "a query that bfloat16 has not": (VALID.with_tensor("q", values=Full(3.4e38)), "values_not_finite"),
    "infinite pool": (VALID.with_tensor("unified_kv", values=Full(-inf)), "values_not_finite"),
    "NaN among the codes": (
        QUANTIZED.with_tensor("unified_kv", values=Listed((1, nan))),
        "values_not_finite",
    ),
    "NaN in a slot that is read": (
        slots_of(*[3] * 8).with_tensor("unified_kv", values=Listed((*[0] * 3 * 128, nan, *[0] * 639))),
        "values_not_finite",
    ),
    "sink inf": (VALID.with_tensor("attn_sink", values=Full(inf)), "values_not_finite"),
    "sink NaN": (VALID.with_tensor("attn_sink", values=Listed((0, nan))), "values_not_finite"),
    "scale that float16 has not": (scaled(Full(65_520), DType.F16), "values_not_finite"),
    "infinite scales": (scaled(Full(inf)), "values_not_finite"),
    "scale of 147 in float16": (scaled(Full(147), DType.F16), "scales_unfit_for_float16"),
    "scale of -147 in float16": (
        scaled(Listed((1, 1, 1, -147)), DType.F16),
        "scales_unfit_for_float16 scales_not_positive",
    ),
    "scale of 2^-25 in float16": (scaled(Full(2.0**-25), DType.F16), "scales_unfit_for_float16"),
    "scale 0 of a slot": (scaled(Zeros()), "scales_not_positive"),
    "negative scale of a slot": (scaled(Arange(1, -0.1)), "scales_not_positive"),
}


@pytest.mark.parametrize("row", FAILING)
def test_found(row: str) -> None:
    call, expected = FAILING[row]
    examination = OPERATION.examine(call)
    assert [outcome.check.id() for outcome in examination.failed()] == expected.split()
    assert examination.raised is None
    worst = {outcome.check.severity for outcome in examination.failed()}
    assert examination.rejected == (Severity.ERROR in worst)


PASSING: dict[str, SparseCall] = {
    "valid": VALID,
    "bfloat16 on Ampere": VALID.replace(target=Target("sm80")),
    "FP8 on Ada": QUANTIZED.replace(target=Target("sm89")),
    "FP8 on Blackwell": QUANTIZED.replace(target=Target("sm100")),
    "AMD's own FP8": QUANTIZED.with_dtype("unified_kv", DType.F8_E4M3FNUZ).replace(target=Target("gfx942")),
    "AMD's later FP8": QUANTIZED.replace(target=Target("gfx950")),
    "one token of many slots": SparseCall(
        q=TensorSpec((1, 128, 512), DType.BF16),
        unified_kv=TensorSpec((4096, 512), DType.BF16),
        kv_indices=TensorSpec((1152,), DType.I32),
        kv_indptr=TensorSpec((2,), DType.I32),
        attn_sink=TensorSpec((128,), DType.F32),
        softmax_scale=512**-0.5,
    ),
    "5 heads, an empty span": SparseCall(
        q=TensorSpec((3, 5, 64), DType.F16),
        unified_kv=TensorSpec((90, 64), DType.F16),
        kv_indices=TensorSpec((93,), DType.I32, values=Randint(0, 90)),
        kv_indptr=TensorSpec((4,), DType.I32, values=Listed((0, 0, 23, 93))),
        attn_sink=TensorSpec((5,), DType.F32),
        softmax_scale=64**-0.5,
    ),
    "448 columns": SparseCall(
        q=TensorSpec((2, 40, 448), DType.BF16),
        unified_kv=TensorSpec((90, 448), DType.BF16),
        kv_indices=TensorSpec((87,), DType.I32),
        kv_indptr=TensorSpec((3,), DType.I32, values=Listed((0, 10, 87))),
        attn_sink=TensorSpec((40,), DType.F32),
        softmax_scale=448**-0.5,
    ),
    "quantized": QUANTIZED,
    "column-major scales": QUANTIZED.with_tensor("kv_scales", strides=(1, 8)),
    "300 tokens": with_q(
        300,
        128,
        512,
        kv_indices=TensorSpec((sum(t % 65 for t in range(300)),), DType.I32),
        kv_indptr=TensorSpec(
            (301,),
            DType.I32,
            values=Listed(tuple(sum(t % 65 for t in range(token)) for token in range(301))),
        ),
    ),
    "transposed storage": VALID.with_tensor("q", strides=(128, 256, 1)).with_tensor(
        "unified_kv", strides=(1, 8)
    ),
    "int64 lists": VALID.with_dtype("kv_indices", DType.I64).with_dtype("kv_indptr", DType.I64),
    "no sinks": VALID.with_tensor("attn_sink", values=Full(-inf)),
    "offsets that start later": spans_of(4, 7, 8),
    "on the second GPU": VALID.replace(
        **{name: TensorSpec(t.shape, t.dtype, device="cuda:1") for name, t in VALID.tensors()}
    ),
    "cuda and cuda:0": VALID.with_tensor("unified_kv", device="cuda:0"),
    "more offsets than tokens": VALID.with_tensor("kv_indptr", shape=(9,), values=Listed((*[0] * 3, 99))),
    "one slot, any stride": VALID.with_tensor("kv_indices", shape=(1,), strides=(7,)).with_tensor(
        "kv_indptr", values=Zeros()
    ),
    "bfloat16 sinks": VALID.with_dtype("attn_sink", DType.BF16),
    "whole sinks": VALID.with_dtype("attn_sink", DType.I32),
    "4,194,304 slots of 512": pool_of(4_194_304, 512),
    "4,194,305 slots, int64 list": pool_of(4_194_305, 512).with_dtype("kv_indices", DType.I64),
    "9 columns, one split": with_q(2, 16, 9, kv_splits=1),
    "17 columns": with_q(2, 16, 17),
    "2 splits": VALID.replace(kv_splits=2),
    "4096 splits": VALID.replace(kv_splits=4096),
    "corrected scale": VALID.replace(softmax_scale=1.87 * 128**-0.5),
    "a quarter of the scale": VALID.replace(softmax_scale=128**-0.5 / 4),
    "scale as text": VALID.replace(softmax_scale="0.1"),
    "no token, one split": with_q(0, 16, 128, kv_splits=1),
    "spans to the end": spans_of(0, 8, 8),
    "empty spans": VALID.with_tensor("kv_indptr", values=Full(8)),
    "spans drawn within": VALID.with_tensor("kv_indptr", values=Randint(0, 9)),
    "slots drawn within": VALID.with_tensor("kv_indices", values=Randint(0, 8)),
    "slots by steps": VALID.with_tensor("kv_indices", values=Arange(7, -1)),
    "padded list": slots_of(0, 1, 2, 3, 4, 5, -1, 10**9, call=LAST),
    "no span, any slot": VALID.with_tensor("kv_indptr", values=Ones()).with_tensor(
        "kv_indices", values=Full(-1)
    ),
    "empty pool, no slot": fit({"unified_kv": TensorSpec((0, 64), DType.F16)}),
    "largest float16 query": HALF.with_tensor("q", values=Full(65_519)),
    "large codes": QUANTIZED.with_tensor("unified_kv", values=Full(1e9)),
    "NaN in a slot that nobody reads": slots_of(*[3] * 8).with_tensor(
        "unified_kv", values=Listed((*[0] * 896, *[nan] * 128))
    ),
    "scale 0 in a slot that nobody reads": slots_of(*[3] * 8, call=scaled(Listed((*[1] * 14, 0, 0)))),
    "some heads without a sink": VALID.with_tensor("attn_sink", values=Listed((0, -inf))),
    "scale of 146 in float16": scaled(Full(146), DType.F16),
    "scale of 2^-24 in float16": scaled(Full(2.0**-24), DType.F16),
    "large scales in bfloat16": scaled(Full(70_000)),
}


@pytest.mark.parametrize("row", PASSING)
def test_left_alone(row: str) -> None:
    examination = OPERATION.examine(PASSING[row])
    assert {outcome.check.id(): outcome.status for outcome in examination.outcomes} == {
        check.id(): Status.PASSED for check in OPERATION.checks
    }


RUN_LIMIT = 2**26


@pytest.mark.parametrize("row", [name for name, call in PASSING.items() if call.unified_kv.numel < RUN_LIMIT])
def test_what_passes_runs(row: str) -> None:
    call = PASSING[row]
    arguments = materialise(call, OPERATION.fill(call), "cpu")
    arguments.pop("kv_splits")
    out = reference.decode(**arguments)
    assert out.shape == call.q.shape


WARNED = [name for name, (call, _) in FAILING.items() if not OPERATION.examine(call).rejected]


@pytest.mark.parametrize("row", WARNED)
def test_what_is_only_warned_of_runs(row: str) -> None:
    call, _ = FAILING[row]
    arguments = materialise(call, OPERATION.fill(call), "cpu")
    arguments.pop("kv_splits")
    assert reference.decode(**arguments).shape == call.q.shape


@pytest.mark.parametrize("row", FAILING)
def test_every_fix_passes_its_check_and_changes_something(row: str) -> None:
    call, _ = FAILING[row]
    for outcome in OPERATION.examine(call).failed():
        for occurrence in outcome.occurrences:
            for fix in occurrence.violation.fixes(call):
                assert fix.edits(call), fix.title
                [own] = [o for o in OPERATION.examine(fix.call).outcomes if o.check is outcome.check]
                assert own.status is Status.PASSED, fix.title


@dataclass(frozen=True)
class Fixed:
    """First fix of the first failing check: the arguments it changes, and what they hold then."""

    edits: list[tuple[str, str, object]]
    safe: bool


def listed(*data: float) -> dict[str, object]:
    return {"data": list(data), "kind": "list"}


FIRST_FIXES = {
    "a page dimension": Fixed([("unified_kv", "shape", [8, 128])], True),
    "wider pool": Fixed([("unified_kv", "shape", [8, 128])], False),
    "narrower pool": Fixed([("q", "shape", [2, 16, 127])], False),
    "FP8 on Ampere": Fixed([("unified_kv", "dtype", "bfloat16"), ("kv_scales", "presence", None)], False),
    "sink on another GPU": Fixed([("attn_sink", "device", "cuda")], True),
    "slots of floats": Fixed([("kv_indices", "dtype", "int32")], True),
    "slots of bools": Fixed([("kv_indices", "dtype", "int32")], False),
    "unsigned spans": Fixed([("kv_indptr", "dtype", "int64")], True),
    "every second slot": Fixed([("kv_indices", "strides", [1])], True),
    "a table of slots": Fixed([("kv_indices", "shape", [8])], True),
    "4,194,305 slots of 512": Fixed([("kv_indices", "dtype", "int64")], True),
    "3 splits": Fixed([("kv_splits", "value", 2)], True),
    "0 splits": Fixed([("kv_splits", "value", None)], True),
    "span past the list": Fixed([("kv_indptr", "values", listed(0, 3, 8))], False),
    "falling spans": Fixed([("kv_indptr", "values", listed(0, 5, 8))], False),
    "slot -1": Fixed(
        [
            ("kv_indices", "shape", [7]),
            ("kv_indices", "values", listed(1, 2, 3, 4, 5, 6, 7)),
            ("kv_indptr", "values", listed(0, 3, 7)),
        ],
        True,
    ),
    "slot P": Fixed([("kv_indices", "values", None)], False),
    "a query that float16 has not": Fixed(
        [("q", "dtype", "bfloat16"), ("unified_kv", "dtype", "bfloat16")], True
    ),
    "scale of 147 in float16": Fixed([("q", "dtype", "bfloat16")], True),
}


@pytest.mark.parametrize("row", FIRST_FIXES)
def test_the_first_fix_is_the_smallest_and_enough(row: str) -> None:
    call, _ = FAILING[row]
    [occurrence, *_] = OPERATION.examine(call).failed()[0].occurrences
    fix = next(iter(occurrence.violation.fixes(call)))
    edits = [(edit.argument, edit.attribute, edit.after) for edit in fix.edits(call)]
    assert (edits, fix.safe) == (FIRST_FIXES[row].edits, FIRST_FIXES[row].safe)
    assert not OPERATION.examine(fix.call).rejected


def test_a_check_whose_premise_fails_is_not_reached() -> None:
    flat = {o.check.id(): o.status for o in OPERATION.examine(pool_of(8, 1, 128)).outcomes}
    assert flat["pool_width_differs"] is Status.NOT_REACHED
    assert flat["slots_out_of_range"] is Status.PASSED
    missing = {o.check.id(): o.status for o in OPERATION.examine(FAILING["T spans"][0]).outcomes}
    assert missing["spans_out_of_range"] is missing["slots_out_of_range"] is Status.NOT_REACHED


def test_every_argument_on_another_gpu_is_named() -> None:
    call = QUANTIZED.with_tensor("q", device="cuda:1")
    [outcome] = OPERATION.examine(call).failed()
    assert [occurrence.violation.text for occurrence in outcome.occurrences] == [
        f"{name} is on cuda:0, q on cuda:1"
        for name in ("unified_kv", "kv_indices", "kv_indptr", "attn_sink", "kv_scales")
    ]


def test_narrow_index_types_are_filled_with_what_they_hold() -> None:
    call = pool_of(4096, 128).with_tensor("kv_indices", shape=(1000,))
    narrow = call.with_dtype("kv_indices", DType.I8).with_dtype("kv_indptr", DType.I8)
    arguments = materialise(narrow, OPERATION.fill(narrow), "cpu")
    assert int(arguments["kv_indices"].min()) >= 0
    assert arguments["kv_indptr"].tolist() == [0, 63, 126]


# --- what is read, against tensors that were built


LISTS = st.lists(st.integers(-3, 12), min_size=1, max_size=10)


def described(offsets: list[int], slots: list[int], entries: int) -> SparseCall:
    call = VALID.with_tensor("kv_indices", shape=(entries,), values=Listed(tuple(slots)))
    return call.with_tensor("kv_indptr", values=Listed(tuple(offsets)))


@given(LISTS, LISTS, st.integers(0, 12))
def test_slots_are_refused_exactly_when_one_that_is_read_lies_outside(
    offsets: list[int], slots: list[int], entries: int
) -> None:
    call = described(offsets, slots, entries)
    failed = {outcome.check.id() for outcome in OPERATION.examine(call).failed()}
    arguments = materialise(call, {}, "cpu")
    starts, held = arguments["kv_indptr"].tolist(), arguments["kv_indices"].tolist()
    places = [place for a, b in pairwise(starts) for place in range(a, b)]
    inside = [place for place in places if 0 <= place < entries]
    assert covered(spans(call)) == set(inside)
    assert covered(slots_read(call)) == {held[place] for place in inside if 0 <= held[place] < 8}
    assert ("slots_out_of_range" in failed) == any(not 0 <= held[place] < 8 for place in inside)
    assert ("spans_out_of_range" in failed) == any(not 0 <= start <= entries for start in starts)
    assert ("spans_decrease" in failed) == (starts != sorted(starts))


@given(LISTS, LISTS, st.integers(0, 12))
def test_lists_that_pass_are_read_without_an_error(
    offsets: list[int], slots: list[int], entries: int
) -> None:
    call = described(offsets, slots, entries)
    if not OPERATION.examine(call).rejected:
        arguments = materialise(call, OPERATION.fill(call), "cpu")
        arguments.pop("kv_splits")
        assert torch.isfinite(reference.decode(**arguments)).all()


def covered(ranges: list[range]) -> set[int]:
    return {place for places in ranges for place in places}


@given(LISTS, st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=4))
def test_elements_of_a_list_are_those_in_the_places(data: list[int], places: list[tuple[int, int]]) -> None:
    ranges = [range(start, start + length) for start, length in places]
    expected = {data[place % len(data)] for place in covered(ranges)}
    assert set(elements(Listed(tuple(data)), ranges)) == expected


EXTREMES: list[tuple[Values, set[float]]] = [
    (Zeros(), {0}),
    (Ones(), {1}),
    (Full(7), {7}),
    (Arange(10, 2), {14, 22}),
    (Arange(10, -2), {6, -2}),
    (Randint(3, 9), {3, 8}),
    (Randn(), set()),
    (Listed(()), {0}),
    (Text("ab"), {0, 97, 98}),
]


@pytest.mark.parametrize(("values", "expected"), EXTREMES)
def test_extremes_of_a_generator_are_known(values: Values, expected: set[float]) -> None:
    assert set(elements(values, [range(2, 4), range(5, 7)])) == expected
    assert not list(elements(values, [range(4, 4)]))


def test_a_step_beyond_floats_is_infinite() -> None:
    call = VALID.with_tensor("kv_indices", shape=(10**400,), values=Arange(0, 0.5))
    call = call.with_tensor("kv_indptr", values=Listed((0, 0, 10**400)))
    [outcome] = OPERATION.examine(call).failed()
    assert outcome.check.id() == "slots_out_of_range"
