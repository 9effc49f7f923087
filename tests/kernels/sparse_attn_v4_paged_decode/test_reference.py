"""The reference against loops in float64, its rules for special values, the guarded function on tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.dtypes import DType
from kernels.live import stated_devices
from kernels.running import compare, materialise, seeded
from kernels.sparse_attn_v4_paged_decode import reference
from kernels.sparse_attn_v4_paged_decode.checks import OPERATIONS
from kernels.sparse_attn_v4_paged_decode.op import RUNNERS, sparse_attn_v4_paged_decode, tolerance
from kernels.sparse_attn_v4_paged_decode.signature import FP8, QUANTIZED, VALID, SparseCall, fit
from kernels.spec import TensorSpec

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAN, INF = math.nan, math.inf
[OPERATION] = OPERATIONS


@dataclass
class Problem:
    """Live arguments of one call."""

    q: Tensor
    unified_kv: Tensor
    kv_indices: Tensor
    kv_indptr: Tensor
    attn_sink: Tensor
    softmax_scale: float
    kv_scales: Tensor | None = None

    def run(self, mode: reference.Mode = "kernel") -> Tensor:
        return reference.decode(**vars(self), mode=mode)


def problem(
    lengths: tuple[int, ...],
    heads: int = 16,
    width: int = 128,
    slots: int = 8,
    dtype: torch.dtype = BF16,
    *,
    fp8: bool = False,
    seed: int = 0,
) -> Problem:
    """Queries and pool of half the unit normal, slots drawn at random."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.5

    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    indices = torch.randint(0, slots, (int(starts[-1]),), generator=generator, dtype=torch.int32)
    pool, scales = normal(slots, width), None
    if fp8:
        groups = pool.view(slots, width // 64, 64)
        scales = groups.abs().amax(-1) / 448
        pool = (groups / scales.unsqueeze(-1)).clamp(-448, 448).reshape(slots, width)
    return Problem(
        normal(len(lengths), heads, width).to(dtype),
        pool.to(torch.float8_e4m3fn if fp8 else dtype),
        indices,
        starts,
        torch.randn(heads, generator=generator),
        width**-0.5,
        scales,
    )


def plainly(p: Problem) -> Tensor:
    """The formula of the operation, term by term in float64."""
    tokens, heads, width = p.q.shape
    rows = p.unified_kv.double().tolist()
    if p.kv_scales is not None:
        dequantized = torch.empty(p.unified_kv.shape, dtype=torch.float64)
        for slot in range(p.unified_kv.shape[0]):
            for group in range(width // 64):
                columns = slice(64 * group, 64 * group + 64)
                scale = p.kv_scales[slot, group].to(p.q.dtype).double()
                exact = p.unified_kv[slot, columns].double() * scale
                dequantized[slot, columns] = exact.to(p.q.dtype).double()
        rows = dequantized.tolist()
    queries, sinks = p.q.double().tolist(), p.attn_sink.double().tolist()
    out = torch.zeros(tokens, heads, width, dtype=torch.float64)
    for t in range(tokens):
        chosen = p.kv_indices[int(p.kv_indptr[t]) : int(p.kv_indptr[t + 1])].tolist()
        if not chosen:
            continue
        for h in range(heads):
            scores = [p.softmax_scale * math.fsum(map(float.__mul__, queries[t][h], rows[s])) for s in chosen]
            highest = max([*scores, sinks[h]])
            exponentials = [math.exp(score - highest) for score in scores]
            total = math.fsum(exponentials) + math.exp(sinks[h] - highest)
            for weight, slot in zip(exponentials, chosen, strict=True):
                out[t, h] += weight / total * torch.tensor(rows[slot], dtype=torch.float64)
    return out


def close(actual: Tensor, expected: Tensor) -> None:
    spec = VALID.with_dtype("q", DType.F16 if actual.dtype is FP16 else DType.BF16)
    comparison = compare("out", actual, expected.to(actual.dtype), tolerance("out", spec))
    assert comparison.within, comparison


PROBLEMS = {
    "1": problem((3, 5)),
    "3": problem((0, 23, 70), 5, 64, 90, FP16),
    "4": problem((10, 77), 40, 448, 90),
    "5": problem((3, 5), fp8=True),
    "fp16 with an FP8 pool": problem((9, 1), 3, 192, 12, FP16, fp8=True),
}


@pytest.mark.parametrize("row", PROBLEMS)
def test_equals_the_formula(row: str) -> None:
    p = PROBLEMS[row]
    out = p.run()
    assert (out.dtype, out.shape) == (p.q.dtype, p.q.shape)
    few = replace(p, q=p.q[:, :5], attn_sink=p.attn_sink[:5])
    close(out[:, :5], plainly(few))


def test_many_short_tokens() -> None:
    p = problem(tuple(t % 65 for t in range(300)), 6, 64, 256)
    out = p.run()
    assert bool((out[::65] == 0).all())
    few = replace(p, q=p.q[-1:, :2], kv_indptr=p.kv_indptr[-2:], attn_sink=p.attn_sink[:2])
    close(out[-1:, :2], plainly(few))


def test_a_thousand_slots() -> None:
    p = problem((1152,), 128, 512, 4096)
    few = replace(p, q=p.q[:, 5:6], attn_sink=p.attn_sink[5:6])
    close(p.run()[:, 5:6], plainly(few))


def test_layout_and_index_types_do_not_matter() -> None:
    p = problem((3, 5), fp8=True)
    expected = p.run()
    assert p.kv_scales is not None
    column_major = p.kv_scales.t().contiguous().t()
    wide = p.unified_kv.view(torch.uint8).t().contiguous().t().view(torch.float8_e4m3fn)
    heads_first = p.q.transpose(0, 1).contiguous().transpose(0, 1)
    for changed in (
        replace(p, kv_scales=column_major),
        replace(p, unified_kv=wide),
        replace(p, q=heads_first),
        replace(p, kv_indices=p.kv_indices.long(), kv_indptr=p.kv_indptr.long()),
        replace(p, attn_sink=torch.cat([p.attn_sink, torch.ones(3)])),
        replace(p, attn_sink=p.attn_sink.unsqueeze(0)),
    ):
        out = changed.run()
        assert torch.equal(out, expected)
        assert out.stride() == torch.empty_like(changed.q).stride()


def test_spans_are_offsets_and_order_does_not_matter() -> None:
    p = problem((3, 5))
    later = replace(p, kv_indptr=torch.tensor([4, 7, 8]))
    first = replace(p, q=p.q[:1], kv_indices=p.kv_indices[4:7], kv_indptr=torch.tensor([0, 3]))
    assert torch.equal(later.run()[:1], first.run())
    shuffled = replace(first, kv_indices=first.kv_indices.flip(0))
    assert torch.allclose(shuffled.run().float(), first.run().float(), atol=1e-2)


def test_a_slot_listed_twice_counts_twice() -> None:
    p = problem((2,), 1, 64)
    listed = replace(p, kv_indices=torch.tensor([1, 1, 2]), kv_indptr=torch.tensor([0, 3]))
    once = replace(p, kv_indices=torch.tensor([1, 2]), kv_indptr=torch.tensor([0, 2]))
    assert not torch.equal(listed.run(), once.run())
    close(listed.run(), plainly(listed))


def test_no_slots_and_decreasing_spans_give_zeros() -> None:
    p = problem((3, 5))
    assert bool((replace(p, kv_indptr=torch.tensor([3, 3, 8])).run()[0] == 0).all())
    assert bool((replace(p, kv_indptr=torch.tensor([5, 2, 8])).run()[0] == 0).all())
    assert bool((replace(p, kv_indptr=torch.tensor([5, 2, 8])).run()[1] != 0).any())


def test_without_a_sink_it_is_ordinary_softmax() -> None:
    p = problem((3, 5))
    p.attn_sink.fill_(-INF)
    rows = p.unified_kv[p.kv_indices[3:8]].float()
    weights = torch.softmax(p.q[1].float() @ rows.T * p.softmax_scale, dim=-1)
    close(p.run()[1], weights @ rows)


@pytest.mark.parametrize("mode", ["kernel", "doc"])
@pytest.mark.parametrize("value", [INF, NAN])
def test_an_infinite_or_nan_sink_silences_its_head(value: float, mode: reference.Mode) -> None:
    p = problem((3, 5))
    expected = p.run(mode)
    p.attn_sink[2] = value
    out = p.run(mode)
    assert bool((out[:, 2] == 0).all())
    kept = [head for head in range(16) if head != 2]
    assert torch.equal(out[:, kept], expected[:, kept])


def test_a_nan_query_silences_its_head_alone() -> None:
    p = problem((3, 5))
    expected = p.run()
    p.q[1, 4, 7] = NAN
    out = p.run()
    assert bool((out[1, 4] == 0).all())
    out[1, 4] = expected[1, 4]
    assert torch.equal(out, expected)


@pytest.mark.parametrize("fp8", [False, True])
def test_a_nan_slot_silences_every_head_that_reads_it(fp8: bool) -> None:
    p = problem((2, 2), fp8=fp8)
    p.kv_indices.copy_(torch.tensor([0, 1, 2, 3]))
    expected = p.run()
    if fp8:
        p.unified_kv.view(torch.uint8)[1, 9] = 0xFF
    else:
        p.unified_kv[1, 9] = NAN
    out = p.run()
    assert bool((out[0] == 0).all())
    assert torch.equal(out[1], expected[1])


def test_infinities_in_a_slot_give_nan_or_zeros() -> None:
    p = problem((3, 5))
    p.kv_indices.copy_(torch.arange(8))
    p.unified_kv[1, 9] = INF
    kinds = {
        "nan" if bool(row.isnan().any()) else "zero" if bool((row == 0).all()) else "other"
        for row in p.run()[0]
    }
    assert kinds == {"nan", "zero"}


def test_special_scales() -> None:
    p = problem((3, 5), fp8=True)
    assert p.kv_scales is not None
    assert bool((replace(p, softmax_scale=NAN).run() == 0).all())
    assert bool((replace(p, kv_scales=torch.zeros(8, 2)).run() == 0).all())
    assert bool((replace(p, kv_scales=torch.full((8, 2), INF)).run() == 0).all())
    fp16 = replace(p, q=p.q.to(FP16), kv_scales=torch.full((8, 2), 70000.0))
    assert bool((fp16.run() == 0).all())
    negative = replace(p, kv_scales=-p.kv_scales)
    assert bool(negative.run().isfinite().all())
    flipped = replace(p, q=-p.q)
    assert torch.equal(negative.run(), -flipped.run())


def test_the_modes_differ_in_how_often_they_round() -> None:
    codes = torch.tensor([[3.5] * 64], dtype=FP32).to(torch.float8_e4m3fn)
    scale = torch.tensor([[1 + 2.0**-8 + 2.0**-12]])  # above half a step of bfloat16: rounds up to 1 + 2^-7
    assert reference.dequantize(codes, scale, BF16)[0, 0].item() == 3.53125  # 3.5 · (1 + 2^-7), rounded
    assert reference.dequantize(codes, scale, BF16, "doc")[0, 0].item() == 3.515625
    p = problem((30, 50), 16, 512, 64, fp8=True)
    kernel, doc = p.run("kernel").float(), p.run("doc").float()
    assert not torch.equal(kernel, doc)
    assert (kernel - doc).abs().max() <= 2e-2


@pytest.mark.parametrize("mode", ["kernel", "doc"])
def test_without_fp8_the_modes_agree(mode: reference.Mode) -> None:
    assert torch.equal(problem((3, 5)).run(mode), problem((3, 5)).run())


# --- the guarded function


@contextmanager
def emulated(arguments: dict[str, Any]) -> Iterator[None]:
    tensors = {id(value): "cuda:0" for value in arguments.values() if isinstance(value, Tensor)}
    with stated_devices(tensors):
        yield


def live(p: Problem, **changes: Any) -> Tensor:
    arguments = vars(p) | changes
    with emulated(arguments):
        return sparse_attn_v4_paged_decode(**arguments)


def test_the_function_returns_the_reference_and_changes_nothing() -> None:
    p = problem((3, 5), fp8=True)
    before = [tensor.clone() for tensor in vars(p).values() if isinstance(tensor, Tensor)]
    out = live(p)
    assert torch.equal(out, p.run())
    after = [tensor for tensor in vars(p).values() if isinstance(tensor, Tensor)]
    assert all(
        torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(before, after, strict=True)
    )
    assert torch.equal(live(p, kv_splits=4), out)


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

UNREADABLE: dict[str, Change] = {
    "slot past the pool": lambda p: replace(p, kv_indices=p.kv_indices + 8),
    "slot -1": lambda p: replace(p, kv_indices=p.kv_indices * 0 - 1),
    "span past the list": lambda p: replace(p, kv_indices=p.kv_indices[:6]),
    "span before the list": lambda p: replace(p, kv_indptr=torch.tensor([-2, 1, 3])),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_upstream_would_read_out_of_bounds_raises_here(what: str) -> None:
    with pytest.raises(IndexError):
        live(UNREADABLE[what](problem((3, 5))))


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
    assert torch.equal(live(unusual), live(p))


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
    assert torch.equal(out["out"], expected["out"])
    assert bool(out["out"].isfinite().all())
    assert bool((out["out"] != 0).any()) or call.unified_kv.shape[0] == 0
