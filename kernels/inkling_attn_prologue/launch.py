"""Launches of the prologues' kernels: results, tiles, and what the kernels are told of strides."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from kernels.devices import launch as start
from kernels.devices import overlaps_launches
from kernels.inkling_attn_prologue.kernel import UNIT
from kernels.inkling_attn_prologue.kernel_decode import decode_kernel
from kernels.inkling_attn_prologue.kernel_extend import extend_kernel, state_kernel
from kernels.inkling_attn_prologue.kernel_verify import verify_kernel
from kernels.inkling_attn_prologue.mxfp8 import BLOCKS, HEAD
from kernels.inkling_attn_prologue.reference import SILU_NAMES, Pool, Projection, Result
from kernels.offline import Variant, pointer_to

KERNELS = {"decode": decode_kernel, "verify": verify_kernel, "extend": extend_kernel, "state": state_kernel}

TAU_TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What the kernels read tau in; other types are converted beforehand."""


@dataclass(frozen=True)
class Tile:
    """What programs cover: heads and tokens of those of q, of those of k and v, all powers of two; warps."""

    q_heads: int
    q_tokens: int
    heads: int
    tokens: int
    warps: int


def decode(
    projection: Projection,
    pool: Pool,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_indices: Tensor,
    cache_mask: Tensor,
    track_mask: Tensor | None,
    track_indices: Tensor | None,
) -> Result:
    """As `reference.decode`, on the current stream; nothing is checked here, op.py's guard has done so."""
    launched = _Prologue("decode", projection, pool, k_cache, v_cache, cache_indices, cache_mask)
    if track_mask is None or track_indices is None:
        track_mask = track_indices = None
    runs = _ceiling(projection.tokens, launched.tile.tokens)
    return launched.start(
        decode_kernel,
        runs,
        track_mask_ptr=None if track_mask is None else track_mask.reshape(-1),
        track_indices_ptr=track_indices,
        track_stride=0 if track_indices is None else track_indices.stride(0),
    )


def verify(
    projection: Projection,
    pool: Pool,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_indices: Tensor,
    cache_mask: Tensor,
    k_inter: Tensor,
    v_inter: Tensor,
    draft_token_num: int,
) -> Result:
    """As `reference.verify`, on the current stream; nothing is checked here."""
    launched = _Prologue("verify", projection, pool, k_cache, v_cache, cache_indices, cache_mask)
    runs = _ceiling(draft_token_num, launched.tile.tokens)
    return launched.start(
        verify_kernel,
        projection.tokens // draft_token_num * runs,
        k_inter_ptr=k_inter,
        v_inter_ptr=v_inter,
        DRAFTED=draft_token_num,
        inter_stride=k_inter.stride(0) // UNIT,
        window_token_stride=k_inter.stride(1) // UNIT,
        window_stride=k_inter.stride(2) // UNIT,
    )


def extend(
    projection: Projection,
    pool: Pool,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_indices: Tensor,
    cache_mask: Tensor,
    has_initial_state: Tensor,
    cu: Tensor,
    si: Tensor,
    track_rows: Tensor,
    track_mask: Tensor,
    track_dst: Tensor,
    do_cache_update: bool,
) -> Result:
    """As `reference.extend`, on the current stream; nothing is checked here.

    The state is updated by a second kernel: programs of the first read it wherever a sequence begins.
    """
    launched = _Prologue("extend", projection, pool, k_cache, v_cache, cache_indices, cache_mask)
    runs = _ceiling(projection.tokens, launched.tile.tokens)
    result = launched.start(extend_kernel, runs, cu_ptr=cu, si_ptr=si)
    sequences = cache_indices.numel()
    if do_cache_update and projection.tokens and sequences:
        tracks = track_mask.numel() > 0
        launched.start_alone(
            state_kernel,
            (sequences, 2 * launched.heads // launched.tile.heads, 1),
            has_initial_state_ptr=has_initial_state,
            cu_ptr=cu,
            track_rows_ptr=track_rows if tracks else None,
            track_mask_ptr=track_mask if tracks else None,
            track_dst_ptr=track_dst if tracks else None,
            track_stride=track_dst.stride(0) if tracks else 0,
        )
    return result


class _Prologue:
    """One call: its results, its tile, and the arguments that the kernels share, by the kernels' names."""

    def __init__(
        self,
        kind: str,
        projection: Projection,
        pool: Pool,
        k_cache: Tensor,
        v_cache: Tensor,
        cache_indices: Tensor,
        cache_mask: Tensor,
    ) -> None:
        qkvr, dq, dkv = projection.qkvr, projection.dq, projection.dkv
        self.device, self.tokens = qkvr.device, projection.tokens
        self.q_heads, self.heads = dq // HEAD, dkv // HEAD
        quantized = bool(pool.mxfp8_quant)
        interpreted = self.device.type == "cpu"
        self.tile = choose_tile(
            kind, self.tokens, self.q_heads, self.heads, quantized=quantized, interpreted=interpreted
        )
        self.pdl = overlaps_launches(self.device)

        q_type = torch.float8_e4m3fn if quantized else qkvr.dtype
        q_out = torch.empty(self.tokens, dq, dtype=q_type, device=self.device)
        k_out, v_out = (torch.empty(self.tokens, dkv, dtype=qkvr.dtype, device=self.device) for _ in range(2))
        q_bytes = None
        if quantized:
            shape = (self.tokens, self.q_heads, BLOCKS)
            q_bytes = torch.empty(shape, dtype=torch.uint8, device=self.device)
        q_scale = None if q_bytes is None else q_bytes.view(torch.float8_e8m0fnu)
        self.result: Result = (q_out, k_out, v_out, q_scale)

        k_buf, v_buf = (buffer.view(-1, dkv) for buffer in (pool.k_buf, pool.v_buf))
        sfk, sfv = (
            scales.view(torch.uint8) if quantized and scales is not None else None
            for scales in (pool.sfk, pool.sfv)
        )
        k_weight, v_weight = projection.k_weight, projection.v_weight
        taps = k_weight.shape[1]
        self.arguments: dict[str, Any] = {
            "qkvr_ptr": qkvr,
            "k_cache_ptr": k_cache,
            "v_cache_ptr": v_cache,
            "cache_indices_ptr": cache_indices,
            "cache_mask_ptr": cache_mask,
            "k_weight_ptr": k_weight,
            "v_weight_ptr": v_weight,
            "q_gamma_ptr": projection.q_gamma,
            "k_gamma_ptr": projection.k_gamma,
            "tau_ptr": _flat_tau(projection.log_scaling_tau),
            "loc_ptr": pool.loc,
            "k_buf_ptr": k_buf,
            "v_buf_ptr": v_buf,
            "sfk_ptr": sfk,
            "sfv_ptr": sfv,
            "q_out_ptr": q_out,
            "k_out_ptr": k_out,
            "v_out_ptr": v_out,
            "q_scale_ptr": q_bytes,
            "eps": float(projection.eps),
            "tokens": self.tokens,
            "row_stride": qkvr.stride(0) // UNIT,
            "q_off": projection.q_off // UNIT,
            "k_off": projection.k_off // UNIT,
            "v_off": projection.v_off // UNIT,
            "slot_stride": k_cache.stride(0) // UNIT,
            "state_stride": k_cache.stride(1) // UNIT,
            "weight_stride": k_weight.stride(0),
            "pool_stride": k_buf.stride(0) // UNIT,
            **_constants(
                self.tile,
                self.q_heads,
                self.heads,
                pool.page_size if quantized else 0,
                taps,
                silu=projection.activation in SILU_NAMES,
                residual=bool(projection.use_residual),
                store=bool(pool.do_store),
                mxfp8=quantized,
                saturates=torch.version.hip is None,
                packed=taps == 4 and k_weight.stride(0) == 4 and _aligned(8, k_weight, v_weight),
                words=sfk is not None and sfv is not None and _aligned(4, sfk, sfv),
                pdl=self.pdl,
            ),
        }

    def start(self, kernel: Any, runs: int, **own: Any) -> Result:
        """Launch one of the three kernels, `runs` of tokens for k and for v; no tokens are no launch."""
        tile = self.tile
        programs = runs * 2 * self.heads // tile.heads
        programs += _ceiling(self.tokens, tile.q_tokens) * self.q_heads // tile.q_heads
        if self.tokens:
            self.start_alone(kernel, (programs, 1, 1), **own)
        return self.result

    def start_alone(self, kernel: Any, grid: tuple[int, int, int], **own: Any) -> None:
        """Launch a kernel, its arguments found by name."""
        named = self.arguments | own
        options = {"num_warps": self.tile.warps} | ({"launch_pdl": True} if self.pdl else {})
        tensors, numbers = ([named[name] for name in names] for names in _names(kernel))
        start(self.device, kernel, grid, tensors, numbers, **options)


@lru_cache(maxsize=4096)
def choose_tile(
    kind: str, tokens: int, q_heads: int, heads: int, *, quantized: bool, interpreted: bool = False
) -> Tile:
    """The tile for so many tokens, heads of q, and heads of k and v; docs/measurements.md has what was tried.

    The interpreter pays for a program, not for an element.
    """
    if interpreted:
        return Tile(_divisor(q_heads, 64), 4, _divisor(heads, 64), 4, 4)
    wide, q_tokens, k_tokens = _shape(kind, tokens, quantized)
    heads_of_both = min(_divisor(heads, wide), _divisor(q_heads, wide))
    return Tile(heads_of_both, q_tokens, heads_of_both, k_tokens, max(1, heads_of_both // 2))


def _shape(kind: str, tokens: int, quantized: bool) -> tuple[int, int, int]:
    """Heads of a program, tokens of one of q, tokens of one of k and v."""
    if kind == "verify":
        return 4, 1, 2
    if kind == "extend":
        return (2, 8, 8) if quantized else (4, 4, 4)
    if tokens < 16:
        return 4, 1, 1
    if tokens < 1024:
        return 2, 2, 2
    return (4, 4, 1) if quantized else (4, 4, 2)


def _constants(
    tile: Tile,
    q_heads: int,
    heads: int,
    page: int,
    taps: int,
    *,
    silu: bool,
    residual: bool,
    store: bool,
    mxfp8: bool,
    saturates: bool,
    packed: bool,
    words: bool,
    pdl: bool,
) -> dict[str, object]:
    """The kernels' constants by name."""
    return {
        "HQ": q_heads,
        "H": heads,
        "PAGE": page,
        "W": taps,
        "SILU": silu,
        "RESIDUAL": residual,
        "STORE": store,
        "MXFP8": mxfp8,
        "SATURATES": saturates,
        "PACKED": packed,
        "WORDS": words,
        "Q_HEADS": tile.q_heads,
        "Q_TOKENS": tile.q_tokens,
        "HEADS": tile.heads,
        "TOKENS": tile.tokens,
        "PDL": pdl,
    }


def _ceiling(count: int, size: int) -> int:
    """Parts of `size` that hold `count`; Triton's own takes the host longer than a small launch."""
    return -(-count // size)


def _divisor(heads: int, most: int) -> int:
    """The largest power of two that divides `heads`, at most `most`; 1 for no heads."""
    return min(heads & -heads, most) or 1


def _flat_tau(tau: Tensor | None) -> Tensor | None:
    """One factor after another, in a type that the kernels read; None where there are none."""
    if tau is None or tau.numel() == 0:
        return None
    flat = tau.reshape(-1).contiguous()
    return flat if flat.dtype in TAU_TYPES else flat.float()


def _aligned(size: int, *tensors: Tensor) -> bool:
    return all(tensor.data_ptr() % size == 0 for tensor in tensors)


@cache
def _names(kernel: Any) -> tuple[list[str], list[str]]:
    """A kernel's arguments in order: pointers, and the numbers that follow them."""
    names = list(signature(kernel.fn).parameters)
    pointers = [name for name in names if name.endswith("_ptr")]
    return pointers, names[len(pointers) :]


def variant(
    kind: str,
    *,
    tokens: int,
    q_heads: int = 32,
    heads: int = 8,
    taps: int = 4,
    mxfp8: bool = False,
    silu: bool = False,
    track: bool = False,
    tau: bool = False,
    packed: bool = True,
    pdl: bool = False,
) -> Variant:
    """The compilation that a call with such tensors asks for, for hosts without the GPU.

    kind is a prologue's, or "state" for the kernel that follows extend.
    """
    kernel = KERNELS[kind]
    tile = choose_tile(kind, tokens, q_heads, heads, quantized=mxfp8)
    rows, pool = pointer_to(torch.bfloat16), pointer_to(torch.float8_e4m3fn if mxfp8 else torch.bfloat16)
    types = dict.fromkeys(_names(kernel)[0], rows)
    types |= {"k_buf_ptr": pool, "v_buf_ptr": pool, "q_out_ptr": pool, "eps": "fp32", "tau_ptr": "*fp32"}
    types |= dict.fromkeys(("sfk_ptr", "sfv_ptr", "q_scale_ptr"), "*u8")
    types |= dict.fromkeys(("cache_indices_ptr", "si_ptr"), "*i32")
    types |= dict.fromkeys(("cache_mask_ptr", "has_initial_state_ptr", "track_mask_ptr"), "*i1")
    wide = ("loc_ptr", "cu_ptr", "track_indices_ptr", "track_rows_ptr", "track_dst_ptr")
    types |= dict.fromkeys(wide, "*i64")
    constants = _constants(
        tile,
        q_heads,
        heads,
        128,
        taps,
        silu=silu,
        residual=True,
        store=True,
        mxfp8=mxfp8,
        saturates=True,
        packed=packed,
        words=mxfp8,
        pdl=pdl,
    )
    absent = [] if mxfp8 else ["sfk_ptr", "sfv_ptr", "q_scale_ptr"]
    absent += [] if track else ["track_mask_ptr", "track_indices_ptr", "track_rows_ptr", "track_dst_ptr"]
    absent += [] if tau else ["tau_ptr"]
    names = signature(kernel.fn).parameters
    constants |= dict.fromkeys(absent) | {"DRAFTED": 4}
    return Variant(
        kernel=kernel,
        types={name: kind for name, kind in types.items() if name in names and name not in absent},
        constants={name: value for name, value in constants.items() if name in names},
        aligned=frozenset(name for name in _names(kernel)[0] if name not in absent),
        warps=tile.warps,
        overlapped=pdl,
    )
