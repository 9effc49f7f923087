"""What the inspection refuses of weights without a marker: in a file of MXFP8, and in any other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from kernels.checking import Check, Fix, aside
from kernels.checkpoint import Checkpoint, Header
from kernels.comfy_checkpoint.layer_check import LayerCheck
from kernels.comfy_checkpoint.layers import Layer, tensors_of
from kernels.comfy_checkpoint.markers import (
    ENDING,
    GLOBAL_KEY,
    MXFP8,
    NVFP4,
)
from kernels.comfy_checkpoint.metadata_checks import (
    OWN,
    MetadataInvalid,
    MetadataNotObject,
    MetadataWithoutLayers,
)
from kernels.comfy_checkpoint.repairs import (
    EXPORT,
    Change,
    applied,
    inferred_markers,
    is_certain,
    marked,
    to_shape,
)
from kernels.comfy_checkpoint.signature import PREFIX, VALID, ComfyCall
from kernels.comfy_checkpoint.sites import at
from kernels.wording import Listing, count

ROTATION = "tensors do not tell whether weights were rotated, nor how wide; check it against the export"
SHOWN = 5
MX_GROUP = 32


@dataclass(frozen=True)
class Mxfp8Incompatible(LayerCheck):
    """A block of 32 columns shares one exponent byte; the file as a whole is declared, so every weight
    counts.
    """

    message = "MXFP8 layer {prefix!r} has incompatible weight/scale metadata: {weight_meta} and {scale_meta}"
    sites = at(192)
    reason = "{prefix!r} {why}"
    looks_at = ("checkpoint.metadata", "checkpoint.tensors")
    requires = "weight F8_E4M3 [N, K] with K a multiple of 32, weight_scale U8 [N, K/32]"
    prefix: str
    weight_meta: Any
    scale_meta: Any
    why: str = aside()

    @classmethod
    def concerns(cls, layer: Layer, /) -> bool:
        return True

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        weight, scale = layer.held("weight"), layer.tensor("weight_scale")
        why = _mxfp8_fault(weight, scale)
        if why:
            told = None if scale is None else (scale.dtype, scale.shape)
            yield cls(layer.prefix, (weight.dtype, weight.shape), told, why)

    def fixes(self, layer: Layer, /) -> Iterator[Fix[ComfyCall]]:
        failing = [other for other in layer.call.mxfp8_layers if any(type(self).find(other))]
        if layer.prefix != failing[0].prefix:
            return
        best = [(other.prefix, next(iter(self.repairs(other)), None)) for other in failing]
        known = [(prefix, change) for prefix, change in best if change is not None]
        if len(known) == len(failing):
            more = f", and so in {len(known) - 1} more layers" if len(known) > 1 else ""
            notes = dict.fromkeys(change.note for _, change in known if change.note)
            yield Fix(
                known[0][1].title + more,
                applied(layer.call, known),
                safe=all(change.safe for _, change in known),
                note="; ".join(notes),
            )

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        weight, scale = layer.held("weight"), layer.tensor("weight_scale")
        if weight.dtype != "F8_E4M3" or len(weight.shape) != 2 or weight.shape[1] % MX_GROUP:
            return
        rows, wide = weight.shape[0], weight.shape[1] // MX_GROUP
        name = layer.name("weight_scale")
        if scale is None:
            yield Change(f"Add {name!r} U8 {[rows, wide]}", False, EXPORT, {name: Header("U8", (rows, wide))})
        elif scale.dtype == "F8_E8M0" and scale.shape == (rows, wide):
            note = "the exponents are the same bytes"
            yield Change(f"Store {name!r} as U8", True, note, {name: scale.with_dtype("U8")})
        else:
            yield to_shape(layer, "weight_scale", (rows, wide), "U8")

    @classmethod
    def example(cls) -> ComfyCall:
        tensors = {
            f"{PREFIX}.weight": Header("F8_E4M3", (32, 64)),
            f"{PREFIX}.weight_scale": Header("F8_E8M0", (32, 2)),
        }
        return ComfyCall(Checkpoint({GLOBAL_KEY: MXFP8}, tensors))


def _mxfp8_fault(weight: Header, scale: Header | None) -> str:
    """What keeps a weight and its scale from being MXFP8, as the rest of a sentence."""
    if weight.dtype != "F8_E4M3" or len(weight.shape) != 2:
        return f"has a weight {weight}, not F8_E4M3 with two dimensions"
    if weight.shape[1] % MX_GROUP:
        return f"has {weight.shape[1]} columns, no multiple of {MX_GROUP}"
    wanted = Header("U8", (weight.shape[0], weight.shape[1] // MX_GROUP))
    if scale is None:
        return f"has no weight_scale; {wanted} is needed"
    return (
        ""
        if (scale.dtype, scale.shape) == (wanted.dtype, wanted.shape)
        else (f"has a weight_scale {scale}; {wanted} is needed")
    )


@dataclass(frozen=True)
class MarkersMissing(Check[ComfyCall]):
    """Bytes of F8_E4M3, I8 or U8 mean nothing without a format: packed or not, rotated or not, scaled by
    what.
    """

    raises = ValueError
    message = "Quantized weights are missing comfy_quant metadata: {sorted(missing_markers)[:5]}"
    sites = at(200)
    reason = "{number} no marker, in the metadata or as a tensor; {telling}"
    looks_at = ("checkpoint.metadata", "checkpoint.tensors")
    requires = "a marker for every .weight of type F8_E4M3, I8 or U8"
    category = "format"
    premises = (MetadataInvalid, MetadataNotObject, MetadataWithoutLayers)
    missing: Listing
    number: str = aside()
    telling: str = aside()

    @classmethod
    def find(cls, call: ComfyCall, /) -> Iterator[Self]:
        missing = call.unmarked
        if missing:
            number = f"{missing[0]!r} has" if len(missing) == 1 else f"{len(missing)} quantized weights have"
            yield cls(Listing(missing[:SHOWN]), number, telling(tensors_of(call, missing[0])))

    def describe_actual(self, call: ComfyCall, /) -> str:
        return "; ".join(
            tensors_of(call, prefix).describe("weight", "weight_scale", "weight_scale_2")
            for prefix in self.missing
        )

    def fixes(self, call: ComfyCall, /) -> Iterator[Fix[ComfyCall]]:
        markers = inferred_markers(call, call.unmarked)
        if markers:
            certain = all(map(is_certain, markers.values()))
            formats = sorted({str(marker["format"]) for marker in markers.values()})
            yield Fix(
                f"Mark {count(markers, 'layer')} as {' and '.join(formats)}",
                marked(call, markers),
                safe=certain,
                note=OWN if certain else ROTATION,
            )

    @classmethod
    def example(cls) -> ComfyCall:
        return VALID.with_checkpoint(VALID.checkpoint.without_tensors(PREFIX + ENDING))


def telling(layer: Layer) -> str:
    """What an unmarked layer's tensors say of themselves."""
    weight, own = layer.held("weight"), layer.inferred
    if own is None:
        return f"its weight is {weight}, and no format has the tensors beside it"
    if own["format"] != NVFP4:
        return f"its tensors are those of {own['format']}"
    stored = weight.shape[1]
    scale = layer.held("weight_scale").shape
    wide = f", {stored * 2}/16 = {scale[1]} block scales a row" if scale[-1:] == (stored // 8,) else ""
    return (
        f"its tensors are packed NVFP4: {stored} bytes a row hold K = {stored * 2} columns{wide}. A loader "
        "that "
        f"drops the scales multiplies by a weight of half the width, {weight.shape[0]}x{stored}"
    )
