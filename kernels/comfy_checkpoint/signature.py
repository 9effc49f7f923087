"""The call of comfy_checkpoint: a described file, its markers and layers, and a valid one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kernels.call import Call, argument
from kernels.checkpoint import Checkpoint, Header, NameMapper
from kernels.comfy_checkpoint.layers import Layer, MarkerTensor, tensors_of
from kernels.comfy_checkpoint.markers import (
    ENDING,
    FP8,
    GLOBAL_KEY,
    INT8,
    METADATA_KEY,
    MXFP8,
    NVFP4,
    W4A4,
    W4A8,
    Reading,
    fitted,
    marker_bytes,
    marker_header,
    read_json,
)
from kernels.dtypes import DType, Kind
from kernels.rendering import literal
from kernels.spec import TensorSpec

FUNCTION = "inspect_comfy_quant_markers"
WEIGHT = ".weight"
LOOKS_QUANTIZED = ("F8_E4M3", "I8", "U8")

HANDLERS = {
    (INT8,): "convrot_int8",
    (W4A8,): "kitchen_w4a8",
    (W4A8, INT8): "kitchen_w4a8",
    (W4A4,): "kitchen_w4a4",
    (W4A4, INT8): "kitchen_w4a4",
    (FP8,): "comfy_fp8",
    (NVFP4,): "comfy_nvfp4",
    (INT8, NVFP4): "comfy_nvfp4",
    (MXFP8,): "mxfp8",
}
"""Sorted formats of a file's layers → the method that upstream loads it with."""


@dataclass(frozen=True)
class ComfyCall(Call):
    """Arguments of an inspection and of loading one layer. A layer has N output rows and K input columns."""

    checkpoint: Checkpoint = argument(
        "a safetensors file: its string metadata, and dtype and shape of each tensor; what a .comfy_quant "
        "tensor "
        'holds is {"kind": "text", "text": "{…}"}'
    )
    name_mapper: NameMapper | None = argument(
        "layer prefix in the file → prefix in the model; identity if None", default=None
    )
    x: TensorSpec | None = argument(
        "activation [.., K] for one of the layers, or row numbers for an embedding table", default=None
    )
    layer: str | None = argument(
        "prefix in the file of the layer that takes x; the first of K columns if None", default=None
    )
    capability: float | None = argument(
        "compute capability of the GPU that loads it, such as 10.0; the target's if None", default=None
    )
    backend: str = argument(
        "what SGLANG_DIFFUSION_CONVROT_INT8_BACKEND says: auto, comfy_kitchen or jit", default="auto"
    )
    tp_size: int = argument("ranks that share the K columns of each layer", default=1)
    partitions: int = argument("linears that are fused into one, such as 3 for qkv", default=1)
    path: str = argument("the file's name, as messages print it", default="checkpoint.safetensors")

    @cached_property
    def declared(self) -> Reading | None:
        """The header's metadata on quantization, decoded; None where there is none."""
        text = self.checkpoint.metadata.get(METADATA_KEY)
        return None if text is None else read_json(text)

    @property
    def declared_layers(self) -> dict[str, Any]:
        """Layer prefix → marker, any JSON value, of the metadata; empty where it has no layers."""
        value = self.declared.value if self.declared else None
        layers = value.get("layers") if isinstance(value, dict) else None
        return layers if isinstance(layers, dict) else {}

    @cached_property
    def quantized(self) -> tuple[str, ...]:
        """Prefixes of weights whose type says that they are quantized, in the file's order."""
        return tuple(
            name.removesuffix(WEIGHT)
            for name, header in self.checkpoint.tensors.items()
            if name.endswith(WEIGHT) and header.dtype in LOOKS_QUANTIZED
        )

    @property
    def is_mxfp8(self) -> bool:
        """Whether the file as a whole is declared MXFP8."""
        return self.checkpoint.metadata.get(GLOBAL_KEY, "").lower() == MXFP8

    @cached_property
    def _merged(self) -> tuple[dict[str, dict[str, Any]], tuple[MarkerTensor, ...]]:
        """Markers by prefix in upstream's order, and the tensors that carry some; the first of two values
        stays.
        """
        markers = {
            prefix: dict(marker)
            for prefix, marker in self.declared_layers.items()
            if isinstance(marker, dict)
        }
        carriers = []
        for name, header in self.checkpoint.tensors.items():
            if not name.endswith(ENDING):
                continue
            prefix = name.removesuffix(ENDING)
            data = marker_bytes(header)
            told = tensors_of(self, prefix).inferred if data is None else None
            held = data if told is None else fitted(told, header.numel)
            reading = Reading(None) if held is None else read_json(held)
            before = markers.get(prefix, {})
            found = reading.value if isinstance(reading.value, dict) else {}
            conflicts = tuple(key for key, value in found.items() if key in before and before[key] != value)
            carriers.append(MarkerTensor(self, name, prefix, header, data, reading, before, conflicts))
            if isinstance(reading.value, dict):
                markers[prefix] = {**found, **before}
        if self.is_mxfp8:
            for prefix in self.quantized:
                markers.setdefault(prefix, {"format": MXFP8})
        return markers, tuple(carriers)

    @property
    def marker_tensors(self) -> tuple[MarkerTensor, ...]:
        """The tensors that carry markers, in the file's order."""
        return self._merged[1]

    @property
    def unmarked(self) -> list[str]:
        """Prefixes of quantized weights that no marker speaks of, sorted."""
        marked = set(self._merged[0]) | {carrier.prefix for carrier in self.marker_tensors}
        return sorted(set(self.quantized) - marked)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The marked layers in upstream's order; a marker that cannot be read makes none."""
        first: dict[str, str] = {}
        found = []
        for prefix, marker in self._merged[0].items():
            mapped = self.mapped(prefix)
            found.append(Layer(self, prefix, marker, mapped, first.get(mapped)))
            first.setdefault(mapped, prefix)
        return tuple(found)

    @cached_property
    def formats(self) -> tuple[str, ...]:
        """The layers' distinct formats as text, sorted."""
        return tuple(sorted({str(layer.marker.get("format")) for layer in self.layers}))

    @property
    def handler(self) -> str | None:
        """The method that upstream loads the file with; None where it has none, or nothing is quantized."""
        return HANDLERS.get(self.formats)

    @cached_property
    def mxfp8_layers(self) -> tuple[Layer, ...]:
        """The weights that the global declaration is about, in the file's order."""
        return tuple(tensors_of(self, prefix) for prefix in self.quantized) if self.is_mxfp8 else ()

    @cached_property
    def operand(self) -> Layer | None:
        """The layer that takes x: the named one, else the first whose K is x's last size."""
        if self.x is None:
            return None
        if self.layer is not None:
            return next((layer for layer in self.layers if layer.prefix == self.layer), None)
        if self.looks_up:
            return next((layer for layer in self.layers if layer.is_embedding), None)
        if self.x.ndim == 0:
            return None
        width = self.x.shape[-1]
        return next((layer for layer in self.layers if layer.columns == width), None)

    @property
    def looks_up(self) -> bool:
        """Whether x holds row numbers, so that its layer is an embedding table."""
        return self.x is not None and self.x.dtype.kind is Kind.INT

    @property
    def compute_capability(self) -> int | None:
        """Ten times the capability, as upstream compares it: the one stated, else the target's; None where
        neither is known or what is stated is no number.
        """
        value = self.capability
        if value is None and self.target is not None:
            return self.target.capability
        return round(value * 10) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def mapped(self, prefix: str) -> str:
        """A layer's prefix in the model."""
        return prefix if self.name_mapper is None else self.name_mapper(prefix)

    def with_checkpoint(self, checkpoint: Checkpoint) -> ComfyCall:
        """The same call on another file."""
        return self.replace(checkpoint=checkpoint)

    def with_metadata(self, value: Any) -> ComfyCall:
        """The same file with another declaration in its metadata."""
        text = value if isinstance(value, str) else json.dumps(value)
        return self.with_checkpoint(self.checkpoint.with_metadata(METADATA_KEY, text))

    def to_call(self, function: str) -> str:
        """Upstream's call on a list of paths; its mapper is a function, and it takes no activation."""
        if self.name_mapper is None:
            return f"{function}([checkpoint])"
        pairs = ", ".join(f"{literal(old)}: {literal(new)}" for old, new in self.name_mapper.items())
        return f"{function}([checkpoint], lambda prefix: {{{pairs}}}.get(prefix, prefix))"

    def __getstate__(self) -> dict[str, Any]:
        """The arguments alone; decoded JSON can be nested deeper than pickle follows."""
        return self.facts()


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


PREFIX = "transformer_blocks.0.attn.to_q"
ROTATED = {"format": INT8, "convrot": True, "convrot_groupsize": 256}
ASYMMETRIC = {"format": W4A8, "convrot": True, "convrot_groupsize": 256, "group_size": 16}

VALID = ComfyCall(
    checkpoint=file({PREFIX: ({"format": NVFP4, "full_precision_matrix_mult": True}, nvfp4(128, 64))}),
    name_mapper=NameMapper({PREFIX: f"model.{PREFIX}"}),
    x=TensorSpec((1, 64), DType.BF16),
)


def example(marker: Mapping[str, Any], tensors: Mapping[str, Header], **arguments: Any) -> ComfyCall:
    """A call on a file of one layer, without an activation."""
    return ComfyCall(file({PREFIX: (marker, tensors)}), **arguments)


def fit(given: Mapping[str, Any]) -> ComfyCall:
    """Complete a user's arguments: a file of the layers that the mapper lists, as wide as the activation."""
    arguments = dict(given)
    if "checkpoint" not in arguments:
        x = arguments.get("x")
        width = x.shape[-1] if x is not None and x.ndim and x.shape[-1] % 64 == 0 else 64
        names = arguments.get("name_mapper") or [arguments.get("layer") or PREFIX]
        marker = {"format": NVFP4, "full_precision_matrix_mult": True}
        arguments["checkpoint"] = file({str(name): (marker, nvfp4(128, max(width, 64))) for name in names})
    return ComfyCall(**arguments)
