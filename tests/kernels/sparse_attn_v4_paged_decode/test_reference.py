"""The reference against loops in float64, its rules for special values, ."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.sparse_attn_v4_paged_decode import reference
from tests.kernels.sparse_attn_v4_paged_decode.problems import BF16, FP16, FP32, Problem, close, problem

NAN, INF = math.nan, math.inf


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
