"""MXFP8 in plain torch: 32 elements share a power of two, whose byte lies interleaved beside the pool."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.per_token_group_quant.reference import ceil_exponent, ue8m0_to_float

HEAD = 128  # width of a head
BLOCK = 32  # elements that share one scale byte
BLOCKS = HEAD // BLOCK
FP8_MAX = 448.0  # largest finite float8_e4m3fn
AMAX_FLOOR = 1e-30  # makes the byte of an all-zero block 19
LARGEST_BYTE = 254  # 255 is E8M0's NaN


def quantize(values: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scale bytes of whole heads: [T, heads · 128] → float8_e4m3fn like it, uint8 [T, heads, 4].

    A block's scale is the smallest power of two ≥ amax / 448. NaN elements do not count, and become -448.
    """
    tokens, width = values.shape
    blocks = values.float().view(tokens, width // HEAD, BLOCKS, BLOCK)
    is_nan = blocks.isnan()
    amax = torch.where(is_nan, 0.0, blocks.abs()).amax(-1).clamp_min(AMAX_FLOOR)
    exponent = ceil_exponent(amax / FP8_MAX).clamp_max(LARGEST_BYTE).to(torch.uint8)
    scaled = blocks / ue8m0_to_float(exponent).unsqueeze(-1)
    # Saturation is explicit: torch's own cast above 448 gives NaN in some releases.
    saturated = torch.where(is_nan, -FP8_MAX, scaled.clamp(-FP8_MAX, FP8_MAX))
    return saturated.to(torch.float8_e4m3fn).view(tokens, width), exponent


def scale_index(slots: Tensor, page_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where each pool slot's scales lie in a [pages, H, 32, page_size / 32, 4] buffer: page, row and column.

    The buffer's second index is the head, its last the block: a matrix instruction reads 32 tokens by 4
    blocks at once.
    """
    place = slots % page_size
    return slots // page_size, place % BLOCK, place // BLOCK


def store_scales(buffer: Tensor, slots: Tensor, scales: Tensor, page_size: int) -> None:
    """Write the bytes of some slots, uint8 [n, H, 4], into the interleaved buffer."""
    page, row, column = (index.unsqueeze(-1) for index in scale_index(slots, page_size))
    head = torch.arange(scales.shape[1], device=slots.device)
    buffer.view(torch.uint8)[page, head, row, column] = scales
