"""What the tensors of a described file hold where the description leaves it open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import sqrt

from kernels.checkpoint import Header
from kernels.comfy_checkpoint.layers import Layer
from kernels.comfy_checkpoint.markers import ENDING, FP8, INT8, MXFP8, NVFP4, W4A4, W4A8, fitted
from kernels.comfy_checkpoint.signature import ComfyCall
from kernels.values import Full, Listed, Ones, Randint, Randn, Text, Values, Zeros

CODE_DEVIATION = {INT8: 73.3, FP8: 1.0, NVFP4: 2.73, W4A4: 4.6, W4A8: 4.6, MXFP8: 1.0}
"""Standard deviation of the codes that a run draws, by format; W4A8's as levels before its scales."""

CODEBOOK = tuple((2 * code - 15) / 16 for code in range(16))
"""Sixteen evenly spaced levels, where a file has a codebook without values."""

BYTE_CODES = Randint(-128, 128)
"""Every byte, which is every pair of 4-bit codes."""


def fill(call: ComfyCall) -> Mapping[str, Values]:
    """Normal activations or the first rows; for the file, the codes of weights."""
    values: dict[str, Values] = {"checkpoint": Randint(-127, 128)}
    if call.x is not None:
        operand = call.operand
        rows = (operand.rows if operand is not None else None) or 1
        values["x"] = Randint(0, rows) if call.looks_up else Randn()
    return values


def contents(call: ComfyCall, codes: Randint) -> Iterator[tuple[str, Header, Values]]:
    """(name, header, what it holds) of every tensor in the file: its described values, else by its role.

    Scales make outputs of about one for normal activations, whatever K is. A marker that is left open is
    written as the layer's tensors tell it.
    """
    roles = {
        layer.name(suffix): (layer, suffix)
        for layer in call.layers
        for suffix in SUFFIXES
        if layer.has(suffix)
    }
    for place, (name, header) in enumerate(call.headers.items()):
        layer, suffix = roles.get(name, (None, ""))
        if header.values is not None:
            yield name, header, header.values
        elif name.endswith(ENDING):
            yield name, header, _marker(call, name)
        elif layer is None:
            yield name, header, Zeros()
        else:
            yield name, header, _held(layer, suffix, header, (codes.seed or 0) + place)


SUFFIXES = (
    "weight",
    "weight_scale",
    "weight_scale_2",
    "weight_s_rel",
    "weight_s_channel",
    "weight_codebook",
    "weight_correction",
    "pre_quant_scale",
    "input_scale",
)


def _marker(call: ComfyCall, name: str) -> Values:
    carrier = next(carrier for carrier in call.marker_tensors if carrier.name == name)
    return Text(fitted(carrier.reading.value or {}, carrier.header.numel).decode())


def _held(layer: Layer, suffix: str, header: Header, seed: int) -> Values:
    """Codes are drawn; scales are powers of two about what makes weights 1/sqrt(K)."""
    step = 1 / (CODE_DEVIATION.get(str(layer.format), 1.0) * sqrt(max(layer.columns or 1, 1)))
    match suffix:
        case "weight" if header.dtype == "F8_E4M3":
            return Randn(seed=seed)
        case "weight" if layer.format == INT8:
            return Randint(-127, 128, seed=seed)
        case "weight":
            return Randint(0, 256, seed=seed) if header.dtype == "U8" else Randint(-128, 128, seed=seed)
        case "weight_scale" if layer.format == NVFP4:
            return Listed((1.0, 2.0, 0.5, 1.5))
        case "weight_scale" if layer.format == MXFP8:
            return Full(124)
        case "weight_scale_2" | "weight_scale" | "weight_s_channel":
            return Listed((step, 2 * step, step / 2))
        case "weight_s_rel":
            return Listed((8.0, 4.0, 2.0)) if not layer.has("weight_codebook") else Listed((96.0, 64.0))
        case "weight_codebook":
            return Listed(CODEBOOK)
        case "weight_correction":
            return Zeros()
        case _:
            return Ones()
