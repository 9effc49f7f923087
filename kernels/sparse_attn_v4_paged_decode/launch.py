"""Launches of sparse_attn_v4_paged_decode: which kernel, in which shape, and what partials it leaves.

All of it follows from shapes, strides, addresses and the device (plan.py), so a captured graph stays valid
when lists change.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
from torch import Tensor

from kernels.devices import launch as start
from kernels.devices import shared_memory
from kernels.offline import Variant, pointer_to
from kernels.sparse_attn_v4_paged_decode.kernel import join_splits_kernel, paged_decode_kernel
from kernels.sparse_attn_v4_paged_decode.plan import Plan, fits_hopper, plan
from kernels.sparse_attn_v4_paged_decode.reference import LOG2E


def launch(
    q: Tensor,
    unified_kv: Tensor,
    kv_indices: Tensor,
    kv_indptr: Tensor,
    attn_sink: Tensor,
    softmax_scale: float,
    kv_scales: Tensor | None = None,
    kv_splits: int | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Start the kernels on the current stream of q's device; arguments and result as in `reference.decode`.

    `out`, shaped like q, receives the result where it is given. Nothing is checked here: op.py's guard has
    done so. What is launched follows from shapes, strides and addresses alone.
    """
    out = torch.empty_like(q) if out is None else out
    tokens, heads, width = q.shape
    if tokens == 0 or heads == 0 or width == 0:
        return out
    processors, hopper = _processors(q.device)
    chosen = plan(
        tokens,
        heads,
        width,
        kv_indices.numel(),
        kv_splits,
        hopper=hopper and out.stride(2) == 1 and fits_hopper(q, unified_kv),
        processors=processors,
        shared_bytes=shared_memory(q.device),
    )
    # Codes travel as bytes: a masked load of float8 has no neutral element in the interpreter.
    pool = unified_kv if kv_scales is None else unified_kv.view(torch.uint8)
    scales_strides = (0, 0) if kv_scales is None else kv_scales.stride()
    qk_scale = float(softmax_scale) * LOG2E
    partials = _partials(chosen, tokens, width, q.device)
    tensors = (q, pool, kv_scales, kv_indices, kv_indptr, attn_sink, out, *partials)
    programs = tokens * chosen.splits * chosen.head_blocks
    if chosen.hopper:
        from kernels.sparse_attn_v4_paged_decode.hopper import constants, hopper_decode_kernel

        kernel, switches = hopper_decode_kernel, constants(chosen, width, fp8=kv_scales is not None)
        strides = (*q.stride()[:2], pool.stride(0), *scales_strides, *out.stride()[:2])
    else:
        kernel, switches = paged_decode_kernel, _constants(chosen, width, fp8=kv_scales is not None)
        strides = (*q.stride(), *pool.stride(), *scales_strides, *out.stride())
    numbers = (qk_scale, heads, *strides, *switches.values())
    start(q.device, kernel, (programs, 1, 1), tensors, numbers, num_warps=chosen.warps)
    if chosen.splits > 1:
        columns = chosen.join_columns(tokens, heads, processors)
        start(
            q.device,
            join_splits_kernel,
            (tokens * heads, triton.cdiv(width, columns), 1),
            (*partials, kv_indptr, attn_sink, out),
            (heads, *out.stride(), *_join_constants(chosen, width, columns).values()),
            num_warps=_join_warps(columns),
        )
    return out


def variant(
    query_type: torch.dtype,
    *,
    fp8: bool,
    shared_bytes: int,
    tokens: int = 512,
    heads: int = 128,
    width: int = 512,
    splits: int = 1,
    hopper: bool = False,
) -> Variant:
    """The compilation that `launch` asks for with dense tensors of such sizes, for hosts without the GPU."""
    chosen = plan(
        tokens,
        heads,
        width,
        tokens * 64,
        splits,
        hopper=hopper,
        processors=132,
        shared_bytes=shared_bytes,
    )
    half, single, word = pointer_to(query_type), pointer_to(torch.float32), pointer_to(torch.int32)
    types = {
        "q_ptr": half,
        "pool_ptr": pointer_to(torch.uint8) if fp8 else half,
        "indices_ptr": word,
        "indptr_ptr": word,
        "sink_ptr": single,
        "out_ptr": half,
    }
    constants: dict[str, object] = {}
    for name, present in (
        ("scales_ptr", fp8),
        *((n, splits > 1) for n in ("highest_ptr", "total_ptr", "mixed_ptr")),
    ):
        if present:
            types[name] = single
        else:
            constants[name] = None
    strides = {"pool_row_stride", "q_token_stride", "q_head_stride", "out_token_stride", "out_head_stride"}
    aligned = frozenset([*types, *strides])
    if hopper:
        from kernels.sparse_attn_v4_paged_decode import hopper as special

        kernel = special.hopper_decode_kernel
        constants |= special.constants(chosen, width, fp8=fp8)
    else:
        kernel = paged_decode_kernel
        constants |= _constants(chosen, width, fp8=fp8)
        constants |= {"q_column_stride": 1, "pool_column_stride": 1, "out_column_stride": 1}
    return Variant(
        kernel=kernel,
        types=types | {"qk_scale": "fp32"},
        constants=constants,
        aligned=aligned,
        warps=chosen.warps,
    )


def join_variant(query_type: torch.dtype, *, width: int = 512, splits: int = 16) -> Variant:
    """The compilation of the joining kernel, likewise: of one token of 128 heads."""
    chosen = plan(1, 128, width, 512, splits, hopper=True, processors=132, shared_bytes=0)
    columns = chosen.join_columns(1, 128, 132)
    single = pointer_to(torch.float32)
    types = dict.fromkeys(("highest_ptr", "total_ptr", "mixed_ptr", "sink_ptr"), single)
    types |= {"indptr_ptr": pointer_to(torch.int32), "out_ptr": pointer_to(query_type)}
    constants = _join_constants(chosen, width, columns) | {"out_column_stride": 1}
    return Variant(join_splits_kernel, types, constants, frozenset(types), warps=_join_warps(columns))


def _constants(chosen: Plan, width: int, *, fp8: bool) -> dict[str, int]:
    """The switches of paged_decode_kernel, in its order."""
    return {
        "D": width,
        "BLOCK_H": chosen.block_h,
        "BLOCK_K": chosen.block_k,
        "COLUMNS": chosen.block_d // chosen.pieces,
        "HALVES": chosen.pieces,
        "HEAD_BLOCKS": chosen.head_blocks,
        "SPLITS": chosen.splits,
        "FP8": fp8,
    }


def _join_constants(chosen: Plan, width: int, columns: int) -> dict[str, int]:
    """The switches of join_splits_kernel, in its order."""
    return {
        "D": width,
        "BLOCK_K": chosen.block_k,
        "CHUNK": columns,
        "PADDED_HEADS": chosen.padded_heads,
        "SPLITS": chosen.splits,
    }


def _join_warps(columns: int) -> int:
    """Warps of a joining program: four columns a lane, as far as four warps go."""
    return max(1, min(4, columns // 128))


def _partials(
    chosen: Plan, tokens: int, width: int, device: torch.device
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Room for what each split leaves: highest score, sum and mixed rows, float32."""
    if chosen.splits == 1:
        return None, None, None
    rows = (tokens, chosen.splits, chosen.padded_heads)
    highest, total = torch.empty((2, *rows), dtype=torch.float32, device=device).unbind()
    return highest, total, torch.empty((*rows, width), dtype=torch.float32, device=device)


@lru_cache
def _processors(device: torch.device) -> tuple[int, bool]:
    """Multiprocessors of the device, and whether it is of the Hopper generation."""
    if device.type != "cuda":
        return 1, False
    properties = torch.cuda.get_device_properties(device)
    hopper = torch.version.hip is None and properties.major == 9
    return properties.multi_processor_count, hopper
