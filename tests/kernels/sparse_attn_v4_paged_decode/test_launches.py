"""A kernel is compiled before its pointers are looked at: what comes behind is then not reached."""

from __future__ import annotations

import pytest

from kernels.checking import Status
from kernels.dtypes import DType
from kernels.sparse_attn_v4_paged_decode.checks import OPERATIONS
from kernels.sparse_attn_v4_paged_decode.signature import QUANTIZED, VALID, SparseCall
from kernels.spec import TensorSpec
from kernels.target import Target

[OPERATION] = OPERATIONS
REACHED = ("pointer_on_host", "nothing_to_reduce", "head_too_narrow_to_join", "sink_on_host")
NARROW = VALID.replace(
    q=TensorSpec((2, 16, 8), DType.BF16), unified_kv=TensorSpec((8, 8), DType.BF16), softmax_scale=0.25
)
JOINED = VALID.replace(
    q=TensorSpec((2, 16, 16), DType.BF16), unified_kv=TensorSpec((8, 16), DType.BF16), softmax_scale=0.25
)
FIRST_STOPS = {
    "slots that are no integers": VALID.with_dtype("kv_indices", DType.F32),
    "spans that are no integers": VALID.with_dtype("kv_indptr", DType.F16),
    "spans too narrow": VALID.with_dtype("kv_indptr", DType.U8),
    "a head too narrow": NARROW,
    "FP8 before Ada": QUANTIZED.replace(target=Target("sm80")),
    "a sink of no known type in the one kernel": VALID.with_dtype("attn_sink", DType.C64).replace(
        kv_splits=1
    ),
}


def outcome(call: SparseCall, check: str) -> Status:
    return {each.check.id(): each.status for each in OPERATION.examine(call).outcomes}[check]


@pytest.mark.parametrize("name", FIRST_STOPS)
def test_nothing_is_said_of_launches_behind_a_kernel_that_does_not_compile(name: str) -> None:
    call = FIRST_STOPS[name]
    moved = call.with_tensor("attn_sink", device="cpu").with_tensor("kv_indptr", device="cpu")
    for each in (moved, moved.with_tensor("q", shape=(0, *call.q.shape[1:]))):
        examination = OPERATION.examine(each)
        assert examination.raised is None
        assert examination.rejected
        assert {outcome(each, check) for check in REACHED} == {Status.NOT_REACHED}


@pytest.mark.parametrize(
    "call",
    [VALID.replace(kv_splits=3), VALID.with_dtype("attn_sink", DType.C64).replace(kv_splits=2)],
    ids=["splits", "sink"],
)
def test_the_first_kernel_is_launched_before_the_joining_one_is_compiled(call: SparseCall) -> None:
    sink = call.with_tensor("attn_sink", device="cpu")
    assert OPERATION.examine(sink).raised is None
    assert outcome(sink, "sink_on_host") is Status.NOT_REACHED
    pointer = sink.with_tensor("kv_indptr", device="cpu")
    assert outcome(pointer, "pointer_on_host") is Status.FAILED


def test_joining_narrow_heads_fails_before_its_kernel_is_compiled() -> None:
    call = JOINED.with_dtype("attn_sink", DType.C64).replace(kv_splits=3)
    assert outcome(call, "head_too_narrow_to_join") is Status.FAILED
    raised = OPERATION.examine(call).raised
    assert raised is not None
    assert type(raised).id() == "head_too_narrow_to_join"


def test_booleans_compile() -> None:
    call = VALID.with_dtype("kv_indices", DType.BOOL).with_tensor("attn_sink", device="cpu")
    raised = OPERATION.examine(call).raised
    assert raised is not None
    assert type(raised).id() == "sink_on_host"
