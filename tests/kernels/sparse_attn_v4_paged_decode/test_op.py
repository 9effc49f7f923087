"""The guarded function on tensors: it refuses as upstream does, and runs our kernel in the interpreter."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.dtypes import DType
from kernels.live import stated_devices
from kernels.running import compare, materialise
from kernels.sparse_attn_v4_paged_decode.checks import OPERATIONS
from kernels.sparse_attn_v4_paged_decode.op import RUNNERS, sparse_attn_v4_paged_decode
from kernels.sparse_attn_v4_paged_decode.signature import FP8, QUANTIZED, VALID, SparseCall, fit
from kernels.spec import TensorSpec
from kernels.values import seeded
from tests.kernels.sparse_attn_v4_paged_decode.problems import BF16, Problem, close, problem

NAN = math.nan
[OPERATION] = OPERATIONS
pytestmark = pytest.mark.usefixtures("interpreted")


@contextmanager
def emulated(arguments: dict[str, Any]) -> Iterator[None]:
    tensors = {id(value): "cuda:0" for value in arguments.values() if isinstance(value, Tensor)}
    with stated_devices(tensors):
        yield


def live(p: Problem, **changes: Any) -> Tensor:
    arguments = vars(p) | changes
    with emulated(arguments):
        return sparse_attn_v4_paged_decode(**arguments)


def test_the_function_returns_what_the_reference_does_and_changes_nothing() -> None:
    p = problem((3, 5), fp8=True)
    before = [tensor.clone() for tensor in vars(p).values() if isinstance(tensor, Tensor)]
    out = live(p)
    close(out, p.run())
    after = [tensor for tensor in vars(p).values() if isinstance(tensor, Tensor)]
    assert all(
        torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(before, after, strict=True)
    )
    close(live(p, kv_splits=4), out)


def test_a_real_cpu_tensor_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"^Triton sparse_attn_v4_paged_decode requires CUDA/HIP tensors$"):
        sparse_attn_v4_paged_decode(**vars(problem((3, 5))))


def test_no_token_and_one_split_returns_an_empty_tensor() -> None:
    p = replace(problem((3, 5)), q=torch.empty(0, 16, 128, dtype=BF16))
    assert live(p, kv_splits=1).shape == (0, 16, 128)
    with pytest.raises(ZeroDivisionError, match=r"^integer division or modulo by zero$"):
        live(p)


def test_scales_that_are_a_number_fail_as_in_python() -> None:
    with pytest.raises(AttributeError, match=r"^'float' object has no attribute 'dtype'$"):
        live(problem((3, 5), fp8=True), kv_scales=0.5)


Change = Callable[[Problem], Problem]

REFUSED: dict[str, tuple[Change, str]] = {
    "spans_too_few": (
        lambda p: replace(p, kv_indptr=p.kv_indptr[:2]),
        "kv_indptr has 2 entries, 2 tokens need 3",
    ),
    "indices_not_integers": (
        lambda p: replace(p, kv_indices=p.kv_indices.float()),
        "kv_indices must be int32 or int64, got float32",
    ),
    "list_not_dense": (
        lambda p: replace(p, kv_indices=p.kv_indices.repeat_interleave(2)[::2]),
        "kv_indices must be dense, got shape (8,) and strides (2,)",
    ),
    "pool_width_differs": (
        lambda p: replace(p, unified_kv=p.unified_kv[:, :64]),
        "unified_kv is 64 columns wide, q 128",
    ),
    "pool_has_too_many_dimensions": (
        lambda p: replace(p, unified_kv=p.unified_kv.view(8, 2, 64)),
        "unified_kv has 3 dimensions, not 2",
    ),
    "sinks_too_few": (
        lambda p: replace(p, attn_sink=p.attn_sink[:1]),
        "attn_sink has 1 elements, 16 heads need as many",
    ),
    "softmax_scale_not_finite": (
        lambda p: replace(p, softmax_scale=NAN),
        "softmax_scale is nan, which is not finite",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_upstream_takes_and_reads_wrongly_is_refused_here(what: str) -> None:
    change, text = REFUSED[what]
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$") as raised:
        live(change(problem((3, 5))))
    assert type(raised.value.violation).id() == what  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.uint32])
def test_indices_of_other_whole_numbers_are_read_as_they_are(dtype: torch.dtype) -> None:
    p = problem((3, 5))
    unusual = replace(p, kv_indices=p.kv_indices.to(dtype), kv_indptr=p.kv_indptr.to(dtype))
    splits = 1 if dtype.itemsize == 1 else None  # more of them do not compile upstream
    assert torch.equal(live(unusual, kv_splits=splits), live(p, kv_splits=splits))


RUNNABLE: dict[str, SparseCall] = {
    "valid": VALID,
    "quantized": QUANTIZED,
    "float16": VALID.with_dtype("q", DType.F16).with_dtype("unified_kv", DType.F16),
    "strided": VALID.with_tensor("q", strides=(128, 256, 1)).with_tensor("unified_kv", strides=(1, 8)),
    "65 tokens": fit({"q": TensorSpec((65, 3, 64), DType.BF16)}),
    "empty pool": fit({"unified_kv": TensorSpec((0, 64), FP8), "kv_scales": TensorSpec((0, 1), DType.F32)}),
}


@pytest.mark.parametrize("name", RUNNABLE)
def test_a_described_call_runs_as_the_worker_runs_it(name: str) -> None:
    call, runner = RUNNABLE[name], RUNNERS["sparse_attn_v4_paged_decode"]
    values = seeded(OPERATION.fill(call), 7)
    arguments = materialise(call, values, "cpu")
    with emulated(arguments):
        out = runner.outputs(arguments, runner.function(**arguments))
    expected = runner.reference(materialise(call, values, "cpu"))
    assert out.keys() == expected.keys() == {"out"}
    assert compare("out", out["out"], expected["out"], runner.tolerance("out", call)).within
    assert bool(out["out"].isfinite().all())
    assert bool((out["out"] != 0).any()) or call.unified_kv.shape[0] == 0
