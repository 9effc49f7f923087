"""Described files of layers, and the tensors of a layer of each format. N rows, K columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kernels.checkpoint import Checkpoint, Header
from kernels.comfy_checkpoint.markers import ENDING, marker_header


def file(
    layers: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Header]]],
    metadata: Mapping[str, str] | None = None,
) -> Checkpoint:
    """A file of layers, each (marker, its tensors by suffix); the markers are tensors too, first of each
    layer.
    """

    def tensors() -> Iterator[tuple[str, Header]]:
        for prefix, (marker, held) in layers.items():
            yield prefix + ENDING, marker_header(marker)
            for suffix, header in held.items():
                yield f"{prefix}.{suffix}", header

    return Checkpoint(metadata or {}, dict(tensors()))


def nvfp4(rows: int, columns: int) -> dict[str, Header]:
    """Tensors of an NVFP4 layer of N rows and K columns."""
    return {
        "weight": Header("U8", (rows, columns // 2)),
        "weight_scale": Header("F8_E4M3", (rows, columns // 16)),
        "weight_scale_2": Header("F32", ()),
    }


def int8(rows: int, columns: int) -> dict[str, Header]:
    """Tensors of an INT8 layer with one scale a row."""
    return {"weight": Header("I8", (rows, columns)), "weight_scale": Header("F32", (rows, 1))}


def w4a8(rows: int, columns: int, group: int = 16) -> dict[str, Header]:
    """Tensors of a W4A8 layer, without codebook and correction."""
    return {
        "weight": Header("I8", (rows, columns // 2)),
        "weight_s_rel": Header("F8_E4M3", (rows, columns // group)),
        "weight_s_channel": Header("F32", (rows,)),
    }


def w4a4(rows: int, columns: int) -> dict[str, Header]:
    """Tensors of a W4A4 layer."""
    return {"weight": Header("I8", (rows, columns // 2)), "weight_scale": Header("F32", (rows,))}


def fp8(rows: int, columns: int) -> dict[str, Header]:
    """Tensors of an FP8 layer with one scale."""
    return {"weight": Header("F8_E4M3", (rows, columns)), "weight_scale": Header("F32", ())}
