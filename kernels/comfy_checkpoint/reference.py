"""Each format's arithmetic in plain torch: weights, rotations, the layer. N rows, K columns."""

from __future__ import annotations

from collections.abc import Mapping
from math import log2, sqrt
from typing import Any

import torch
from torch import Tensor

from kernels.comfy_checkpoint.layers import Layer
from kernels.comfy_checkpoint.markers import FP8, INT8, W4A4, W4A8
from kernels.comfy_checkpoint.signature import ComfyCall
from kernels.comfy_checkpoint.w4_checks import GROUP, ROTATION

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the codes 0 to 7; 8 to 15 are their negatives."""

NVFP4_BLOCK, MXFP8_BLOCK = 16, 32
TILE_ROWS, TILE_BLOCKS = 128, 4
LIMIT = 127
"""Largest magnitude of an INT8 code; -128 is never written."""

E4M3_LIMIT, E2M1_LIMIT = 448.0, 6.0
INT4_LIMIT = 7


def mapped_markers(call: ComfyCall) -> dict[str, dict[str, Any]]:
    """Prefix in the model → marker of a file that passes every check, as upstream's inspection returns it."""
    return {layer.mapped: layer.private for layer in call.layers}


def unpacked(packed: Tensor, *, high_first: bool) -> Tensor:
    """Codes 0 to 15 [N, K] uint8 of bytes [N, K/2]; `high_first`: the high nibble is the even column."""
    data = packed.view(torch.uint8)
    high, low = data >> 4, data & 15
    first, second = (high, low) if high_first else (low, high)
    return torch.stack((first, second), dim=-1).flatten(-2)


def packed(codes: Tensor, *, high_first: bool) -> Tensor:
    """Bytes [N, K/2] uint8 of codes 0 to 15 [N, K]."""
    even, odd = codes[..., ::2].to(torch.uint8), codes[..., 1::2].to(torch.uint8)
    high, low = (even, odd) if high_first else (odd, even)
    return high << 4 | low


def swizzled_places(rows: int, blocks: int) -> Tensor:
    """Where the scale of (row, block) stands in tiles of 128 rows and 4 blocks; [N, B] int64."""
    wide = -(-blocks // TILE_BLOCKS)
    n = torch.arange(rows)[:, None]
    b = torch.arange(blocks)[None, :]
    tile = (n // TILE_ROWS) * wide + b // TILE_BLOCKS
    return tile * 512 + (n % 32) * 16 + (n % TILE_ROWS) // 32 * 4 + b % TILE_BLOCKS


def unswizzled(scales: Tensor, rows: int, blocks: int) -> Tensor:
    """Scales [N, B] in row-major order of scales stored in tiles; what a shape has no room for reads as 0."""
    places = swizzled_places(rows, blocks).to(scales.device)
    data = scales.contiguous().view(torch.uint8).flatten()
    room = torch.zeros(int(places.max()) + 1 if places.numel() else 0, dtype=torch.uint8, device=data.device)
    kept = min(room.numel(), data.numel())
    room[:kept] = data[:kept]
    return room[places].view(scales.dtype)


def swizzled(scales: Tensor) -> Tensor:
    """Scales [N, B] as the exporter stores them: in tiles, padded with zeros to whole ones."""
    rows, blocks = scales.shape
    shape = -(-rows // TILE_ROWS) * TILE_ROWS, -(-blocks // TILE_BLOCKS) * TILE_BLOCKS
    stored = torch.zeros(shape[0] * shape[1], dtype=torch.uint8)
    stored[swizzled_places(rows, blocks)] = scales.contiguous().view(torch.uint8)
    return stored.view(scales.dtype).view(shape)


def nvfp4_weight(codes: Tensor, scales: Tensor, scale: Tensor) -> Tensor:
    """[N, K] float32 of bytes [N, K/2], block scales E4M3 [N, K/16] stored in tiles, and one float32."""
    table = torch.tensor([*E2M1, *(-value for value in E2M1)], device=codes.device)
    values = table[unpacked(codes, high_first=True).long()]
    rows, columns = values.shape
    blocks = unswizzled(scales, rows, columns // NVFP4_BLOCK).float() * scale.reshape(())
    return values * blocks.repeat_interleave(NVFP4_BLOCK, dim=1)


def quantized_nvfp4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(bytes, block scales in tiles, one scale) of a float32 weight, as the exporter makes them."""
    rows, columns = weight.shape
    one = weight.abs().amax() / (E4M3_LIMIT * E2M1_LIMIT)
    blocks = weight.view(rows, columns // NVFP4_BLOCK, NVFP4_BLOCK)
    scales = (blocks.abs().amax(-1) / E2M1_LIMIT / one).clamp(max=E4M3_LIMIT).to(torch.float8_e4m3fn)
    step = (scales.float() * one)[..., None]
    scaled = torch.where(step > 0, blocks / step, torch.zeros_like(blocks)).clamp(-E2M1_LIMIT, E2M1_LIMIT)
    table = torch.tensor(E2M1)
    codes = (scaled.abs()[..., None] - table).abs().argmin(-1) + 8 * (scaled < 0)
    return packed(codes.view(rows, columns), high_first=True), swizzled(scales), one


def fp8_weight(codes: Tensor, scale: Tensor) -> Tensor:
    """[N, K] float32 of E4M3 numbers and one scale, the first element."""
    return codes.float() * scale.flatten()[0].float()


def mxfp8_weight(codes: Tensor, exponents: Tensor) -> Tensor:
    """[N, K] float32 of E4M3 numbers and an exponent byte for 32 columns, stored in tiles; 255 is NaN."""
    rows, columns = codes.shape
    scales = unswizzled(exponents, rows, columns // MXFP8_BLOCK).view(torch.float8_e8m0fnu).float()
    return codes.float() * scales.repeat_interleave(MXFP8_BLOCK, dim=1)


def hadamard(size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The regular Hadamard matrix of 4, 16, 64 or 256, scaled to be orthogonal: symmetric, rows sum to 1."""
    four = torch.tensor([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]], dtype=dtype)
    matrix = torch.ones(1, 1, dtype=dtype)
    for _ in range(round(log2(size) / 2)):
        matrix = torch.kron(matrix, four)
    return matrix / sqrt(size)


def rotated(x: Tensor, size: int) -> Tensor:
    """x [.., K] with each group of `size` columns turned by the Hadamard matrix, in float32."""
    groups = x.float().reshape(*x.shape[:-1], -1, size)
    return (groups @ hadamard(size).to(x.device)).reshape(x.shape)


def quantized_rows(x: Tensor, limit: int = LIMIT) -> tuple[Tensor, Tensor]:
    """(codes [.., K] int8, scale [.., 1] float32) of float32 rows; halves are rounded to even."""
    scale = x.abs().amax(-1, keepdim=True) / limit
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return (x / scale).round().clamp(-limit, limit).to(torch.int8), scale


def int8_linear(x: Tensor, codes: Tensor, scale: Tensor, size: int) -> Tensor:
    """x · Wᵀ [.., N] in x's type as INT8 kernels compute it: x rotated, quantized row by row.

    codes [N, K] int8 of the rotated weight, scale [N, 1] float32, size columns of a rotation.
    """
    rows, row_scale = quantized_rows(rotated(x, size))
    sums = rows.double() @ codes.double().T  # exact up to 2⁵³, as int32 is up to K = 133,152
    return (row_scale * (scale.T * sums.float())).to(x.dtype)


def w4a8_weight(
    codes: Tensor,
    relative: Tensor,
    channel: Tensor,
    group: int,
    codebook: Tensor | None = None,
    correction: Tensor | None = None,
) -> Tensor:
    """The rotated weight [N, K] float32.

    codes [N, K/2] bytes, relative E4M3 [N, K/group], channel float32 [N], codebook float32 [16] in place of
    code - 8, correction float32 [K/group, N] added to each group of a row.
    """
    nibbles = unpacked(codes, high_first=False)
    levels = nibbles.float() - 8 if codebook is None else codebook[nibbles.long()]
    grouped = (levels * relative.float().repeat_interleave(group, dim=1)).round().clamp(-LIMIT, LIMIT)
    weight = grouped * channel[:, None]
    return weight if correction is None else weight + correction.T.repeat_interleave(group, dim=1)


def w4a4_weight(codes: Tensor, scale: Tensor) -> Tensor:
    """The rotated weight [N, K] float32 of bytes [N, K/2] holding signed nibbles, and scales float32 [N]."""
    nibbles = unpacked(codes, high_first=False).to(torch.int8)
    return torch.where(nibbles > INT4_LIMIT, nibbles - 16, nibbles).float() * scale[:, None]


def weight_of(layer: Layer, tensors: Mapping[str, Tensor]) -> Tensor:
    """A layer's weight [N, K] float32 as stored: rotated where the marker says so; tensors by suffix."""
    codes = tensors["weight"]
    match layer.format:
        case "nvfp4":
            return nvfp4_weight(codes, tensors["weight_scale"], tensors["weight_scale_2"])
        case "float8_e4m3fn":
            return fp8_weight(codes, tensors["weight_scale"])
        case "mxfp8":
            return mxfp8_weight(codes, tensors["weight_scale"])
        case "asym_w4a8_int8":
            group = layer.whole("group_size", GROUP) or GROUP
            optional = (tensors.get("weight_codebook"), tensors.get("weight_correction"))
            return w4a8_weight(codes, tensors["weight_s_rel"], tensors["weight_s_channel"], group, *optional)
        case "convrot_w4a4":
            return w4a4_weight(codes, tensors["weight_scale"])
        case _:
            return codes.float() * tensors["weight_scale"]


def rotation_of(layer: Layer) -> int | None:
    """Columns that the layer's rotations span; None where its weight is not rotated."""
    rotates = layer.format in (W4A8, W4A4) or (layer.format == INT8 and layer.is_rotated)
    return layer.whole("convrot_groupsize", ROTATION) if rotates else None


def output_float32(layer: Layer, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """x through the layer in float32; [.., N], or [.., K] rows of a table for row numbers x."""
    weight = weight_of(layer, tensors)
    if not x.dtype.is_floating_point:
        return torch.nn.functional.embedding(x.long(), weight)
    entering = x.float()
    if "pre_quant_scale" in tensors:
        entering = entering * tensors["pre_quant_scale"].float()
    size = rotation_of(layer)
    return (entering if size is None else rotated(entering, size)) @ weight.T


def output(layer: Layer, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """x through the layer with weights unpacked to x's type and a linear in it; activations stay unquantized.

    That is upstream's order for full-precision NVFP4 and FP8 layers. The integer kernels' own rounding of
    activations is in `int8_linear`.
    """
    if not x.dtype.is_floating_point:
        return looked_up(tensors["weight"], tensors["weight_scale"], x)
    if layer.format == FP8:
        weight = tensors["weight"].to(x.dtype) * tensors["weight_scale"].flatten()[0].to(x.dtype)
    else:
        weight = weight_of(layer, tensors).to(x.dtype)
    if "pre_quant_scale" in tensors:
        x = x * tensors["pre_quant_scale"].to(x.dtype)
    size = rotation_of(layer)
    return torch.nn.functional.linear(x if size is None else rotated(x, size).to(x.dtype), weight)


def looked_up(codes: Tensor, scale: Tensor, rows: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Rows [.., K] of an INT8 table: one scale multiplies in float32, a row's in the output's type."""
    found = codes[rows.long()]
    if scale.ndim == 0:
        return (found.float() * scale).to(dtype)
    return found.to(dtype) * scale[rows.long()].to(dtype)
