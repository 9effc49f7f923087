"""The prologues' rules written out token by token in float64: what the reference is held against.

Nothing here is shared with the reference. Results are rounded once more to bfloat16 by the caller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Arguments = dict[str, Any]


@dataclass
class Expected:
    """q, k, v as float64; state and windows as bytes must be; which tokens go into the pool."""

    q: Tensor
    k: Tensor
    v: Tensor
    moved: dict[str, Tensor] = field(default_factory=dict)
    stored: list[int] = field(default_factory=list)


def owners(kind: str, a: Arguments) -> list[tuple[int, int]]:
    """(sequence, first token of the sequence) of each token."""
    tokens = a["qkvr"].shape[0]
    if kind == "decode":
        return [(t, t) for t in range(tokens)]
    if kind == "verify":
        n = a["draft_token_num"]
        return [(t // n, t // n * n) for t in range(tokens)]
    return [(int(a["si"][t]), int(a["cu"][int(a["si"][t])])) for t in range(tokens)]


def prologue(kind: str, a: Arguments) -> Expected:
    """What the call must return and leave in its buffers; `a` is read only."""
    tokens, stride = a["qkvr"].shape[0], a["qkvr"].stride(0)
    row = a["qkvr"].as_strided((tokens, stride), (stride, 1))
    slots = [int(slot) for slot in a["cache_indices"]]
    masked = [not bool(kept) for kept in a["cache_mask"].reshape(-1)]
    taps = a["k_weight"].shape[1]

    def convolved(name: str, offset: int) -> Tensor:
        cache, weight = a[f"{name}_cache"].double(), a[f"{name}_weight"].double()
        x = row[:, offset : offset + a["dkv"]].double()
        out = torch.empty_like(x)
        for t, (sequence, first) in enumerate(owners(kind, a)):
            slot = slots[sequence]
            gate = 0.0 if masked[sequence] or (kind == "verify" and slot == -1) else 1.0
            total = torch.zeros(a["dkv"], dtype=torch.float64)
            for tap in range(taps - 1):
                position = t - (taps - 1) + tap
                if kind == "decode":
                    value = gate * cache[max(slot, 0), tap, : a["dkv"]]
                elif position >= first:
                    value = x[position]
                else:
                    value = gate * cache[max(slot, 0), position - first + taps - 1, : a["dkv"]]
                total += value * weight[: a["dkv"], tap]
            total += x[t] * weight[: a["dkv"], taps - 1]
            if a["activation"] in ("silu", "swish"):
                total = total / (1 + torch.exp(-total))
            out[t] = total + x[t] if a["use_residual"] else total
        return out.to(torch.bfloat16).double()

    def normalised(x: Tensor, gamma: Tensor) -> Tensor:
        out = torch.empty_like(x)
        for t in range(len(x)):
            for start in range(0, x.shape[1], 128):
                head = x[t, start : start + 128]
                mean = math.fsum((head * head).tolist()) / 128
                out[t, start : start + 128] = head / math.sqrt(mean + a["eps"]) * gamma.double()
        return out.to(torch.bfloat16).double()

    q = normalised(row[:, a["q_off"] : a["q_off"] + a["dq"]].double(), a["q_gamma"])
    tau = a["log_scaling_tau"]
    if tau is not None and tau.numel():
        q = (q * tau.reshape(-1)[:tokens].float().double().unsqueeze(1)).to(torch.bfloat16).double()
    expected = Expected(q, normalised(convolved("k", a["k_off"]), a["k_gamma"]), convolved("v", a["v_off"]))
    if a["do_store"]:
        absent = [kind == "decode" and slots[sequence] == -1 for sequence, _ in owners(kind, a)]
        expected.stored = [t for t in range(tokens) if int(a["loc"][t]) >= 0 and not absent[t]]
    for name in ("k", "v"):
        x = row[:, a[f"{name}_off"] :][:, : a["dkv"]]
        move = {"decode": _decode_state, "verify": _verify_windows, "extend": _extend_state}[kind]
        expected.moved |= move(name, a, x, slots, masked, taps)
    return expected


def _decode_state(
    name: str, a: Arguments, x: Tensor, slots: list[int], masked: list[bool], taps: int
) -> dict[str, Tensor]:
    old, width = a[f"{name}_cache"], a["dkv"]
    cache = old.clone()
    for t, slot in enumerate(slots[: len(x)]):
        if slot == -1:
            continue
        targets = [slot]
        if a["track_mask"] is not None and bool(a["track_mask"].reshape(-1)[t]):
            targets.append(int(a["track_indices"][t]))
        for target in targets:
            for w in range(taps - 2):
                cache[target, w, :width] = 0 if masked[t] else old[slot, w + 1, :width]
            cache[target, taps - 2, :width] = x[t]
    return {f"{name}_cache": cache}


def _verify_windows(
    name: str, a: Arguments, x: Tensor, slots: list[int], masked: list[bool], taps: int
) -> dict[str, Tensor]:
    window, n = a[f"{name}_inter"].clone(), a["draft_token_num"]
    for b, slot in enumerate(slots):
        for drafted in range(n if slot != -1 else 0):
            for w in range(taps - 1):
                position = drafted + 1 + w
                source = (
                    a[f"{name}_cache"][slot, position, : a["dkv"]]
                    if position < taps - 1
                    else x[b * n + position - (taps - 1)]
                )
                window[b, drafted, w, : a["dkv"]] = source
    return {f"{name}_inter": window, f"{name}_cache": a[f"{name}_cache"].clone()}


def _extend_state(
    name: str, a: Arguments, x: Tensor, slots: list[int], masked: list[bool], taps: int
) -> dict[str, Tensor]:
    old, width = a[f"{name}_cache"], a["dkv"]
    cache = old.clone()
    if not a["do_cache_update"]:
        return {f"{name}_cache": cache}
    for b, slot in enumerate(slots):
        start, length = int(a["cu"][b]), int(a["cu"][b + 1] - a["cu"][b])
        if slot != -1 and length > 0:
            for w in range(taps - 1):
                place = length + w
                if place >= taps - 1:
                    cache[slot, w, :width] = x[start + place - (taps - 1)]
                elif bool(a["has_initial_state"][b]):
                    cache[slot, w, :width] = old[slot, place, :width]
                else:
                    cache[slot, w, :width] = 0
    for b in range(len(slots) if a["track_mask"].numel() else 0):
        if bool(a["track_mask"][b]):
            for w in range(taps - 1):
                cache[int(a["track_dst"][b]), w, :width] = x[int(a["track_rows"].view(-1, taps - 1)[b, w])]
    return {f"{name}_cache": cache}


def e4m3_codes(values: Tensor) -> Tensor:
    """Nearest E4M3 codes of numbers within ±448, ties to the even code, from the format's definition."""
    codes = torch.arange(0x7F)
    exponent, mantissa = codes >> 3, (codes & 7).double()
    table = torch.where(
        exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7).double()
    )
    distance = (values.double().abs().unsqueeze(-1) - table).abs()
    nearest = distance == distance.amin(-1, keepdim=True)
    even = nearest & (codes % 2 == 0)
    index = torch.where(nearest.sum(-1) > 1, even.int().argmax(-1), nearest.int().argmax(-1))
    return (index + 128 * torch.signbit(values)).to(torch.uint8)


def mxfp8(row: Tensor) -> tuple[Tensor, list[int]]:
    """Codes and scale bytes of one row of whole heads of finite numbers, block by block."""
    codes, scales = [], []
    for block in row.float().split(32):
        amax = max(float(block.abs().max()), 1e-30)
        quotient = float(torch.tensor(amax) / torch.tensor(448.0))
        mantissa, exponent = math.frexp(quotient)  # quotient = mantissa · 2^exponent, mantissa in [0.5, 1)
        byte = min(max((exponent - 1 if mantissa == 0.5 else exponent) + 127, 0), 254)
        scaled = (block.double() / 2.0 ** (byte - 127)).clamp(-448, 448)
        codes.append(e4m3_codes(scaled))
        scales.append(byte)
    return torch.cat(codes), scales


def scale_address(slot: int, head: int, block: int, page_size: int, heads: int) -> int:
    """Byte of a scale within its buffer."""
    page, place = divmod(slot, page_size)
    columns = page_size // 32
    return ((page * heads + head) * 32 * columns + place % 32 * columns + place // 32) * 4 + block
