"""What upstream lets through: each fault, and the call beside it that is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kernels.checking import Severity
from kernels.dtypes import DType
from kernels.inkling_attn_prologue.beyond_settings import with_taps
from kernels.inkling_attn_prologue.signature import PrologueCall
from kernels.registry import Operation
from kernels.spec import TensorSpec
from kernels.values import Arange, Full, Listed, Ones, Randint, Values, Zeros
from tests.kernels.inkling_attn_prologue.calls import DECODE, EXTEND, VERIFY, base, failed, listed, raised

BOOL, U8, I32, I64 = DType.BOOL, DType.U8, DType.I32, DType.I64
BF16, F16, F32, FP8 = DType.BF16, DType.F16, DType.F32, DType.F8_E4M3FN
Change = Callable[[PrologueCall], PrologueCall]


def tensor(name: str, /, **attributes: Any) -> Change:
    return lambda call: call.with_tensor(name, **attributes)


def tensors(*names: str, **attributes: Any) -> Change:
    def change(call: PrologueCall) -> PrologueCall:
        for name in names:
            call = call.with_tensor(name, **attributes)
        return call

    return change


def arguments(**changes: Any) -> Change:
    return lambda call: call.replace(**changes)


def values(**described: Values) -> Change:
    def change(call: PrologueCall) -> PrologueCall:
        for name, generator in described.items():
            call = call.with_tensor(name, values=generator)
        return call

    return change


def then(*changes: Change) -> Change:
    def change(call: PrologueCall) -> PrologueCall:
        for each in changes:
            call = each(call)
        return call

    return change


def same(call: PrologueCall) -> PrologueCall:
    return call


def quantized(call: PrologueCall) -> PrologueCall:
    return call.quantized()


def tracked(slots: TensorSpec, mask: TensorSpec | None = None) -> Change:
    return arguments(track_mask=mask or TensorSpec((3,), BOOL), track_indices=slots)


def batch(call: PrologueCall) -> PrologueCall:
    """Extend's call with two sequences in three tokens."""
    for name, size in (("cache_indices", 2), ("cache_mask", 2), ("has_initial_state", 2), ("cu", 3)):
        call = call.with_tensor(name, shape=(size,))
    for name in ("track_mask", "track_dst"):
        call = call.with_tensor(name, shape=(2,))
    return call.with_tensor("track_rows", shape=(2, 3))


POOLS, CACHES, WEIGHTS = ("k_buf", "v_buf"), ("k_cache", "v_cache"), ("k_weight", "v_weight")

ROWS: dict[str, tuple[Operation, str, Change, Change]] = {
    "Y1 host": (DECODE, "not_on_one_gpu", tensor("loc", device="cpu"), tensor("loc", device="cuda:0")),
    "Y1 other GPU": (VERIFY, "not_on_one_gpu", tensor("k_gamma", device="cuda:1"), same),
    "Y1 rows on the host": (EXTEND, "not_on_one_gpu", tensor("qkvr", device="cpu"), same),
    "Y2": (
        DECODE,
        "loc_misread",
        tensor("loc", dtype=I32),
        then(tensor("loc", dtype=I32), arguments(do_store=False)),
    ),
    "Y3": (
        DECODE,
        "loc_out_of_range",
        values(loc=Listed((0, 256, 1))),
        values(loc=Listed((0, 255, -9))),
    ),
    "Y3 bounds": (VERIFY, "loc_out_of_range", values(loc=Randint(0, 257)), values(loc=Randint(0, 256))),
    "Y3 smaller v_buf": (
        EXTEND,
        "loc_out_of_range",
        then(tensor("v_buf", shape=(200, 1, 128)), values(loc=Listed((1, 2, 200)))),
        then(tensor("v_buf", shape=(200, 1, 128)), values(loc=Listed((1, 2, 199)))),
    ),
    "Y4": (
        DECODE,
        "pool_not_whole_pages",
        then(tensors(*POOLS, shape=(300, 1, 128)), quantized),
        then(tensors(*POOLS, shape=(384, 1, 128)), quantized),
    ),
    "Y5": (
        DECODE,
        "state_slot_out_of_range",
        values(cache_indices=Listed((0, -2, 1))),
        values(cache_indices=Listed((0, -1, 1))),
    ),
    "Y6": (
        VERIFY,
        "state_slot_out_of_range",
        values(cache_indices=Full(8)),
        values(cache_indices=Full(7)),
    ),
    "Y7 loc": (EXTEND, "too_short", tensor("loc", shape=(2,)), tensor("loc", shape=(4, 1))),
    "Y7 state slots": (DECODE, "too_short", tensor("cache_indices", shape=(1,)), same),
    "Y7 masks": (
        DECODE,
        "too_short",
        tensor("cache_mask", shape=(2,)),
        tensor("cache_mask", shape=(3, 1, 1)),
    ),
    "Y7 track slots": (
        DECODE,
        "too_short",
        tracked(TensorSpec((2,), I64)),
        tracked(TensorSpec((3,), I64, strides=(5,))),
    ),
    "Y8 type": (DECODE, "gamma_misread", tensor("q_gamma", dtype=F32), same),
    "Y8 shape": (
        EXTEND,
        "gamma_not_a_head",
        tensor("k_gamma", shape=(1,)),
        tensor("k_gamma", shape=(1, 128)),
    ),
    "Y8 strides": (VERIFY, "gamma_not_a_head", tensor("k_gamma", strides=(2,)), same),
    "Y9": (DECODE, "mask_misread", tensor("cache_mask", dtype=I32), same),
    "Y9 state": (EXTEND, "mask_misread", tensor("has_initial_state", dtype=U8), same),
    "Y10 bounds": (EXTEND, "sequence_misread", tensor("cu", dtype=I32), same),
    "Y10 owners": (EXTEND, "sequence_misread", tensor("si", dtype=I64), same),
    "Y10 track slots": (
        DECODE,
        "track_slots_misread",
        tracked(TensorSpec((3,), I32)),
        tracked(TensorSpec((3,), I64)),
    ),
    "Y11 state": (DECODE, "state_misread", tensors(*CACHES, dtype=F16), same),
    "Y11 windows": (VERIFY, "state_misread", tensors("k_inter", "v_inter", dtype=F32), same),
    "Y12": (
        DECODE,
        "pool_misread",
        tensors(*POOLS, dtype=FP8),
        then(tensors(*POOLS, dtype=FP8), arguments(do_store=False)),
    ),
    "Y13": (
        DECODE,
        "pool_heads_differ",
        tensors(*POOLS, shape=(256, 2, 128)),
        tensors(*POOLS, shape=(256, 128)),
    ),
    "Y14 rows": (DECODE, "misaligned", tensor("qkvr", offset=1), tensor("qkvr", offset=8)),
    "Y14 rows of a cache": (
        DECODE,
        "misaligned",
        tensors(*CACHES, strides=(3 * 260, 260, 1)),
        tensors(*CACHES, strides=(3 * 264, 264, 1)),
    ),
    "Y14 pool": (
        VERIFY,
        "misaligned",
        then(quantized, tensor("v_buf", offset=4)),
        then(quantized, tensor("v_buf", offset=8)),
    ),
    "Y14 weights": (EXTEND, "misaligned", tensor("k_weight", offset=2), tensor("k_weight", offset=4)),
    "Y14 gamma": (EXTEND, "misaligned", tensor("q_gamma", offset=4), tensor("q_gamma", offset=8)),
    "Y15 before": (DECODE, "slices_outside_row", arguments(q_off=-8), same),
    "Y15 behind": (DECODE, "slices_outside_row", arguments(v_off=408), arguments(v_off=400)),
    "Y15 not the width": (
        DECODE,
        "slices_outside_row",
        tensor("qkvr", shape=(3, 256)),
        tensor("qkvr", shape=(3, 256), strides=(512, 1)),
    ),
    "Y15 overlap": (EXTEND, "slices_overlap", arguments(k_off=248), arguments(k_off=256)),
    "Y16 history": (DECODE, "sizes_out_of_step", tensors(*CACHES, shape=(8, 2, 128)), same),
    "Y16 taps": (DECODE, "sizes_out_of_step", tensor("v_weight", shape=(128, 3), strides=(4, 1)), same),
    "Y16 channels": (
        DECODE,
        "sizes_out_of_step",
        tensors(*WEIGHTS, shape=(127, 4)),
        tensors(*WEIGHTS, shape=(129, 4)),
    ),
    "Y16 slots": (EXTEND, "sizes_out_of_step", tensor("v_cache", shape=(7, 3, 128)), same),
    "Y17 weights": (
        DECODE,
        "strided",
        tensors(*WEIGHTS, strides=(1, 128)),
        tensors(*WEIGHTS, strides=(8, 1)),
    ),
    "Y17 slots": (
        DECODE,
        "strided",
        tensor("cache_indices", strides=(2,)),
        tensor("cache_indices", dtype=I64, strides=(2,)),
    ),
    "Y17 loc": (VERIFY, "strided", tensor("loc", strides=(0,)), same),
    "Y17 elements of a slot": (DECODE, "strided", tensors(*POOLS, strides=(256, 256, 2)), same),
    "Y18": (
        VERIFY,
        "sizes_out_of_step",
        tensors("k_inter", "v_inter", shape=(1, 2, 3, 128)),
        tensors("k_inter", "v_inter", shape=(2, 4, 3, 136)),
    ),
    "Y19 falling": (EXTEND, "sequences_out_of_step", then(batch, values(cu=Listed((0, 4, 3)))), batch),
    "Y19 end": (
        EXTEND,
        "sequences_out_of_step",
        then(batch, values(cu=Listed((0, 1, 4)))),
        then(batch, values(cu=Listed((0, 1, 3)))),
    ),
    "Y19 owner": (
        EXTEND,
        "sequences_out_of_step",
        then(batch, values(si=Listed((0, 1, 2)))),
        then(batch, values(si=Listed((0, 1, 1)))),
    ),
    "Y19 disagreement": (
        EXTEND,
        "sequences_out_of_step",
        then(batch, values(cu=Listed((0, 1, 3)), si=Listed((0, 0, 1)))),
        then(batch, values(cu=Listed((0, 1, 3)), si=Listed((0, 1, 1)))),
    ),
    "Y20 slots": (
        DECODE,
        "track_slot_out_of_range",
        tracked(listed(5, 8, 6)),
        tracked(listed(5, 8, 6), listed(1, 0, 1, dtype=BOOL)),
    ),
    "Y20 destination": (
        EXTEND,
        "tracked_rows_out_of_range",
        values(track_dst=Full(-1)),
        values(track_dst=Full(7)),
    ),
    "Y20 rows": (
        EXTEND,
        "tracked_rows_out_of_range",
        values(track_rows=Listed((0, 1, 3))),
        values(track_rows=Listed((0, 1, 2))),
    ),
    "Y20 mask": (EXTEND, "track_mask_too_long", tensor("track_mask", shape=(2,)), same),
    "Y21 loc": (DECODE, "slots_shared", values(loc=Listed((4, 4, 5))), values(loc=Listed((-1, -1, 5)))),
    "Y21 state": (
        DECODE,
        "slots_shared",
        values(cache_indices=Listed((4, 4, 5))),
        values(cache_indices=Listed((-1, -1, 5)), cache_mask=Zeros()),
    ),
    "Y21 state that is only read": (
        EXTEND,
        "slots_shared",
        then(batch, values(cache_indices=Ones())),
        then(batch, values(cache_indices=Ones()), arguments(do_cache_update=False)),
    ),
    "Y21 track": (
        DECODE,
        "slots_shared",
        then(values(cache_indices=Arange()), tracked(listed(1, 6, 7), listed(1, 1, 1, dtype=BOOL))),
        then(values(cache_indices=Arange()), tracked(listed(1, 6, 7), listed(0, 1, 1, dtype=BOOL))),
    ),
    "Y21 drawn": (EXTEND, "slots_shared", values(loc=Randint(0, 2)), values(loc=Randint(0, 3))),
    "Y22": (DECODE, "unknown_activation", arguments(activation="gelu"), arguments(activation="swish")),
    "Y23": (
        VERIFY,
        "tau_empty",
        arguments(log_scaling_tau=TensorSpec((0,), F32)),
        arguments(log_scaling_tau=TensorSpec((3,), F32)),
    ),
    "Y24": (
        DECODE,
        "masked_state_not_finite",
        values(k_cache=Full(1e39), cache_mask=Listed((1, 0, 1))),
        values(k_cache=Full(1e39), cache_mask=Ones()),
    ),
    "Y25": (
        DECODE,
        "padding_not_masked",
        values(cache_indices=Listed((0, -1, 1)), cache_mask=Ones()),
        values(cache_indices=Listed((0, -1, 1)), cache_mask=Listed((1, 0, 1))),
    ),
    "Y28": (DECODE, "width_untested", lambda call: with_taps(call, 5), lambda call: with_taps(call, 2)),
    "Y28 beyond": (
        VERIFY,
        "width_too_wide",
        lambda call: with_taps(call, 9),
        lambda call: with_taps(call, 3),
    ),
    "Y30": (
        EXTEND,
        "page_size_unusual",
        lambda call: call.replace(page_size=64).quantized(),
        lambda call: call.replace(page_size=64),
    ),
    "expanded pool": (DECODE, "slots_share_memory", tensors(*POOLS, strides=(0, 128, 1)), same),
    "expanded windows": (
        VERIFY,
        "slots_share_memory",
        tensors("k_inter", "v_inter", shape=(2, 3, 3, 128), strides=(0, 384, 128, 1)),
        tensors("k_inter", "v_inter", shape=(1, 3, 3, 128), strides=(0, 384, 128, 1)),
    ),
    "slots with fractions": (DECODE, "state_slots_not_whole", tensor("cache_indices", dtype=F32), same),
}

WARNINGS = {
    "slices_overlap",
    "slots_shared",
    "tau_empty",
    "padding_not_masked",
    "width_untested",
    "page_size_unusual",
}
"""Nothing is corrupted, or what is does not count."""


@pytest.mark.parametrize("row", ROWS)
def test_found_where_it_is_and_not_beside_it(row: str) -> None:
    operation, check, fault, beside = ROWS[row]
    call = fault(base(operation))
    assert failed(operation, call) == [check]
    assert raised(operation, call) is None, "upstream says nothing"
    examination = operation.examine(call)
    assert examination.rejected is (check not in WARNINGS)
    assert failed(operation, beside(base(operation))) == []
    for found in examination.failed()[0].occurrences:
        for fix in found.violation.fixes(found.subject):
            assert check not in failed(operation, fix.call), fix.title


def test_warnings_are_those_that_corrupt_nothing() -> None:
    found = {
        check.id()
        for operation in (DECODE, VERIFY, EXTEND)
        for check in operation.checks
        if check.severity is Severity.WARNING
    }
    assert found == WARNINGS


@pytest.mark.parametrize(
    ("cu", "si"), [((0, 1, 3), None), ((0, 3, 3), None), (None, (0, 0, 1)), (None, (1, 1, 1))]
)
def test_the_fill_follows_a_described_half_of_the_bounds(
    cu: tuple[int, ...] | None, si: tuple[int, ...] | None
) -> None:
    call = batch(base(EXTEND))
    for name, numbers in (("cu", cu), ("si", si)):
        if numbers is not None:
            call = call.with_tensor(name, values=Listed(numbers))
    filled = EXTEND.fill(call)
    for name in ("cu", "si"):
        tensor_spec = getattr(call, name)
        call = call.replace(**{name: replace(tensor_spec, values=tensor_spec.values or filled[name])})
    assert failed(EXTEND, call) == []


def test_values_left_to_the_fill_trip_nothing() -> None:
    for operation in (DECODE, VERIFY, EXTEND):
        call = base(operation)
        filled = operation.fill(call)
        for name, _ in call.tensors():
            call = call.with_tensor(name, values=filled[name])
        assert failed(operation, call) == []
