"""The inspection's result and the qint8 linear in plain Python and torch. N output rows, K input columns."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quanto_int8_checkpoint.signature import QuantoCall


def mapped_prefixes(call: QuantoCall) -> frozenset[str] | None:
    """Prefixes in the model of a file that passes every check; None for a file that is not Quanto."""
    return frozenset(layer.mapped for layer in call.layers) if call.is_quanto else None


def linear(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · (codes · scale)ᵀ + bias as upstream computes it: weight unpacked in x's type, then a linear in it.

    x      [.., K] bfloat16, float16 or float32
    codes  [N, K] int8, exact in each of these
    scale  [N, 1]; rounded to x's type first
    bias   [N] or None
    Returns [.., N] in x's type. In float16 a scale above 515 makes inf: 127 · scale exceeds 65504.
    """
    weight = codes.to(x.dtype)
    weight.mul_(scale.to(x.dtype))
    return torch.nn.functional.linear(x, weight, None if bias is None else bias.to(x.dtype))


def linear_float32(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same product in float32, from which `linear` differs by its roundings alone; [.., N] float32."""
    y = x.float() @ (codes.float() * scale.float()).T
    return y if bias is None else y + bias.float()
