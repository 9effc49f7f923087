"""What the inspection refuses of a tensor that carries a marker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from kernels.checking import Category, Check, Fix, aside
from kernels.checkpoint import Header
from kernels.comfy_checkpoint.layers import Entry, MarkerTensor, tensors_of
from kernels.comfy_checkpoint.markers import (
    ENDING,
    MXFP8,
    marker_header,
    recovered,
)
from kernels.comfy_checkpoint.metadata_checks import OWN
from kernels.comfy_checkpoint.repairs import (
    is_certain,
    with_markers,
)
from kernels.comfy_checkpoint.signature import PREFIX, VALID, ComfyCall
from kernels.comfy_checkpoint.sites import at
from kernels.values import Text
from kernels.wording import json_kind, short


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
        yield Fix(
            f"Remove {name!r}",
            call.with_tensors({name: None}),
            safe=True,
            note="the metadata has a marker of the layer",
        )
    own = tensors_of(call, carrier.prefix).inferred
    if own is not None and own != {"format": MXFP8}:
        changed = call.with_tensors({name: marker_header(own)})
        yield Fix(f"Write the marker {name!r} anew", changed, is_certain(own), OWN)


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
    "F4": "Float4_e2m1fn_x2",
    "F8_E4M3": "Float8_e4m3fn",
    "F8_E4M3FNUZ": "Float8_e4m3fnuz",
    "F8_E5M2": "Float8_e5m2",
    "F8_E5M2FNUZ": "Float8_e5m2fnuz",
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
            yield cls(carrier.name, carrier.path, carrier.reading.fault)

    def fixes(self, carrier: MarkerTensor, /) -> Iterator[Fix[ComfyCall]]:
        value = recovered(carrier.data or b"")
        if value is not None:
            file = carrier.call.with_tensors({carrier.name: marker_header(value)})
            yield Fix(f"Write {self.key!r} as JSON alone", file, safe=True)
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
class MarkersConflict(Check[Entry | MarkerTensor]):
    """Header and tensor may each say a part of a marker, and so may shards; where two say something, it has
    to be the same.
    """

    raises = ValueError
    message = "Conflicting Comfy quantization markers for {prefix!r}"
    sites = at(112, "_merge_comfy_quant_marker")
    reason = "{keys} of {prefix!r} is {told} in {earlier} and {held} in {later}"
    looks_at = ("checkpoint.metadata", "checkpoint.tensors")
    requires = "the same value wherever a layer's marker says something twice"
    category = "format"
    prefix: str
    keys: str = aside()
    told: str = aside()
    held: str = aside()
    earlier: str = aside()
    later: str = aside()

    @classmethod
    def find(cls, part: Entry | MarkerTensor, /) -> Iterator[Self]:
        if part.conflicts:
            told, held = (
                ", ".join(repr(marker[key]) for key in part.conflicts)
                for marker in (part.before, marker_of(part))
            )
            yield cls(part.prefix, ", ".join(part.conflicts), told, held, *places(part))

    def describe_actual(self, part: Entry | MarkerTensor, /) -> str:
        return (
            f"{self.keys} of {self.prefix!r} is {self.told} in {self.earlier} and {self.held} in {self.later}"
        )

    def fixes(self, part: Entry | MarkerTensor, /) -> Iterator[Fix[ComfyCall]]:
        call, keys = part.call, part.conflicts
        own = tensors_of(call, part.prefix).inferred or {}
        held = {key: marker_of(part)[key] for key in keys}
        told = {key: part.before[key] for key in keys}
        ways = [(self.later, held), (self.earlier, told)]
        if own.get("format") == told.get("format", "") != held.get("format", ""):
            ways.reverse()
        for place, value in ways:
            yield Fix(
                f"Say what {place} says of {part.prefix!r}, in both",
                with_markers(call, {part.prefix: value}),
                safe=keys == ("format",) and own.get("format") == value["format"],
                note="one of them is wrong; what the exporter meant decides",
            )

    @classmethod
    def example(cls) -> ComfyCall:
        return VALID.with_metadata({"layers": {PREFIX: {"format": "int8_tensorwise"}}})


def marker_of(part: Entry | MarkerTensor) -> Any:
    """What a part says of its layer."""
    return part.marker if isinstance(part, Entry) else part.reading.value


def places(part: Entry | MarkerTensor) -> tuple[str, str]:
    """Where the marker stands that was read first, and where the other one does."""
    if part.call.others is None:
        return "the metadata", "the marker tensor"
    path = part.declaration.path if isinstance(part, Entry) else part.path
    return (
        "what was read before",
        f"the {'metadata' if isinstance(part, Entry) else 'marker tensor'} of {path!r}",
    )


MARKER_TENSOR_CHECKS = (MarkerTypeUnreadable, MarkerInvalid, MarkerNotObject, MarkersConflict)
