"""What the inspection refuses of the markers in the header's metadata."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from kernels.checking import Category, Check, Fix, aside
from kernels.comfy_checkpoint.layers import Declaration, Entry, tensors_of
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


class MetadataCheck(Check[Declaration]):
    """A check of one file's `_quantization_metadata`."""

    raises = ValueError
    looks_at: ClassVar[tuple[str, ...]] = ("checkpoint.metadata",)
    category: ClassVar[Category] = "format"

    def describe_actual(self, declared: Declaration, /) -> str:
        return f"{METADATA_KEY} = {short(declared.text)}"

    def fixes(self, declared: Declaration, /) -> Iterator[Fix[ComfyCall]]:
        yield from rewritten(declared)


def rewritten(declared: Declaration) -> Iterator[Fix[ComfyCall]]:
    """Drop metadata that cannot be used where tensors carry the markers, else write what the tensors tell."""
    bare = declared.removed()
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
    def find(cls, declared: Declaration, /) -> Iterator[Self]:
        if declared.reading.fault:
            yield cls(declared.path, declared.reading.fault)

    def fixes(self, declared: Declaration, /) -> Iterator[Fix[ComfyCall]]:
        value = recovered(declared.text)
        if value is not None and isinstance(value.get("layers"), dict):
            yield Fix("Write the same metadata as JSON alone", declared.with_value(value), safe=True)
        yield from rewritten(declared)

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
    def find(cls, declared: Declaration, /) -> Iterator[Self]:
        if not isinstance(declared.reading.value, dict):
            yield cls(declared.path, json_kind(declared.reading.value))

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
    def find(cls, declared: Declaration, /) -> Iterator[Self]:
        value = declared.reading.value
        if not isinstance(value.get("layers"), dict):
            yield cls(declared.path, json_kind(value["layers"]) if "layers" in value else "absent")

    def fixes(self, declared: Declaration, /) -> Iterator[Fix[ComfyCall]]:
        value = declared.reading.value
        flat = {
            prefix: marker
            for prefix, marker in value.items()
            if isinstance(marker, dict) and "format" in marker
        }
        if flat:
            rest = {key: item for key, item in value.items() if key not in flat}
            yield Fix("Put the layers under layers", declared.with_value({**rest, "layers": flat}), safe=True)
        yield from rewritten(declared)

    @classmethod
    def example(cls) -> ComfyCall:
        return VALID.with_metadata({PREFIX: {"format": NVFP4}})


@dataclass(frozen=True)
class MetadataEntryNotObject(Check[Entry]):
    """A format alone is not enough for every layer: rotation and group size are members beside it."""

    raises = ValueError
    message = "Comfy quantization metadata for {prefix!r} must be an object"
    sites = at(150)
    reason = "the entry of {prefix!r} is {found}; it must be an object with a format"
    looks_at = ("checkpoint.metadata",)
    requires = "an object for each layer, such as format: nvfp4"
    category = "format"
    prefix: str
    found: str = aside()

    @classmethod
    def find(cls, entry: Entry, /) -> Iterator[Self]:
        if not isinstance(entry.marker, dict):
            yield cls(entry.prefix, json_kind(entry.marker))

    def describe_actual(self, entry: Entry, /) -> str:
        return f"{METADATA_KEY} = {short(entry.declaration.text)}"

    def fixes(self, entry: Entry, /) -> Iterator[Fix[ComfyCall]]:
        declared = entry.declaration
        wrong = (prefix for prefix, marker in declared.layers.items() if not isinstance(marker, dict))
        if entry.prefix != next(wrong):
            return  # the first violation's fix repairs them all
        repaired: dict[str, Any] = {}
        safe = True
        for prefix, marker in declared.layers.items():
            own = tensors_of(entry.call, prefix).inferred
            if isinstance(marker, dict):
                repaired[prefix] = marker
            elif isinstance(marker, str) and marker in INSPECTED:
                repaired[prefix] = {**(own or {}), "format": marker}
                safe = safe and own == {"format": marker}
            elif own is not None:
                repaired[prefix] = own
                safe = False
        changed = declared.with_value({**declared.reading.value, "layers": repaired})
        yield Fix("Write each entry as an object", changed, safe=safe, note="" if safe else OWN)

    @classmethod
    def example(cls) -> ComfyCall:
        return VALID.with_metadata({"layers": {PREFIX: NVFP4}})


DECLARATION_CHECKS = (MetadataInvalid, MetadataNotObject, MetadataWithoutLayers)
