"""Both kernels on the card: fresh inputs over poison, against the reference and upstream's kernel."""

from __future__ import annotations

import math
import secrets
from dataclasses import fields, replace
from types import ModuleType

import pytest
import torch
from torch import Tensor

from tests.kernels.sparse_attn_v4_paged_decode.problems import (
    BF16,
    FP16,
    Problem,
    close,
    mixed_magnitudes,
    problem,
)

pytestmark = pytest.mark.gpu

NAN = math.nan


@pytest.fixture(scope="module")
def launches(compiled: None) -> ModuleType:
    from kernels.sparse_attn_v4_paged_decode import launch

    return launch


@pytest.fixture(params=["portable", "chosen"], autouse=True)
def kernel(request: pytest.FixtureRequest, launches: ModuleType, monkeypatch: pytest.MonkeyPatch) -> str:
    """The portable kernel, or what the device is best served with; partials are poisoned."""
    if request.param == "portable":
        monkeypatch.setattr(launches, "fits_hopper", lambda *_: False)
    partials = launches._partials

    def poisoned(*arguments: object) -> tuple[Tensor | None, ...]:
        made: tuple[Tensor | None, ...] = partials(*arguments)
        for tensor in made:
            if tensor is not None:
                tensor.fill_(NAN)
        return made

    monkeypatch.setattr(launches, "_partials", poisoned)
    return str(request.param)


def drawn(*lengths: int, heads: int = 128, width: int = 512, slots: int = 4096, dtype: torch.dtype = BF16,
          fp8: bool = False) -> Problem:  # fmt: skip
    """Other values every run; a failing problem is in the report, as a local of the test."""
    return problem(lengths, heads, width, slots, dtype, fp8=fp8, seed=secrets.randbelow(2**31)).to("cuda")


def run(launches: ModuleType, p: Problem, splits: int | None = None) -> Tensor:
    out = torch.empty_like(p.q).fill_(NAN)
    launches.launch(**vars(p), kv_splits=splits, out=out)
    return out


def expected(p: Problem) -> Tensor:
    """The reference on the CPU: nothing of the card is in it."""
    return p.to("cpu").run().to("cuda")


@pytest.mark.parametrize("fp8", [False, True], ids=["rows", "codes"])
@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("splits", [None, 1, 4, 64])
def test_a_long_and_many_short_tokens(
    launches: ModuleType, splits: int | None, dtype: torch.dtype, fp8: bool
) -> None:
    p = drawn(1152, 0, 1, 31, 32, 33, 64, 500, dtype=dtype, fp8=fp8)
    close(run(launches, p, splits), expected(p))


@pytest.mark.parametrize(("heads", "width"), [(1, 64), (5, 64), (16, 128), (40, 448), (100, 512), (128, 192)])
@pytest.mark.parametrize("fp8", [False, True], ids=["rows", "codes"])
@pytest.mark.parametrize("splits", [None, 1])
def test_odd_sizes(launches: ModuleType, splits: int | None, heads: int, width: int, fp8: bool) -> None:
    p = drawn(3, 127, 0, 65, heads=heads, width=width, slots=200, fp8=fp8)
    close(run(launches, p, splits), expected(p))


@pytest.mark.parametrize("width", [9, 24, 576, 1024])
def test_widths_that_only_the_portable_kernel_has(launches: ModuleType, width: int) -> None:
    p = drawn(3, 127, heads=20, width=width, slots=200)
    close(run(launches, p), expected(p))


@pytest.mark.parametrize("tokens", [1, 3, 127, 300])
def test_tokens_of_every_length(launches: ModuleType, tokens: int) -> None:
    p = drawn(*(t % 65 for t in range(tokens)), slots=256)
    close(run(launches, p), expected(p))


@pytest.mark.parametrize("fp8", [False, True], ids=["rows", "codes"])
def test_layout_and_index_types_do_not_matter(launches: ModuleType, fp8: bool) -> None:
    p = drawn(3, 200, heads=20, width=128, slots=300, fp8=fp8)
    wanted = run(launches, p, 2)
    wide = torch.empty(300, 256, dtype=p.unified_kv.dtype, device="cuda")
    wide.view(torch.uint8).fill_(0x7F)
    wide[:, :128] = p.unified_kv
    changes: list[Problem] = [
        replace(p, kv_indices=p.kv_indices.long(), kv_indptr=p.kv_indptr.long()),
        replace(p, unified_kv=wide[:, :128]),
        replace(p, q=p.q.transpose(0, 1).contiguous().transpose(0, 1)),
    ]
    if p.kv_scales is not None:
        changes.append(replace(p, kv_scales=p.kv_scales.t().contiguous().t()))
    for changed in changes:
        assert torch.equal(run(launches, changed, 2), wanted)
    columns_first = p.unified_kv.view(torch.uint8 if fp8 else BF16).t().contiguous().t()
    close(run(launches, replace(p, unified_kv=columns_first.view(p.unified_kv.dtype)), 2), wanted)
    odd = torch.empty(300 * 129 + 1, dtype=p.unified_kv.dtype, device="cuda")[1:].view(300, 129)[:, :128]
    odd.copy_(p.unified_kv)
    close(run(launches, replace(p, unified_kv=odd), 2), wanted)


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("fp8", [False, True], ids=["rows", "codes"])
def test_nan_and_unread_slots(launches: ModuleType, fp8: bool, splits: int) -> None:
    p = drawn(3, 200, heads=70, slots=400, fp8=fp8)
    wanted = run(launches, p, splits)
    unread = sorted(set(range(400)) - set(p.kv_indices.tolist()))
    p.unified_kv.view(torch.uint8)[unread] = 0xFF
    assert torch.equal(run(launches, p, splits), wanted)
    p.q[1, 4, 7] = NAN
    p.attn_sink[2], p.attn_sink[3], p.attn_sink[5] = math.inf, NAN, -math.inf
    out = run(launches, p, splits)
    assert bool((out[1, 4] == 0).all())
    assert bool((out[:, 2:4] == 0).all())
    close(out[0], expected(p)[0])
    p.unified_kv.view(torch.uint8)[int(p.kv_indices[0])] = 0xFF
    assert bool((run(launches, p, splits)[0] == 0).all())


def test_inputs_keep_their_bytes_and_a_second_run_gives_the_same(launches: ModuleType) -> None:
    p = drawn(700, 200, heads=70, slots=400, fp8=True)
    kept = {f.name: getattr(p, f.name).clone() for f in fields(p) if isinstance(getattr(p, f.name), Tensor)}
    for splits in (1, 8):
        assert torch.equal(run(launches, p, splits), run(launches, p, splits))
    for name, before in kept.items():
        assert torch.equal(getattr(p, name).view(torch.uint8), before.view(torch.uint8)), name


def test_growing_scores_rescale_what_was_mixed(launches: ModuleType) -> None:
    """Keys of up to 3 times the usual size at scale 1: few slots share the weight, and large keys cancel.

    Scores, their sums, the rescaling, partial results and their joining are float32; but the matrix unit
    takes weights as bfloat16, 8 bits: u = 2⁻⁸ of each, which the total, summed before, does not know. With
    S = Σ pⱼ·|kⱼ| that is u·S, whatever is left of the sum. Both results are rounded: 2·u·|out|. A score of
    512 products, 16 at a time, is off by 32 truncations of partial sums below 2⁶, 2⁻²³·2⁶·2⁵ = 2⁻¹²; the
    float32 reference as much: 2·2⁻¹² of each weight, which moves the mean by twice of S at most. Altogether
    (u + 2⁻¹⁰)·S + 2·u·|out|: with S of 7 and little left of it 0.034, where two steps of the result are less.
    """
    p = drawn(640, heads=64, slots=640)
    p.kv_indices.copy_(torch.arange(640, device="cuda"))
    p.unified_kv.mul_(torch.linspace(0.1, 3, 640, device="cuda")[:, None])
    p = replace(p, softmax_scale=1.0)
    wanted = expected(p).float()
    limit = (2**-8 + 2**-10) * mixed_magnitudes(p) + 2 * 2**-8 * wanted.abs()
    for splits in (1, 4):
        beyond = (run(launches, p, splits).float() - wanted).abs() > limit
        assert not bool(beyond.any()), int(beyond.sum())


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_offsets_beyond_two_to_the_31(launches: ModuleType, index: torch.dtype) -> None:
    slots = 2**31 // 512 + 40
    p = drawn(40, 64, heads=16, slots=64)
    pool = torch.empty(slots, 512, dtype=BF16, device="cuda")
    pool[-64:] = p.unified_kv
    far = replace(p, unified_kv=pool, kv_indices=p.kv_indices.to(index) + (slots - 64))
    close(run(launches, far), expected(p))


def test_a_captured_graph_follows_new_lists(launches: ModuleType) -> None:
    p = drawn(200, 300, 12, slots=400, fp8=True)
    out = torch.empty_like(p.q)
    launches.launch(**vars(p), kv_splits=None, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launches.launch(**vars(p), kv_splits=None, out=out)
    other = drawn(7, 500, 5, slots=400, fp8=True)
    for field in fields(p):
        if isinstance(value := getattr(p, field.name), Tensor):
            value.copy_(getattr(other, field.name))
    graph.replay()
    close(out, expected(other))


@pytest.mark.parametrize("fp8", [False, True], ids=["rows", "codes"])
@pytest.mark.parametrize("splits", [1, 4, 8])
def test_agrees_with_upstreams_kernel(launches: ModuleType, splits: int, fp8: bool) -> None:
    upstream = pytest.importorskip(
        "sglang.kernels.ops.attention.dsv4.unified_kv_kernels.paged_decode",
        reason="upstream's package is not importable",
    )
    p = drawn(1152, 0, 1, 500, fp8=fp8)
    theirs = upstream.sparse_attn_v4_paged_decode(*vars(p).values(), kv_splits=splits)
    close(run(launches, p, splits), theirs)
