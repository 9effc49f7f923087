"""Calls of the guarded functions, and what they are held against: the rules written out, byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from kernels.inkling_attn_prologue.checks import OPERATIONS
from kernels.inkling_attn_prologue.op import RUNNERS
from kernels.inkling_attn_prologue.reference import Result
from kernels.live import stated_devices
from kernels.running import Tolerance, compare
from tests.kernels.inkling_attn_prologue import plain

BF16, FP8, U8 = torch.bfloat16, torch.float8_e4m3fn, torch.uint8
KINDS = {operation.name.rpartition("_")[2]: operation for operation in OPERATIONS}
Arguments = dict[str, Any]


def build(kind: str, device: str = "cpu", **changes: Any) -> Arguments:
    """Arguments of a call of six tokens and two key heads; of each row only q's columns are passed.

    Caches and pools are views with gaps; pools hold 3.0, scale bytes 200, windows 9.0. `page` makes it MXFP8.
    `changes` replaces arguments as they are, wherever they lie.
    """
    dq, dkv = changes.get("dq", 512), changes.get("dkv", 256)
    tokens, taps, page = changes.pop("tokens", 6), changes.pop("taps", 4), changes.pop("page", None)
    generator = torch.Generator().manual_seed(changes.pop("seed", 0))

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
    return moved(arguments | changes, device)


def moved(arguments: Arguments, device: str) -> Arguments:
    """The arguments on a device, with the layout that they have; tensors that share memory still do."""
    storages: dict[int, Tensor] = {}

    def copy(tensor: Tensor) -> Tensor:
        key = tensor.untyped_storage().data_ptr()
        if key not in storages:
            storages[key] = storage(tensor).to(device)
        held = storages[key].view(tensor.dtype)
        return held.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    return {name: copy(value) if isinstance(value, Tensor) else value for name, value in arguments.items()}


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
    tensors = {
        id(value): "cuda:0" for value in arguments.values() if isinstance(value, Tensor) and value.is_cpu
    }
    with stated_devices(tensors):
        yield


def run(kind: str, arguments: Arguments) -> Result:
    with emulated(arguments):
        result: Result = RUNNERS[f"inkling_attn_prologue_{kind}"].function(**arguments)
    return result


def held(tensor: Tensor) -> Tensor:
    """The bytes of the tensor's storage, gaps and all that lies behind it included."""
    return torch.empty(0, dtype=U8, device=tensor.device).set_(tensor.untyped_storage())


def storage(tensor: Tensor) -> Tensor:
    """A copy of every byte of the tensor's storage."""
    return held(tensor).clone()


def equal_bytes(actual: Tensor, expected: Tensor) -> bool:
    return torch.equal(actual.contiguous().view(U8).cpu(), expected.contiguous().view(U8).cpu())


def check(kind: str, arguments: Arguments) -> Result:
    """Run it; hold every result and buffer against the rules, MXFP8 codes against the bf16 results."""
    device = str(arguments["qkvr"].device)
    before = {name: value for name, value in moved(arguments, "cpu").items() if isinstance(value, Tensor)}
    expected = plain.prologue(kind, arguments | before)
    result = run(kind, arguments)
    q, k, v, q_scale = (None if each is None else each.cpu() for each in result)
    assert q is not None
    assert k is not None
    assert v is not None

    assert (k.dtype, v.dtype) == (BF16, BF16)
    compare_rows(k, expected.k)
    compare_rows(v, expected.v)
    page = arguments["page_size"]
    if arguments["mxfp8_quant"]:
        assert (q.dtype, q_scale.dtype if q_scale is not None else None) == (FP8, torch.float8_e8m0fnu)
        assert q_scale is not None
        exact_q = run(kind, moved(unquantized(arguments, before), device))[0].cpu()
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
            assert equal_bytes(arguments[scale_name], scale_bytes), scale_name
    written = {"k_cache", "v_cache", "k_inter", "v_inter", "k_buf", "v_buf", "sfk", "sfv"}
    for name in before.keys() - written:
        assert equal_bytes(arguments[name], before[name]), name
    return result


def unquantized(arguments: Arguments, before: dict[str, Tensor]) -> Arguments:
    """The same call in bfloat16, of what was there before and without a pool."""
    return arguments | before | {"mxfp8_quant": False, "do_store": False, "sfk": None, "sfv": None}


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
