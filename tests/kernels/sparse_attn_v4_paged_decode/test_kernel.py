"""The portable kernel in Triton's corrected interpreter against the reference, and the shape of launches."""

from __future__ import annotations

import math
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.sparse_attn_v4_paged_decode.plan import MOST_SPLITS, fits_hopper, plan
from tests.kernels.sparse_attn_v4_paged_decode.problems import BF16, FP16, Problem, close, problem

NAN, INF = math.nan, math.inf
PROBLEMS = {
    "two short tokens": problem((3, 5)),
    "no slot, heads no power of two": problem((0, 23, 70), 5, 64, 90, FP16),
    "width no power of two": problem((10, 77), 40, 448, 90),
    "codes": problem((3, 5), fp8=True),
    "float16 and codes of three groups": problem((9, 1, 130), 3, 192, 12, FP16, fp8=True),
    "one wide token": problem((129,), 16, 512, 40, fp8=True),
    "narrow": problem((17, 4), 2, 9),
}


@pytest.fixture(scope="module")
def launches(interpreted: None) -> ModuleType:
    from kernels.sparse_attn_v4_paged_decode import launch

    return launch


def run(launches: ModuleType, p: Problem, splits: int | None = None) -> Tensor:
    """The kernel's result over poisoned memory: what it leaves unwritten shows."""
    out = torch.empty_like(p.q).fill_(NAN)
    result: Tensor = launches.launch(**vars(p), kv_splits=splits, out=out)
    assert result is out
    return out


@pytest.fixture(autouse=True)
def poisoned_partials(launches: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty
    monkeypatch.setattr(launches.torch, "empty", lambda *size, **how: empty(*size, **how).fill_(NAN))


@pytest.mark.parametrize("splits", [None, 1, 2, 16])
@pytest.mark.parametrize("name", PROBLEMS)
def test_equals_the_reference(launches: ModuleType, name: str, splits: int | None) -> None:
    p = PROBLEMS[name]
    close(run(launches, p, splits), p.run())


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(0, 140), min_size=1, max_size=3),
    heads=st.integers(1, 70),
    width=st.sampled_from([16, 24, 64, 128, 192, 320]),
    dtype=st.sampled_from([BF16, FP16]),
    fp8=st.booleans(),
    splits=st.sampled_from([None, 1, 4]),
    seed=st.integers(0, 2**16),
)
def test_equals_the_reference_on_any_sizes(
    launches: ModuleType,
    lengths: list[int],
    heads: int,
    width: int,
    dtype: torch.dtype,
    fp8: bool,
    splits: int | None,
    seed: int,
) -> None:
    p = problem(lengths, heads, width, 50, dtype, fp8=fp8 and width % 64 == 0, seed=seed)
    close(run(launches, p, splits), p.run())


def test_layout_and_index_types_do_not_matter(launches: ModuleType) -> None:
    p = problem((3, 70), 20, 192, 80, fp8=True)
    expected = run(launches, p)
    assert p.kv_scales is not None
    heads_first = p.q.transpose(0, 1).contiguous().transpose(0, 1)
    pool_columns_first = p.unified_kv.view(torch.uint8).t().contiguous().t().view(torch.float8_e4m3fn)
    for changed in (
        replace(p, kv_scales=p.kv_scales.t().contiguous().t()),
        replace(p, unified_kv=pool_columns_first),
        replace(p, q=heads_first),
        replace(p, kv_indices=p.kv_indices.long(), kv_indptr=p.kv_indptr.long()),
        replace(p, attn_sink=torch.cat([p.attn_sink, torch.ones(3)])),
    ):
        out = run(launches, changed)
        assert torch.equal(out, expected)
        assert out.stride() == changed.q.stride()


def test_slots_that_no_token_reads_may_hold_anything(launches: ModuleType) -> None:
    p = problem((3, 70), 20, 64, 100)
    expected = run(launches, p)
    unread = sorted(set(range(100)) - set(p.kv_indices.tolist()))
    assert len(unread) > 0
    p.unified_kv[unread] = NAN
    p.unified_kv[unread[-1]] = INF
    assert torch.equal(run(launches, p), expected)


@pytest.mark.parametrize("splits", [1, 4])
def test_nan_becomes_zeros_where_upstream_makes_it_so(launches: ModuleType, splits: int) -> None:
    p = problem((3, 200), 20, 64, 8)
    expected = run(launches, p, splits)
    p.q[1, 4, 7] = NAN
    p.attn_sink[2] = INF
    p.attn_sink[3] = NAN
    out = run(launches, p, splits)
    assert bool((out[1, 4] == 0).all())
    assert bool((out[:, 2:4] == 0).all())
    kept = [head for head in range(20) if head not in (2, 3, 4)]
    assert torch.equal(out[:, kept], expected[:, kept])
    p.unified_kv[p.kv_indices[0].item()] = NAN
    assert bool((run(launches, p, splits)[0] == 0).all())
    assert bool((run(launches, replace(p, softmax_scale=NAN), splits) == 0).all())


def test_spans_that_fall_or_hold_nothing_give_zeros(launches: ModuleType) -> None:
    p = problem((3, 5))
    for starts in ([3, 3, 8], [5, 2, 8]):
        for splits in (1, 4):
            out = run(launches, replace(p, kv_indptr=torch.tensor(starts, dtype=torch.int32)), splits)
            assert bool((out[0] == 0).all())
            assert bool((out[1] != 0).any())


def test_large_scores_do_not_overflow(launches: ModuleType) -> None:
    p = replace(problem((40, 90), 16, 64, 64, FP16), softmax_scale=40.0)
    close(run(launches, p), p.run())


H200 = {"processors": 132, "shared_bytes": 232_448}


@pytest.mark.parametrize(
    ("tokens", "heads", "length", "splits"),
    [(1, 128, 512, 16), (32, 128, 2048, 2), (512, 128, 2048, 1), (128, 16, 2048, 1), (1, 128, 1, 1)],
)
def test_splits_fill_the_device_once(tokens: int, heads: int, length: int, splits: int) -> None:
    chosen = plan(tokens, heads, 512, tokens * length, None, hopper=True, **H200)
    assert chosen.splits == splits <= MOST_SPLITS
    assert chosen.padded_heads >= heads
    assert plan(tokens, heads, 512, 0, 128, hopper=True, **H200).splits == 128


@pytest.mark.parametrize("shared", [65_536, 101_376, 166_912, 232_448])
@pytest.mark.parametrize("width", [9, 64, 448, 512, 1024])
def test_a_tile_never_exceeds_what_the_device_has(shared: int, width: int) -> None:
    chosen = plan(4, 128, width, 400, 1, hopper=False, processors=100, shared_bytes=shared)
    assert chosen.block_d >= width
    assert chosen.block_h >= 16 <= chosen.block_k
    assert chosen.head_blocks * chosen.block_h >= 128


def test_hopper_takes_dense_aligned_rows_only() -> None:
    q, pool = torch.empty(2, 16, 128, dtype=BF16), torch.empty(8, 128, dtype=BF16)
    assert fits_hopper(q, pool)
    assert not fits_hopper(q.transpose(1, 2), pool)
    assert not fits_hopper(q, pool.t().contiguous().t())
    assert not fits_hopper(q, torch.empty(8, 136, dtype=BF16)[:, 8:])
    assert not fits_hopper(torch.empty(2, 16, 576, dtype=BF16), torch.empty(8, 576, dtype=BF16))
