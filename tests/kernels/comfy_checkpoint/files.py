"""Described files that the tests share: one layer P of each format, and changes of it."""

from __future__ import annotations

import json
from typing import Any

from kernels.checkpoint import Checkpoint, Header
from kernels.comfy_checkpoint.layouts import file as checkpoint
from kernels.comfy_checkpoint.signature import ComfyCall
from kernels.dtypes import DType
from kernels.spec import TensorSpec
from kernels.values import Listed

P = "blk.fc"
Tensors = dict[str, Header]

NVFP4: Tensors = {
    "weight": Header("U8", (128, 32)),
    "weight_scale": Header("F8_E4M3", (128, 4)),
    "weight_scale_2": Header("F32", ()),
}
INT8: Tensors = {"weight": Header("I8", (2, 256)), "weight_scale": Header("F32", (2, 1))}
W4A8: Tensors = {
    "weight": Header("I8", (2, 128)),
    "weight_s_rel": Header("F8_E4M3", (2, 16)),
    "weight_s_channel": Header("F32", (2,)),
}
W4A4: Tensors = {"weight": Header("I8", (2, 128)), "weight_scale": Header("F32", (2,))}
FP8: Tensors = {"weight": Header("F8_E4M3", (8, 64)), "weight_scale": Header("F32", ())}
MX: Tensors = {"weight": Header("F8_E4M3", (32, 64)), "weight_scale": Header("U8", (32, 2))}

ROTATED = {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 256}
ASYMMETRIC = {"format": "asym_w4a8_int8", "convrot": True}
FOUR = {"format": "convrot_w4a4"}
TABLE = {"format": "int8_tensorwise"}


def one(marker: dict[str, Any], tensors: Tensors, **changed: Header | None) -> ComfyCall:
    """A file of one layer, its marker a tensor; tensors replaced or (None) left out."""
    held = {suffix: header for suffix, header in {**tensors, **changed}.items() if header is not None}
    return ComfyCall(checkpoint({P: (marker, held)}))


def nv(**changed: Header | None) -> ComfyCall:
    return one({"format": "nvfp4"}, NVFP4, **changed)


def told(metadata: Any, tensors: Tensors = NVFP4, **more: str) -> ComfyCall:
    """A file without marker tensors, its metadata as given."""
    text = metadata if isinstance(metadata, str) else json.dumps(metadata)
    return ComfyCall(
        Checkpoint(
            {"_quantization_metadata": text, **more},
            {f"{P}.{name}": header for name, header in tensors.items()},
        )
    )


def mx(**changed: Header | None) -> ComfyCall:
    held = {suffix: header for suffix, header in {**MX, **changed}.items() if header is not None}
    tensors = {f"a.{suffix}": header for suffix, header in held.items()}
    return ComfyCall(Checkpoint({"quant_format": "mxfp8"}, tensors))


def raw(data: bytes) -> ComfyCall:
    """An NVFP4 layer with these bytes as its marker."""
    marker = Header("U8", (len(data),), Listed(tuple(data)))
    return nv().with_checkpoint(nv().checkpoint.with_tensor(f"{P}.comfy_quant", marker))


def two(first: tuple[dict[str, Any], Tensors], second: tuple[dict[str, Any], Tensors]) -> ComfyCall:
    return ComfyCall(checkpoint({P: first, "blk.other": second}))


X64 = TensorSpec((1, 64), DType.BF16)
