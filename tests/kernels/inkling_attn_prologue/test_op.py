"""The guarded functions, by reference and by kernel: every result, every buffer, every untouched byte."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels.inkling_attn_prologue import op
from kernels.inkling_attn_prologue.op import RUNNERS, tolerance
from kernels.running import compare, materialise
from kernels.values import seeded
from tests.kernels.inkling_attn_prologue.problems import (
    BF16,
    FP8,
    KINDS,
    U8,
    VARIANTS,
    Arguments,
    build,
    check,
    emulated,
    flags,
    run,
    storage,
)

POISON = 0xA5


@pytest.fixture(params=["reference", "interpreter", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a test's tensors are: on the CPU for the reference and the interpreted kernels, or on the GPU.

    Fresh results are full of poison, so that an element nobody wrote shows.
    """
    if request.param == "reference":
        monkeypatch.setattr(op, "runs_kernels", lambda _: False)
    else:
        request.getfixturevalue("interpreted" if request.param == "interpreter" else "compiled")
    empty = torch.empty

    def poisoned(*arguments: Any, **options: Any) -> torch.Tensor:
        made = empty(*arguments, **options)
        if made.numel():
            made.view(U8).fill_(POISON)
        return made

    monkeypatch.setattr(torch, "empty", poisoned)
    return "cuda" if request.param == "gpu" else "cpu"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_every_buffer(device: str, kind: str, variant: str) -> None:
    check(kind, build(kind, device, **VARIANTS[variant]))


@pytest.mark.parametrize("page", [None, 128])
@pytest.mark.parametrize("kind", KINDS)
def test_gaps_between_rows_keep_their_bytes(device: str, kind: str, page: int | None) -> None:
    arguments = build(kind, device, page=page)
    names = ("k_cache", "v_cache", "k_buf", "v_buf")
    before = {name: storage(arguments[name]) for name in names}
    run(kind, arguments)
    for pair in (("k_cache", "v_cache"), ("k_buf",), ("v_buf",)):
        expected = before[pair[0]]
        for name in pair:
            written = arguments[name]
            view = expected.view(written.dtype).as_strided(
                written.shape, written.stride(), written.storage_offset()
            )
            view.copy_(written)
        assert torch.equal(storage(arguments[pair[0]]), expected), pair


@pytest.mark.parametrize(
    "changes",
    [
        {"track_mask": None, "track_indices": None},
        {"track_mask": flags(1, 1, 0, 0, 1, 0).view(6, 1)},
        {"cache_mask": flags(0, 0, 0, 0, 0, 0)},
        {"loc": torch.full((6,), -5)},
        {"cache_indices": torch.full((6,), -1)},
    ],
)
def test_decode(device: str, changes: Arguments) -> None:
    check("decode", build("decode", device, **changes))


def test_decode_leaves_padding_alone(device: str) -> None:
    arguments = build("decode", device)
    cache, pool = arguments["k_cache"].clone(), arguments["k_buf"].clone()
    run("decode", arguments)
    changed = (arguments["k_cache"] != cache).any(-1).any(-1).nonzero().flatten().tolist()
    assert changed == [1, 2, 3, 5, 7, 9, 11]
    stored = (arguments["k_buf"] != pool).any(-1).any(-1).nonzero().flatten().tolist()
    assert stored == [5, 37, 131, 383]


@pytest.mark.parametrize("page", [None, 128])
def test_verify_of_eight_sequences(device: str, page: int | None) -> None:
    check("verify", build("verify", device, tokens=24, page=page))


def test_verify_leaves_padding_windows_and_the_state_alone(device: str) -> None:
    arguments = build("verify", device)
    cache = storage(arguments["k_cache"])
    run("verify", arguments)
    assert torch.equal(storage(arguments["k_cache"]), cache)
    assert bool((arguments["k_inter"][1:] == 9).all())
    assert bool((arguments["k_inter"][0] != 9).any())


@pytest.mark.parametrize("page", [None, 64])
@pytest.mark.parametrize(
    "changes",
    [
        {"do_cache_update": False},
        {
            "track_rows": torch.empty(0, dtype=torch.int64),
            "track_mask": flags(),
            "track_dst": torch.empty(0, dtype=torch.int64),
        },
        {"track_dst": torch.tensor([3, 0, 1])},
        {"cu": torch.tensor([0, 3, 3, 6]), "si": torch.tensor([0, 0, 0, 2, 2, 2], dtype=torch.int32)},
        {"cu": torch.tensor([0, 1, 2, 6]), "si": torch.tensor([0, 1, 2, 2, 2, 2], dtype=torch.int32)},
        {"has_initial_state": flags(0, 1, 1), "cache_indices": torch.tensor([4, 2, 0])},
    ],
)
def test_extend(device: str, changes: Arguments, page: int | None) -> None:
    check("extend", build("extend", device, page=page, **changes))


@pytest.mark.parametrize("kind", ["decode", "verify"])
def test_no_tokens_are_no_launch(device: str, kind: str) -> None:
    arguments = build(kind, device)
    arguments |= {name: arguments[name][:0] for name in ("qkvr", "loc", "cache_indices", "cache_mask")}
    with pytest.raises(RuntimeError, match=r":(509|921): CUDA error: invalid argument$"):
        run(kind, arguments)


def test_extend_of_no_tokens(device: str) -> None:
    kind, arguments = "extend", build("extend", device)
    arguments |= {name: arguments[name][:0] for name in ("qkvr", "loc", "si")}
    arguments["cu"].zero_()
    buffers = [storage(arguments[name]) for name in ("k_cache", "v_cache", "k_buf", "v_buf")]
    q, k, v, q_scale = run(kind, arguments)
    assert (q.shape, k.shape, v.shape, q_scale) == ((0, 512), (0, 256), (0, 256), None)
    after = [storage(arguments[name]) for name in ("k_cache", "v_cache", "k_buf", "v_buf")]
    assert all(torch.equal(a, b) for a, b in zip(buffers, after, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_nan_in_a_masked_state_reaches_the_outputs_but_not_the_state(device: str, kind: str) -> None:
    arguments = build(kind, device)
    arguments["cache_mask"] = torch.zeros_like(arguments["cache_mask"])
    for name in ("k_cache", "v_cache"):
        arguments[name].fill_(math.nan)
    _, k, v, _ = run(kind, arguments)
    assert bool(k.isnan().any(-1)[0])
    assert bool(v[0].isnan().any())
    if kind == "decode":
        assert not bool(arguments["k_cache"][3, :, :256].isnan().any())


def test_padding_in_decode_convolves_slot_zero(device: str) -> None:
    arguments = build("decode", device)
    same = build("decode", device, cache_indices=torch.tensor([3, 0, 5, 1, 7, 2]), track_mask=None)
    _, k, _, _ = run("decode", same)
    _, padded, _, _ = run("decode", arguments)
    assert torch.equal(padded, k)


VALUES = {
    "state slot past the cache",
    "state slot -2",
    "pool slot past the pool",
    "track slot past the cache",
    "track slot -1",
    "owner past the sequences",
    "negative owner",
    "last token past the rows",
    "tracked row past the rows",
    "tracked row -1",
    "track slot past the cache (extend)",
}

UNRUNNABLE: dict[str, tuple[str, Callable[[Arguments], Arguments]]] = {
    "state slot past the cache": ("decode", lambda a: {"cache_indices": a["cache_indices"] + 12}),
    "state slot -2": ("decode", lambda a: {"cache_indices": a["cache_indices"] - 1}),
    "too few state slots": ("decode", lambda a: {"cache_indices": a["cache_indices"][:1]}),
    "too few masks": ("decode", lambda a: {"cache_mask": a["cache_mask"][:1]}),
    "pool slot past the pool": ("decode", lambda a: {"loc": a["loc"] + 384}),
    "too few pool slots": ("decode", lambda a: {"loc": a["loc"][:1]}),
    "track slot past the cache": ("decode", lambda a: {"track_indices": a["track_indices"] + 12}),
    "track slot -1": ("decode", lambda a: {"track_indices": a["track_indices"] * 0 - 1}),
    "short history": ("decode", lambda a: {"k_cache": a["k_cache"][:, :2]}),
    "narrow cache": ("decode", lambda a: {"v_cache": a["v_cache"][..., :128]}),
    "narrow weights": ("decode", lambda a: {"k_weight": a["k_weight"][:1]}),
    "other taps": ("decode", lambda a: {"v_weight": a["v_weight"][:, :2]}),
    "slice past the storage": ("decode", lambda a: {"v_off": 1024}),
    "slice before the storage": ("decode", lambda a: {"k_off": -8}),
    "too few taus": ("decode", lambda a: {"log_scaling_tau": torch.ones(1)}),
    "one gamma": ("decode", lambda a: {"q_gamma": torch.ones(1, dtype=BF16)}),
    "FP8 pool without quantization": ("decode", lambda a: {"k_buf": a["k_buf"].to(FP8)}),
    "half a head": ("decode", lambda a: {"dq": 192}),
    "one pool slot too wide": ("decode", lambda a: {"k_buf": a["k_buf"][..., :64].contiguous()[:3]}),
    "sequences of another length": ("verify", lambda a: {"draft_token_num": 2}),
    "short windows": ("verify", lambda a: {"k_inter": a["k_inter"][:, :2]}),
    "few windows": ("verify", lambda a: {"v_inter": a["v_inter"][:1]}),
    "owner past the sequences": ("extend", lambda a: {"si": a["si"] + 1}),
    "negative owner": ("extend", lambda a: {"si": a["si"] - 1}),
    "too few owners": ("extend", lambda a: {"si": a["si"][:1]}),
    "last token past the rows": ("extend", lambda a: {"cu": torch.tensor([0, 2, 3, 9])}),
    "too few starts": ("extend", lambda a: {"cu": a["cu"][:3]}),
    "tracked row past the rows": ("extend", lambda a: {"track_rows": a["track_rows"] + 6}),
    "tracked row -1": ("extend", lambda a: {"track_rows": a["track_rows"] * 0 - 1}),
    "track slot past the cache (extend)": ("extend", lambda a: {"track_dst": a["track_dst"] + 12}),
    "rows to track absent": ("extend", lambda a: {"track_rows": torch.empty(0, dtype=torch.int64)}),
}


@pytest.mark.parametrize("device", ["reference"], indirect=True)
@pytest.mark.parametrize("what", UNRUNNABLE)
def test_what_upstream_would_read_or_write_out_of_bounds_raises_here(device: str, what: str) -> None:
    """A check refuses sizes and strides; values it does not look at: torch refuses them in the reference."""
    kind, change = UNRUNNABLE[what]
    arguments = build(kind, device)
    with pytest.raises((RuntimeError, IndexError, ValueError)) as raised:
        run(kind, arguments | change(arguments))
    assert hasattr(raised.value, "violation") is (what not in VALUES)


@pytest.mark.parametrize("device", ["reference"], indirect=True)
@pytest.mark.parametrize("what", ["bf16 pool", "float32 scales", "slots beyond the pages"])
def test_what_does_not_fit_quantization_raises_here(device: str, what: str) -> None:
    arguments = build("decode", device, page=128)
    arguments |= {
        "bf16 pool": {"k_buf": arguments["k_buf"].to(BF16)},
        "float32 scales": {"sfk": arguments["sfk"].float()},
        "slots beyond the pages": {
            "k_buf": torch.zeros(400, 2, 128, dtype=FP8),
            "v_buf": torch.zeros(400, 2, 128, dtype=FP8),
            "loc": torch.tensor([5, 0, 131, -1, 390, 37]),
        },
    }[what]
    with pytest.raises((RuntimeError, ValueError)) as raised:
        run("decode", arguments)
    assert hasattr(raised.value, "violation")


def test_the_seeds_configuration_is_refused_and_its_buffers_stay(device: str) -> None:
    arguments = build("decode", device, page=128, sfk=torch.full((2, 2, 32, 4), 200, dtype=U8))
    before = [storage(arguments[name]) for name in ("k_cache", "k_buf", "sfv")]
    with pytest.raises(
        ValueError, match=r"^MXFP8 fused decode prologue .* \(3, 2, 32, 4, 4\), got \(2, 2, 32, 4\)"
    ):
        run("decode", arguments)
    after = [storage(arguments[name]) for name in ("k_cache", "k_buf", "sfv")]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_described_call_runs_as_the_worker_runs_it(device: str, kind: str, quantized: bool) -> None:
    operation = KINDS[kind]
    runner = RUNNERS[operation.name]
    call = operation.valid.quantized() if quantized else operation.valid  # type: ignore[attr-defined]
    values = seeded(operation.fill(call), 3)
    arguments = materialise(call, values, device)
    with emulated(arguments):
        written = runner.outputs(arguments, runner.function(**arguments))
    expected = runner.reference(materialise(call, values, device))
    assert written.keys() == expected.keys()
    assert set(operation.outputs) - {"sfk", "sfv"} < written.keys()
    assert {"sfk", "sfv", "q_scale"} & written.keys() == ({"sfk", "sfv", "q_scale"} if quantized else set())
    for name, tensor in written.items():
        assert compare(name, tensor, expected[name], tolerance(name, call)).within
        assert bool((tensor.contiguous().view(U8) != 0).any()), f"{name} was not written"
