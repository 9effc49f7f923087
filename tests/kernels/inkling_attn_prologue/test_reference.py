"""The guarded functions against the rules written out: every result, every buffer, every untouched byte."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.inkling_attn_prologue.checks import OPERATIONS
from kernels.inkling_attn_prologue.op import RUNNERS, tolerance
from kernels.inkling_attn_prologue.reference import Result
from kernels.live import stated_devices
from kernels.running import Tolerance, compare, materialise, seeded
from tests.kernels.inkling_attn_prologue import plain

BF16, FP8, U8 = torch.bfloat16, torch.float8_e4m3fn, torch.uint8
KINDS = {operation.name.rpartition("_")[2]: operation for operation in OPERATIONS}
Arguments = dict[str, Any]


def build(kind: str, **changes: Any) -> Arguments:
    """Arguments of a call of six tokens and two key heads; of each row only q's columns are passed.

    Caches and pools are views with gaps; pools hold 3.0, scale bytes 200, windows 9.0. `page` makes it MXFP8.
    """
    dq, dkv = changes.get("dq", 512), changes.get("dkv", 256)
    tokens, taps, page = changes.pop("tokens", 6), changes.pop("taps", 4), changes.pop("page", None)
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(BF16)

    rows = normal(tokens, dq + 2 * dkv + 64)
    layers = torch.full((384, 2, dkv // 128, 128), 3.0).to(BF16 if page is None else FP8)
    cache = normal(2, 12, taps, dkv + 8)
    scales = [
        None if page is None else torch.full((384 // page, dkv // 128, 32, page // 32, 4), 200, dtype=U8)
        for _ in range(2)
    ]
    arguments: Arguments = {
        "qkvr": rows[:, :dq],
        "k_cache": cache[0, :, : taps - 1],
        "v_cache": cache[1, :, : taps - 1],
        "k_weight": normal(dkv, taps),
        "v_weight": normal(dkv, taps),
        "q_gamma": normal(128),
        "k_gamma": normal(128),
        "eps": 1e-6,
        "loc": torch.tensor([5, 0, 131, -1, 383, 37] + [64 + t for t in range(tokens)])[:tokens],
        "k_buf": layers[:, 0],
        "v_buf": layers.clone()[:, 1],
        "q_off": 0,
        "k_off": dq,
        "v_off": dq + dkv,
        "dq": dq,
        "dkv": dkv,
        "activation": None,
        "use_residual": True,
        "do_store": True,
        "mxfp8_quant": page is not None,
        "sfk": scales[0],
        "sfv": scales[1],
        "page_size": page or 128,
        "log_scaling_tau": None,
    }
    arguments |= {"decode": _decode, "verify": _verify, "extend": _extend}[kind](tokens, taps, dkv)
    assert changes.keys() <= arguments.keys()
    return arguments | changes


def flags(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)


def _decode(tokens: int, taps: int, dkv: int) -> Arguments:
    return {
        "cache_indices": torch.tensor([3, -1, 5, 1, 7, 2]),
        "cache_mask": flags(1, 1, 0, 1, 1, 1),
        "track_mask": flags(1, 1, 0, 0, 1, 0),
        "track_indices": torch.tensor([9, 10, 11, 9, 11, 9]),
    }


def _verify(tokens: int, taps: int, dkv: int) -> Arguments:
    sequences = tokens // 3
    return {
        "cache_indices": torch.tensor([3, -1, 5, 0, 7, 2, 1, 4])[:sequences],
        "cache_mask": torch.arange(sequences).view(-1, 1, 1) % 3 != 2,
        "k_inter": torch.full((sequences + 1, 3, taps - 1, dkv), 9.0, dtype=BF16),
        "v_inter": torch.full((sequences + 1, 3, taps - 1, dkv), 9.0, dtype=BF16),
        "draft_token_num": 3,
    }


def _extend(tokens: int, taps: int, dkv: int) -> Arguments:
    return {
        "cache_indices": torch.tensor([3, -1, 5], dtype=torch.int32),
        "cache_mask": flags(1, 0, 0),
        "has_initial_state": flags(1, 1, 0),
        "cu": torch.tensor([0, 2, 3, 6]),
        "si": torch.tensor([0, 0, 1, 2, 2, 2], dtype=torch.int32),
        "track_rows": torch.tensor([[0, 1, 0], [2, 2, 2], [3, 4, 5]])[:, : taps - 1].contiguous(),
        "track_mask": flags(1, 1, 0),
        "track_dst": torch.tensor([9, 10, 11]),
        "do_cache_update": True,
    }


@contextmanager
def emulated(arguments: Arguments) -> Iterator[None]:
    tensors = {id(value): "cuda:0" for value in arguments.values() if isinstance(value, Tensor)}
    with stated_devices(tensors):
        yield


def run(kind: str, arguments: Arguments) -> Result:
    with emulated(arguments):
        result: Result = RUNNERS[f"inkling_attn_prologue_{kind}"].function(**arguments)
    return result


def storage(tensor: Tensor) -> Tensor:
    """Every byte of the tensor's storage, gaps included."""
    return torch.empty(0, dtype=U8).set_(tensor.untyped_storage()).clone()


def equal_bytes(actual: Tensor, expected: Tensor) -> bool:
    return torch.equal(actual.contiguous().view(U8), expected.contiguous().view(U8))


def check(kind: str, arguments: Arguments) -> Result:
    """Run it; hold every result and buffer against the rules, MXFP8 codes against the bf16 results."""
    expected = plain.prologue(kind, arguments)
    before = {name: value.clone() for name, value in arguments.items() if isinstance(value, Tensor)}
    q, k, v, q_scale = run(kind, arguments)

    assert (k.dtype, v.dtype) == (BF16, BF16)
    compare_rows(k, expected.k)
    compare_rows(v, expected.v)
    page = arguments["page_size"]
    if arguments["mxfp8_quant"]:
        assert (q.dtype, q_scale.dtype if q_scale is not None else None) == (FP8, torch.float8_e8m0fnu)
        assert q_scale is not None
        exact_q, *_ = run(kind, unquantized(arguments, before))
        compare_rows(exact_q, expected.q)
        for token in range(len(q)):
            codes, scales = plain.mxfp8(exact_q[token])
            assert torch.equal(q[token].view(U8), codes)
            assert q_scale[token].view(U8).flatten().tolist() == scales
    else:
        assert q_scale is None
        compare_rows(q, expected.q)

    for name, tensor in expected.moved.items():
        assert equal_bytes(arguments[name], tensor), name
    for pool_name, scale_name, rows in (("k_buf", "sfk", k), ("v_buf", "sfv", v)):
        pool, scale_bytes = before[pool_name], before.get(scale_name)
        slots = [int(arguments["loc"][token]) for token in expected.stored]
        for token, slot in zip(expected.stored, slots, strict=True):
            if not arguments["mxfp8_quant"]:
                pool[slot] = rows[token].view(pool.shape[1:])
                continue
            codes, scales = plain.mxfp8(rows[token])
            pool.view(U8)[slot] = codes.view(pool.shape[1:])
            assert scale_bytes is not None
            for index, byte in enumerate(scales):
                address = plain.scale_address(slot, index // 4, index % 4, page, pool.shape[1])
                scale_bytes.view(-1)[address] = byte
        assert equal_bytes(arguments[pool_name], pool), pool_name
        if scale_bytes is not None:
            assert torch.equal(arguments[scale_name], scale_bytes), scale_name
    written = {"k_cache", "v_cache", "k_inter", "v_inter", "k_buf", "v_buf", "sfk", "sfv"}
    for name in before.keys() - written:
        assert equal_bytes(arguments[name], before[name]), name
    return q, k, v, q_scale


def unquantized(arguments: Arguments, before: dict[str, Tensor]) -> Arguments:
    """The same call in bfloat16, on untouched copies and without a pool."""
    copies = {name: tensor.clone() for name, tensor in before.items() if name != "qkvr"}
    return arguments | copies | {"mxfp8_quant": False, "do_store": False, "sfk": None, "sfv": None}


def compare_rows(actual: Tensor, expected: Tensor) -> None:
    """At most a thousandth of the elements a step of bfloat16 off."""
    wanted = expected.to(BF16)
    comparison = compare("rows", actual, wanted, Tolerance(rtol=2.0**-7))
    assert comparison.within, comparison
    assert int((actual != wanted).sum()) <= max(1, actual.numel() // 1000)


VARIANTS: dict[str, Arguments] = {
    "bf16": {},
    "page 128": {"page": 128},
    "page 64": {"page": 64},
    "page 96": {"page": 96},
    "silu": {"activation": "silu"},
    "swish, no residual, 3 taps": {"activation": "swish", "use_residual": False, "taps": 3},
    "no store": {"do_store": False},
    "tau": {"log_scaling_tau": torch.linspace(0.5, 2.0, 24)},
    "tau, page 128": {"log_scaling_tau": torch.linspace(0.5, 2.0, 24).to(BF16), "page": 128},
    "empty tau": {"log_scaling_tau": torch.empty(0)},
    "one head": {"dq": 384, "dkv": 128},
    "one head, page 32": {"dq": 384, "dkv": 128, "page": 32},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_every_buffer(kind: str, variant: str) -> None:
    check(kind, build(kind, **VARIANTS[variant]))


@pytest.mark.parametrize("page", [None, 128])
@pytest.mark.parametrize("kind", KINDS)
def test_gaps_between_rows_keep_their_bytes(kind: str, page: int | None) -> None:
    arguments = build(kind, page=page)
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
def test_decode(changes: Arguments) -> None:
    check("decode", build("decode", **changes))


def test_decode_leaves_padding_alone() -> None:
    arguments = build("decode")
    cache, pool = arguments["k_cache"].clone(), arguments["k_buf"].clone()
    run("decode", arguments)
    changed = (arguments["k_cache"] != cache).any(-1).any(-1).nonzero().flatten().tolist()
    assert changed == [1, 2, 3, 5, 7, 9, 11]
    stored = (arguments["k_buf"] != pool).any(-1).any(-1).nonzero().flatten().tolist()
    assert stored == [5, 37, 131, 383]


@pytest.mark.parametrize("page", [None, 128])
def test_verify_of_eight_sequences(page: int | None) -> None:
    check("verify", build("verify", tokens=24, page=page))


def test_verify_leaves_padding_windows_and_the_state_alone() -> None:
    arguments = build("verify")
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
def test_extend(changes: Arguments, page: int | None) -> None:
    check("extend", build("extend", page=page, **changes))


@pytest.mark.parametrize("kind", ["decode", "verify"])
def test_no_tokens_are_no_launch(kind: str) -> None:
    arguments = build(kind)
    none = torch.empty(0, dtype=torch.int64)
    arguments |= {"qkvr": arguments["qkvr"][:0], "loc": none, "cache_indices": none, "cache_mask": flags()}
    with pytest.raises(RuntimeError, match=r":(509|921): CUDA error: invalid argument$"):
        run(kind, arguments)


def test_extend_of_no_tokens() -> None:
    kind, arguments = "extend", build("extend")
    none = torch.empty(0, dtype=torch.int64)
    arguments |= {"qkvr": arguments["qkvr"][:0], "loc": none}
    arguments |= {"cu": torch.zeros(4, dtype=torch.int64), "si": none.int()}
    buffers = [storage(arguments[name]) for name in ("k_cache", "v_cache", "k_buf", "v_buf")]
    q, k, v, q_scale = run(kind, arguments)
    assert (q.shape, k.shape, v.shape, q_scale) == ((0, 512), (0, 256), (0, 256), None)
    after = [storage(arguments[name]) for name in ("k_cache", "v_cache", "k_buf", "v_buf")]
    assert all(torch.equal(a, b) for a, b in zip(buffers, after, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_nan_in_a_masked_state_reaches_the_outputs_but_not_the_state(kind: str) -> None:
    arguments = build(kind)
    arguments["cache_mask"] = torch.zeros_like(arguments["cache_mask"])
    for name in ("k_cache", "v_cache"):
        arguments[name].fill_(math.nan)
    _, k, v, _ = run(kind, arguments)
    assert bool(k.isnan().any(-1)[0])
    assert bool(v[0].isnan().any())
    if kind == "decode":
        assert not bool(arguments["k_cache"][3, :, :256].isnan().any())


def test_padding_in_decode_convolves_slot_zero() -> None:
    arguments = build("decode")
    same = arguments | {"cache_indices": torch.tensor([3, 0, 5, 1, 7, 2]), "track_mask": None}
    _, k, _, _ = run(
        "decode", {**same, **{n: same[n].clone() for n in ("k_cache", "v_cache", "k_buf", "v_buf")}}
    )
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


@pytest.mark.parametrize("what", UNRUNNABLE)
def test_what_upstream_would_read_or_write_out_of_bounds_raises_here(what: str) -> None:
    """Sizes and strides are refused by a check; values are not looked at, and torch refuses those."""
    kind, change = UNRUNNABLE[what]
    arguments = build(kind)
    with pytest.raises((RuntimeError, IndexError, ValueError)) as raised:
        run(kind, arguments | change(arguments))
    assert hasattr(raised.value, "violation") is (what not in VALUES)


@pytest.mark.parametrize("what", ["bf16 pool", "float32 scales", "slots beyond the pages"])
def test_what_does_not_fit_quantization_raises_here(what: str) -> None:
    arguments = build("decode", page=128)
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


def test_the_seeds_configuration_is_refused_and_its_buffers_stay() -> None:
    arguments = build("decode", page=128, sfk=torch.full((2, 2, 32, 4), 200, dtype=U8))
    before = [storage(arguments[name]) for name in ("k_cache", "k_buf", "sfv")]
    with pytest.raises(
        ValueError, match=r"^MXFP8 fused decode prologue .* \(3, 2, 32, 4, 4\), got \(2, 2, 32, 4\)"
    ):
        run("decode", arguments)
    after = [storage(arguments[name]) for name in ("k_cache", "k_buf", "sfv")]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_described_call_runs_as_the_worker_runs_it(kind: str, quantized: bool) -> None:
    operation = KINDS[kind]
    runner = RUNNERS[operation.name]
    call = operation.valid.quantized() if quantized else operation.valid  # type: ignore[attr-defined]
    values = seeded(operation.fill(call), 3)
    arguments = materialise(call, values, "cpu")
    with emulated(arguments):
        written = runner.outputs(arguments, runner.function(**arguments))
    expected = runner.reference(materialise(call, values, "cpu"))
    assert written.keys() == expected.keys()
    assert set(operation.outputs) - {"sfk", "sfv"} < written.keys()
    assert {"sfk", "sfv", "q_scale"} & written.keys() == ({"sfk", "sfv", "q_scale"} if quantized else set())
    for name, tensor in written.items():
        assert compare(name, tensor, expected[name], tolerance(name, call)).within
        assert bool((tensor.contiguous().view(U8) != 0).any()), f"{name} was not written"
