"""The inkling prologues at 32 query and 8 key heads: one token a sequence, four drafted ones, long sequences.

Both sides are timed through their public functions, so that the host's time has the checks in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch

from benchmarks.problems import Function, Problem, by_name, from_upstream

DQ, DKV, HEAD, W, PAGE, BLOCK = 4096, 1024, 128, 4, 128, 32
DRAFTED = 4
SEQUENCE = 1024
"""Tokens of a sequence that is extended."""

SIZES = {"decode": (1, 256, 2048), "verify": (64, 256), "extend": (4096, 32_768)}
"""Tokens of a call, by prologue."""


def build(generator: torch.Generator, *, kind: str, tokens: int, mxfp8: bool) -> dict[str, Any]:
    """Normal rows, states and weights; slots of state and pool drawn without repetition."""
    device, heads = generator.device, DKV // HEAD

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).to(torch.bfloat16)

    def shuffled(count: int) -> torch.Tensor:
        return torch.randperm(count, generator=generator, device=device)

    sequences = sequences_of(kind, tokens)
    slots = -(-2 * tokens // PAGE) * PAGE
    pool = torch.zeros(slots, heads, HEAD, device=device, dtype=torch.bfloat16)
    scales = torch.zeros(slots // PAGE, heads, BLOCK, PAGE // BLOCK, HEAD // BLOCK, device=device)
    if mxfp8:
        pool = pool.to(torch.float8_e4m3fn)
    arguments: dict[str, Any] = {
        "qkvr": normal(tokens, DQ + 2 * DKV),
        "k_cache": normal(sequences + 8, W - 1, DKV),
        "v_cache": normal(sequences + 8, W - 1, DKV),
        "cache_indices": shuffled(sequences + 8)[:sequences].to(torch.int32),
        "cache_mask": torch.rand(sequences, generator=generator, device=device) > 0.3,
        "k_weight": normal(DKV, W),
        "v_weight": normal(DKV, W),
        "q_gamma": normal(HEAD),
        "k_gamma": normal(HEAD),
        "eps": 1e-6,
        "loc": shuffled(slots)[:tokens],
        "k_buf": pool,
        "v_buf": pool.clone(),
        "q_off": 0,
        "k_off": DQ,
        "v_off": DQ + DKV,
        "dq": DQ,
        "dkv": DKV,
    }
    if mxfp8:
        arguments |= {"mxfp8_quant": True, "sfk": scales.to(torch.uint8), "sfv": scales.to(torch.uint8)}
    if kind == "verify":
        window = torch.zeros(sequences, DRAFTED, W - 1, DKV, device=device, dtype=torch.bfloat16)
        arguments |= {"k_inter": window, "v_inter": window.clone(), "draft_token_num": DRAFTED}
    elif kind == "extend":
        starts = torch.arange(sequences + 1, device=device) * (tokens // sequences)
        none = torch.empty(0, dtype=torch.int64, device=device)
        arguments |= {
            "has_initial_state": arguments["cache_mask"].clone(),
            "cu": starts,
            "si": torch.arange(tokens, device=device, dtype=torch.int32) // (tokens // sequences),
            "track_rows": none,
            "track_mask": none.bool(),
            "track_dst": none,
        }
    return arguments


def sequences_of(kind: str, tokens: int) -> int:
    """Sequences of a call."""
    return {"decode": tokens, "verify": tokens // DRAFTED, "extend": max(1, tokens // SEQUENCE)}[kind]


def ours(kind: str) -> Function:
    """Our public function."""
    prologue = getattr(import_module("kernels.inkling_attn_prologue.op"), f"inkling_attn_prologue_{kind}")
    return by_name(prologue)


def upstream(kind: str) -> Function:
    """Upstream's public function."""
    prologue = from_upstream(
        "sglang.kernels.ops.attention.inkling_attn_prologue", f"inkling_attn_prologue_{kind}"
    )
    return by_name(prologue)


def moved(kind: str, tokens: int, mxfp8: bool) -> int:
    """Bytes that must move: rows, results and stored keys and values; the state and windows in bfloat16."""
    state = 2 * (W - 1) * DKV * 2
    kept = {
        "decode": 2 * state * tokens,
        "verify": state * (tokens + sequences_of(kind, tokens)),
        "extend": 2 * state * sequences_of(kind, tokens),
    }[kind]
    quantised = DQ + 2 * DKV
    stored = quantised + quantised // BLOCK if mxfp8 else 2 * quantised
    return tokens * (2 * (DQ + 2 * DKV) + stored + 2 * 2 * DKV) + kept


def _all() -> Iterator[Problem]:
    for kind, sizes in SIZES.items():
        for mxfp8 in (False, True):
            for tokens in sizes:
                yield Problem(
                    operation=f"inkling_attn_prologue_{kind}",
                    size=f"{'MXFP8' if mxfp8 else 'bfloat16'}, T={tokens}",
                    build=partial(build, kind=kind, tokens=tokens, mxfp8=mxfp8),
                    ours=partial(ours, kind),
                    upstream=partial(upstream, kind),
                    moved=moved(kind, tokens, mxfp8),
                )


PROBLEMS = tuple(_all())
