"""What upstream's inspection refuses before it looks at any layer: in the metadata, in marker tensors,
unmarked weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from kernels.checking import Category, Check, Fix, aside
from kernels.checkpoint import Checkpoint, Header
from kernels.comfy_checkpoint.layer_check import LayerCheck
from kernels.comfy_checkpoint.layers import Layer, MarkerTensor, tensors_of
from kernels.comfy_checkpoint.markers import (
    ENDING,
    GLOBAL_KEY,
    INSPECTED,
    METADATA_KEY,
    MXFP8,
    NVFP4,
    marker_header,
    recovered,
)
from kernels.comfy_checkpoint.repairs import (
    EXPORT,
    Change,
    applied,
    inferred_markers,
    is_certain,
    marked,
    to_shape,
    with_markers,
)
from kernels.comfy_checkpoint.signature import PREFIX, VALID, ComfyCall
from kernels.comfy_checkpoint.sites import at
from kernels.values import Text
from kernels.wording import Listing, count, json_kind, short

OWN = "what the exporter wrote is the better source, where it is at hand"
ROTATION = "tensors do not tell whether weights were rotated, nor how wide; check it against the export"
SHOWN = 5
MX_GROUP = 32


class MetadataCheck(Check[ComfyCall]):
    """A check of the header's `_quantization_metadata`."""

    raises = ValueError
    looks_at: ClassVar[tuple[str, ...]] = ("checkpoint.metadata",)
    category: ClassVar[Category] = "format"

    def describe_actual(self, call: ComfyCall, /) -> str:
        text = call.checkpoint.metadata.get(METADATA_KEY)
        return f"{METADATA_KEY} = {'absent' if text is None else short(text)}"

    def fixes(self, call: ComfyCall, /) -> Iterator[Fix[ComfyCall]]:
        yield from rewritten(call)


def rewritten(call: ComfyCall) -> Iterator[Fix[ComfyCall]]:
    """Drop metadata that cannot be used where tensors carry the markers, else write what the tensors tell."""
    bare = call.with_checkpoint(call.checkpoint.without_metadata(METADATA_KEY))
    missing = bare.unmarked
    if not missing:
        yield Fix(f"Remove {METADATA_KEY}", bare, safe=True, note="each layer has a marker tensor of its own")
        return
    markers = inferred_markers(bare, missing)
    if markers:
        yield Fix(
            f"Write {METADATA_KEY} anew for {count(markers, 'layer')}",
            marked(bare, markers),
            safe=all(map(is_certain, markers.values())),
            note=OWN,
        )


@dataclass(frozen=True)
class MetadataInvalid(MetadataCheck):
    """Metadata values are plain text, so markers travel in one as JSON; text that is none says nothing."""

    message = "Invalid _quantization_metadata in {path}"
    sites = at(136)
    reason = "_quantization_metadata {fault}"
    requires = "_quantization_metadata as JSON text"
    path: str
    fault: str = aside()

    @classmethod
    def find(cls, call: ComfyCall, /) -> Iterator[Self]:
        if call.declared is not None and call.declared.fault:
            yield cls(call.path, call.declared.fault)

    def fixes(self, call: ComfyCall, /) -> Iterator[Fix[ComfyCall]]:
        value = recovered(call.checkpoint.metadata[METADATA_KEY])
        if value is not None and isinstance(value.get("layers"), dict):
            yield Fix("Write the same metadata as JSON alone", call.with_metadata(value), safe=True)
        yield from rewritten(call)

    @classmethod
    def example(cls) -> ComfyCall:
        return VALID.with_metadata("{'layers': {}}")


@dataclass(frozen=True)
class MetadataNotObject(MetadataCheck):
    """Beside the layers stand a version and whatever else; a list has no place for them."""

    message = "_quantization_metadata in {path} must contain an object"
    sites = at(140)
    reason = "_quantization_metadata is {found}; it must be an object with layers"
    requires = "_quantization_metadata as an object"
    premises = (MetadataInvalid,)
    path: str
    found: str = aside()

    @classmethod
    def find(cls, call: ComfyCall, /) -> Iterator[Self]:
        if call.declared is not None and not isinstance(call.declared.value, dict):
            yield cls(call.path, json_kind(call.declared.value))

    @classmethod
    def example(cls) -> ComfyCall:
        return VALID.with_metadata([PREFIX])


@dataclass(frozen=True)
class MetadataWithoutLayers(MetadataCheck):
    """Markers are looked for under `layers` alone; without that member all of them would be overlooked."""

    message = "_quantization_metadata in {path} must contain a layers object"
    sites = at(145)
    reason = "layers of _quantization_metadata is {found}; it must be an object, prefix by prefix"
    requires = "a member layers that is an object"
    premises = (MetadataInvalid, MetadataNotObject)
    path: str
    found: str = aside()

    @classmethod
    def find(cls, call: ComfyCall, /) -> Iterator[Self]:
        if call.declared is not None and not isinstance(call.declared.value.get("layers"), dict):
            value = call.declared.value
            yield cls(call.path, json_kind(value["layers"]) if "layers" in value else "absent")

    def fixes(self, call: ComfyCall, /) -> Iterator[Fix[ComfyCall]]:
        assert call.declared is not None
        flat = {
            prefix: marker
            for prefix, marker in call.declared.value.items()
            if isinstance(marker, dict) and "format" in marker
        }
        if flat:
            rest = {key: item for key, item in call.declared.value.items() if key not in flat}
            yield Fix("Put the layers under layers", call.with_metadata({**rest, "layers": flat}), safe=True)
        yield from rewritten(call)

    @classmethod
    def example(cls) -> ComfyCall:
        return VALID.with_metadata({PREFIX: {"format": NVFP4}})


@dataclass(frozen=True)
class MetadataEntryNotObject(MetadataCheck):
    """A format alone is not enough for every layer: rotation and group size are members beside it."""

    message = "Comfy quantization metadata for {prefix!r} must be an object"
    sites = at(150)
    reason = "the entry of {prefix!r} is {found}; it must be an object with a format"
    requires = "an object for each layer, such as format: nvfp4"
    premises = (MetadataInvalid, MetadataNotObject, MetadataWithoutLayers)
    prefix: str
    found: str = aside()

    @classmethod
    def find(cls, call: ComfyCall, /) -> Iterator[Self]:
        for prefix, marker in call.declared_layers.items():
            if not isinstance(marker, dict):
                yield cls(prefix, json_kind(marker))

    def fixes(self, call: ComfyCall, /) -> Iterator[Fix[ComfyCall]]:
        if self != next(type(self).find(call)):
            return  # the first violation's fix repairs them all
        assert call.declared is not None
        repaired: dict[str, Any] = {}
        safe = True
        for prefix, marker in call.declared_layers.items():
            own = tensors_of(call, prefix).inferred
            if isinstance(marker, dict):
                repaired[prefix] = marker
            elif isinstance(marker, str) and marker in INSPECTED:
                repaired[prefix] = {**(own or {}), "format": marker}
                safe = safe and own == {"format": marker}
            elif own is not None:
                repaired[prefix] = own
                safe = False
        value = {**call.declared.value, "layers": repaired}
        yield Fix(
            "Write each entry as an object", call.with_metadata(value), safe=safe, note="" if safe else OWN
        )

    @classmethod
    def example(cls) -> ComfyCall:
        return VALID.with_metadata({"layers": {PREFIX: NVFP4}})


class MarkerTensorCheck(Check[MarkerTensor]):
    """A check of one tensor that carries a marker."""

    raises: ClassVar[type[Exception]] = ValueError
    looks_at: ClassVar[tuple[str, ...]] = ("checkpoint.tensors",)
    category: ClassVar[Category] = "format"

    def describe_actual(self, carrier: MarkerTensor, /) -> str:
        held = "" if carrier.data is None else f" holding {short(carrier.data.decode('utf-8', 'replace'))}"
        return f"{carrier.name!r} {carrier.header}{held}"

    def fixes(self, carrier: MarkerTensor, /) -> Iterator[Fix[ComfyCall]]:
        yield from remarked(carrier)


def remarked(carrier: MarkerTensor) -> Iterator[Fix[ComfyCall]]:
    """Write the marker that the layer's tensors tell, or drop the tensor where the metadata has one."""
    call, name = carrier.call, carrier.name
    if carrier.before:
        bare = call.with_checkpoint(call.checkpoint.without_tensors(name))
        yield Fix(f"Remove {name!r}", bare, safe=True, note="the metadata has a marker of the layer")
    own = tensors_of(call, carrier.prefix).inferred
    if own is not None and own != {"format": MXFP8}:
        changed = call.checkpoint.with_tensor(name, marker_header(own))
        yield Fix(f"Write the marker {name!r} anew", call.with_checkpoint(changed), is_certain(own), OWN)


@dataclass(frozen=True)
class MarkerTypeUnreadable(MarkerTensorCheck):
    """A marker's bytes are taken by way of numpy, which has no such element type."""

    raises = TypeError
    pythons_own = True
    message = "Got unsupported ScalarType {dtype}"
    reason = "the marker {name!r} is {found}; its bytes have to be U8"
    requires = "a marker of type U8"
    category = "dtype"
    dtype: str
    name: str = aside()
    found: Header = aside()

    @classmethod
    def find(cls, carrier: MarkerTensor, /) -> Iterator[Self]:
        if carrier.header.dtype in UNREADABLE:
            yield cls(UNREADABLE[carrier.header.dtype], carrier.name, carrier.header)

    @classmethod
    def example(cls) -> ComfyCall:
        name = PREFIX + ENDING
        return VALID.with_checkpoint(VALID.checkpoint.with_tensor(name, Header("BF16", (20,))))


UNREADABLE = {
    "BF16": "BFloat16",
    "F8_E4M3": "Float8_e4m3fn",
    "F8_E5M2": "Float8_e5m2",
    "F8_E8M0": "Float8_e8m0fnu",
}
"""Types that torch does not hand to numpy, as its message names them."""


@dataclass(frozen=True)
class MarkerInvalid(MarkerTensorCheck):
    """The tensor's bytes are the marker's JSON and nothing else: no length before it, no NUL behind it."""

    message = "Invalid Comfy quantization marker {key!r} in {path}"
    sites = at(171)
    reason = "the marker {key!r} {fault}"
    requires = "the bytes of a JSON object in UTF-8, without a NUL at the end"
    key: str
    path: str
    fault: str = aside()

    @classmethod
    def find(cls, carrier: MarkerTensor, /) -> Iterator[Self]:
        if carrier.reading.fault:
            yield cls(carrier.name, carrier.call.path, carrier.reading.fault)

    def fixes(self, carrier: MarkerTensor, /) -> Iterator[Fix[ComfyCall]]:
        value = recovered(carrier.data or b"")
        if value is not None:
            file = carrier.call.checkpoint.with_tensor(carrier.name, marker_header(value))
            yield Fix(f"Write {self.key!r} as JSON alone", carrier.call.with_checkpoint(file), safe=True)
        yield from remarked(carrier)

    @classmethod
    def example(cls) -> ComfyCall:
        padded = Header("U8", (32,), Text('{"format":"nvfp4"}'))
        return VALID.with_checkpoint(VALID.checkpoint.with_tensor(PREFIX + ENDING, padded))


@dataclass(frozen=True)
class MarkerNotObject(MarkerTensorCheck):
    """A marker has members; a text or a number in its place names none."""

    message = "Comfy quantization marker {key!r} must contain a JSON object"
    sites = at(175)
    reason = "the marker {key!r} is {found}; it must be an object with a format"
    requires = "the bytes of a JSON object"
    key: str
    found: str = aside()

    @classmethod
    def find(cls, carrier: MarkerTensor, /) -> Iterator[Self]:
        value = carrier.reading.value
        if carrier.data is not None and not carrier.reading.fault and not isinstance(value, dict):
            yield cls(carrier.name, json_kind(value))

    @classmethod
    def example(cls) -> ComfyCall:
        text = Header("U8", (7,), Text('"nvfp4"'))
        return VALID.with_checkpoint(VALID.checkpoint.with_tensor(PREFIX + ENDING, text))


@dataclass(frozen=True)
class MarkersConflict(MarkerTensorCheck):
    """Header and tensor may each say a part of a marker; where both say something, it has to be the same."""

    message = "Conflicting Comfy quantization markers for {prefix!r}"
    sites = at(112, "_merge_comfy_quant_marker")
    reason = "{keys} of {prefix!r} is {told} in the metadata and {held} in the marker tensor"
    looks_at = ("checkpoint.metadata", "checkpoint.tensors")
    requires = "the same value wherever a layer's marker says something twice"
    prefix: str
    keys: str = aside()
    told: str = aside()
    held: str = aside()

    @classmethod
    def find(cls, carrier: MarkerTensor, /) -> Iterator[Self]:
        if carrier.conflicts:
            told, held = (
                ", ".join(repr(marker[key]) for key in carrier.conflicts)
                for marker in (carrier.before, carrier.reading.value)
            )
            yield cls(carrier.prefix, ", ".join(carrier.conflicts), told, held)

    def fixes(self, carrier: MarkerTensor, /) -> Iterator[Fix[ComfyCall]]:
        call, keys = carrier.call, carrier.conflicts
        own = tensors_of(call, carrier.prefix).inferred or {}
        held = {key: carrier.reading.value[key] for key in keys}
        told = {key: carrier.before[key] for key in keys}
        ways = [("marker tensor", held), ("metadata", told)]
        if own.get("format") == told.get("format", "") != held.get("format", ""):
            ways.reverse()
        for title, value in ways:
            yield Fix(
                f"Say what the {title} says of {carrier.prefix!r}, in both",
                with_markers(call, {carrier.prefix: value}),
                safe=keys == ("format",) and own.get("format") == value["format"],
                note="one of them is wrong; what the exporter meant decides",
            )

    @classmethod
    def example(cls) -> ComfyCall:
        return VALID.with_metadata({"layers": {PREFIX: {"format": "int8_tensorwise"}}})


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


HEADER_CHECKS = (MetadataInvalid, MetadataNotObject, MetadataWithoutLayers, MetadataEntryNotObject)
MARKER_TENSOR_CHECKS = (MarkerTypeUnreadable, MarkerInvalid, MarkerNotObject, MarkersConflict)
