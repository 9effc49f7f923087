"""What the inspection refuses of the markers in the header's metadata."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from kernels.checking import Category, Check, Fix, aside
from kernels.comfy_checkpoint.layers import tensors_of
from kernels.comfy_checkpoint.markers import (
    INSPECTED,
    METADATA_KEY,
    NVFP4,
    recovered,
)
from kernels.comfy_checkpoint.repairs import (
    inferred_markers,
    is_certain,
    marked,
)
from kernels.comfy_checkpoint.signature import PREFIX, VALID, ComfyCall
from kernels.comfy_checkpoint.sites import at
from kernels.wording import count, json_kind, short

OWN = "what the exporter wrote is the better source, where it is at hand"


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


HEADER_CHECKS = (MetadataInvalid, MetadataNotObject, MetadataWithoutLayers, MetadataEntryNotObject)
