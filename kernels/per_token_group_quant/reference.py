"""Group-wise 8-bit quantisation in plain torch: what the kernel must write, byte for byte, on any device.

Symbols: T rows, E experts, P rows an expert, H output width, G = H / group_size groups a row.
Numbers follow the CUDA kernel of sglang's `per_token_group_quant`; README.md here draws the layouts.
"""

from __future__ import annotations

import torch
from torch import Tensor

FP8_MAX = 448.0  # largest finite float8_e4m3fn
AMAX_FLOOR = 1e-10  # keeps the scale of an all-zero group positive
GROUPS_A_WORD = 4  # UE8M0 exponent bytes in one int32 word

# The GPU's approximate division returns 0 for divisors above this.
DIVISOR_LIMIT = 2.0**126

E8M0_NAN = 255
FP32_MANTISSA_BITS = 23
FP32_MANTISSA_MASK = (1 << FP32_MANTISSA_BITS) - 1


def quantize(
    input: Tensor,  # noqa: A002 (upstream's name)
    output_q: Tensor,
    output_s: Tensor,
    group_size: int,
    *,
    scale_ue8m0: bool = False,
    fuse_silu_and_mul: bool = False,
    masked_m: Tensor | None = None,
    silu_and_mul_mode: str = "legacy",
    num_valid_rows: int | None = None,
    keep_bf16_nan: bool = False,
) -> None:
    """Write the codes and scales of every valid row, and nothing else.

    input      [T, K·H] or, with masked_m, [E, P, K·H]; bfloat16, float16 or float32; K = 2 with
               fuse_silu_and_mul, else 1
    output_q   [T, H] or [E, P, H]; float8_e4m3fn or int8; rows may be strided
    output_s   float32 […, G], or with scale_ue8m0 int32 […, ceil(G/4)]; row- or column-major by its strides
    masked_m   [E] int32 or int64, of which the low 32 bits count: rows from masked_m[e] on keep their bytes.
               Values outside 0…P, which overrun memory upstream, are taken as the nearer of the two
    silu_and_mul_mode   "legacy" or "dense", as in `silu_and_mul`
    num_valid_rows   rows from this one on keep their bytes (flat input only)
    keep_bf16_nan    sglang 0.5.23 keeps NaN products of bfloat16 input as 0x7F; before, they became +448
    """
    values = silu_and_mul(input, silu_and_mul_mode) if fuse_silu_and_mul else input
    groups = output_q.shape[-1] // group_size
    y = _in_groups(values, groups, group_size)

    magnitude = y.float().abs()
    amax = torch.where(magnitude.isnan(), 0.0, magnitude).amax(-1).clamp_min(AMAX_FLOOR)
    largest = 127.0 if output_q.dtype is torch.int8 else FP8_MAX
    scale = amax * _float32(1.0 / largest)

    if scale_ue8m0:
        exponent = ceil_exponent(scale)
        product = _times_power_of_two(y, 127 - exponent)
        stored = pack_ue8m0(exponent)
    else:
        # A tensor numerator: torch takes number / tensor as reciprocal and product, which rounds twice.
        quotient = torch.full_like(amax, largest) / amax
        # Above the limit the approximate quotient is 0, and so is every code.
        multiplier = torch.where(amax > DIVISOR_LIMIT, 0.0, quotient)
        product = y.float() * multiplier.unsqueeze(-1)
        stored = scale

    if output_q.dtype is torch.int8:
        codes = _encode_int8(product)
    else:
        codes = _encode_e4m3(product, keep_nan=keep_bf16_nan and input.dtype is torch.bfloat16)

    written = _written_rows(output_q.shape[:-1], masked_m, num_valid_rows, output_q.device)
    _write(output_q.view(torch.uint8), codes.flatten(-2), written)
    _write(output_s, stored, written)


def silu_and_mul(input: Tensor, mode: str = "legacy") -> Tensor:  # noqa: A002
    """silu(first half) · second half, in the input's element type: […, 2H] → […, H].

    "legacy" rounds SiLU to the element type before it multiplies, and rounds the product again; "dense"
    rounds the fp32 product once.
    """
    gate, up = input.float().chunk(2, dim=-1)
    denominator = 1.0 + torch.exp(-gate)
    silu = gate * torch.where(denominator > DIVISOR_LIMIT, 0.0, 1.0 / denominator)
    if mode == "legacy":
        silu = silu.to(input.dtype).float()
    return (silu * up).to(input.dtype)


def ceil_exponent(scale: Tensor) -> Tensor:
    """Biased exponent of the smallest power of two ≥ a positive fp32 scale: int32; 255 for infinity."""
    bits = scale.view(torch.int32)
    return ((bits >> FP32_MANTISSA_BITS) & 0xFF) + ((bits & FP32_MANTISSA_MASK) != 0).to(torch.int32)


def pack_ue8m0(exponent: Tensor) -> Tensor:
    """Four exponent bytes a word, lowest first: int32 […, G] → int32 […, ceil(G/4)], unused bytes 0."""
    groups = exponent.shape[-1]
    padded = torch.nn.functional.pad(exponent, (0, -groups % GROUPS_A_WORD))
    return padded.to(torch.uint8).contiguous().view(torch.int32)


def unpack_ue8m0(output_s: Tensor, groups: int) -> Tensor:
    """The exponent byte of each group: int32 […, ceil(G/4)], any strides → uint8 […, G]."""
    # A copy even of dense words: dimensions of size 1 may carry any stride, which view() refuses.
    dense = output_s.clone(memory_format=torch.contiguous_format)
    return dense.view(torch.uint8)[..., :groups]


def ue8m0_to_float(exponent: Tensor) -> Tensor:
    """2^(byte - 127) as float32 for uint8 bytes; 255 is E8M0's NaN."""
    bits = exponent.to(torch.int32) << FP32_MANTISSA_BITS
    bits = torch.where(exponent == 0, 1 << (FP32_MANTISSA_BITS - 1), bits)  # 2^-127 is subnormal in float32
    return torch.where(exponent == E8M0_NAN, torch.nan, bits.view(torch.float32))


def dequantize(output_q: Tensor, output_s: Tensor, group_size: int) -> Tensor:
    """code · scale as float32: […, H] from output_q and either kind of output_s."""
    groups = output_q.shape[-1] // group_size
    scale = output_s if output_s.is_floating_point() else ue8m0_to_float(unpack_ue8m0(output_s, groups))
    return (_in_groups(output_q.float(), groups, group_size) * scale.unsqueeze(-1)).flatten(-2)


def _in_groups(values: Tensor, groups: int, group_size: int) -> Tensor:
    """[…, H] as [… , G, group_size], without a copy."""
    return values.view(*values.shape[:-1], groups, group_size)


def _float32(value: float) -> float:
    """`value` rounded to float32."""
    return torch.tensor(value, dtype=torch.float32).item()


def _times_power_of_two(y: Tensor, exponent: Tensor) -> Tensor:
    """y · 2^exponent per group, in y's element type as the GPU computes it, returned as float32.

    The GPU builds the multiplier from exponent bits, so the exponent of an infinite group, -128, gives -inf;
    and float16 overflows to inf from 2^16 on, which turns zeros into NaN.
    """
    bits = (exponent + 127) << FP32_MANTISSA_BITS
    multiplier = bits.view(torch.float32).to(y.dtype).float()
    return (y.float() * multiplier.unsqueeze(-1)).to(y.dtype).float()


def _encode_e4m3(product: Tensor, *, keep_nan: bool) -> Tensor:
    """uint8 codes: to nearest even, saturated at ±448; NaN becomes +448 (0x7E), or 0x7F with keep_nan."""
    # Saturation is explicit: torch's own cast above 448 gives NaN in some releases.
    of_nan = torch.nan if keep_nan else FP8_MAX  # this NaN is positive; a product's may be either
    saturated = torch.where(product.isnan(), of_nan, product.clamp(-FP8_MAX, FP8_MAX))
    return saturated.to(torch.float8_e4m3fn).view(torch.uint8)


def _encode_int8(product: Tensor) -> Tensor:
    """Clamp, then truncate toward zero; NaN becomes -128. uint8 view of the int8 codes."""
    finite = torch.where(product.isnan(), -128.0, product)
    return finite.clamp(-128.0, 127.0).trunc().to(torch.int8).view(torch.uint8)


def _written_rows(
    shape: torch.Size, masked_m: Tensor | None, num_valid_rows: int | None, device: torch.device
) -> Tensor | None:
    """Which rows are written: bool [T] or [E, P], or None for all of them."""
    if masked_m is not None:
        row = torch.arange(shape[-1], device=device)
        return row < masked_m.to(torch.int32).unsqueeze(-1)
    if num_valid_rows is not None:
        return torch.arange(shape[-1], device=device) < num_valid_rows
    return None


def _write(target: Tensor, source: Tensor, rows: Tensor | None) -> None:
    """Store the chosen rows; the bytes between strided rows and in all others stay."""
    if rows is None:
        target.copy_(source)
    else:
        target[rows] = source[rows]
