"""Repairs of a described file: its tensors and its layers' markers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from kernels.checkpoint import Header
from kernels.comfy_checkpoint.layers import Layer, tensors_of
from kernels.comfy_checkpoint.markers import ENDING, MXFP8, marker_header
from kernels.comfy_checkpoint.signature import ComfyCall

EXPORT = "the numbers themselves must come from the export; only the form is repaired here"


@dataclass(frozen=True)
class Change:
    """A repair of one layer: tensors by full name and fields of its marker; None removes."""

    title: str
    safe: bool
    note: str = ""
    tensors: Mapping[str, Header | None] = field(default_factory=dict)
    marker: Mapping[str, Any] | None = field(default_factory=dict)


NOTHING = Change("", True)


def applied(call: ComfyCall, changes: Iterable[tuple[str, Change]]) -> ComfyCall:
    """The call with changes made, each of the layer with this prefix."""
    tensors: dict[str, Header | None] = {}
    markers: dict[str, Mapping[str, Any] | None] = {}
    for prefix, change in changes:
        tensors |= change.tensors
        if change.marker is None or change.marker:
            markers[prefix] = change.marker
    return with_markers(call.with_tensors(tensors), markers)


def with_markers(call: ComfyCall, changes: Mapping[str, Mapping[str, Any] | None]) -> ComfyCall:
    """The call with these fields of layers' markers set wherever a layer's marker stands; None removes it."""
    declared = {prefix for declaration in call.declarations for prefix in declaration.layers}
    tensors: dict[str, Header | None] = {}
    for carrier in call.marker_tensors:
        if carrier.prefix not in changes:
            continue
        fields, held = changes[carrier.prefix], carrier.reading.value
        if fields is None:
            tensors[carrier.name] = None
        elif carrier.prefix not in declared or (isinstance(held, dict) and set(fields) & set(held)):
            tensors[carrier.name] = marker_header({**(held if isinstance(held, dict) else {}), **fields})
    changed = call.with_tensors(tensors)
    for declaration in call.declarations:
        layers = {
            prefix: {**marker, **(changes.get(prefix) or {})} if isinstance(marker, dict) else marker
            for prefix, marker in declaration.layers.items()
            if changes.get(prefix, {}) is not None
        }
        if layers != declaration.layers:
            value = {**declaration.reading.value, "layers": layers}
            changed = changed.with_declaration(declaration.index, value)
    return changed


def marked(call: ComfyCall, markers: Mapping[str, Mapping[str, Any]]) -> ComfyCall:
    """The call with markers for layers that have none: tensors where the file has such, else metadata."""
    if any(marker == {"format": MXFP8} for marker in markers.values()) and not call.is_mxfp8:
        call = call.with_format(MXFP8)
        markers = {prefix: marker for prefix, marker in markers.items() if marker != {"format": MXFP8}}
    if call.marker_tensors:
        return call.with_tensors(
            {prefix + ENDING: marker_header(marker) for prefix, marker in markers.items()}
        )
    if not markers:
        return call
    readable = (each for each in call.declarations if isinstance(each.reading.value, dict))
    declared = next(readable, None)
    if declared is None:
        return call.with_metadata({"layers": dict(markers)})
    return declared.with_value({**declared.reading.value, "layers": {**declared.layers, **markers}})


def inferred_markers(call: ComfyCall, prefixes: Iterable[str]) -> dict[str, dict[str, Any]] | None:
    """The markers that the layers' own tensors speak for; None where one of them fits no format."""
    found = {prefix: tensors_of(call, prefix).inferred for prefix in prefixes}
    return (
        {prefix: marker for prefix, marker in found.items() if marker is not None}
        if all(marker is not None for marker in found.values())
        else None
    )


def is_certain(marker: Mapping[str, Any]) -> bool:
    """Whether the tensors alone tell the format; whether weights were rotated they do not."""
    return "convrot" not in marker


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Two dimensions of the same elements, by leaving out sizes of 1; None where that does not do."""
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    while len(shape) > 2 and shape[-1] == 1:
        shape = shape[:-1]
    return shape if len(shape) == 2 else None


def as_matrix(layer: Layer, suffix: str = "weight") -> Change | None:
    """Give a tensor two dimensions: by sizes of 1 in front or behind, else flattened behind the first."""
    header = layer.held(suffix)
    shape, name = header.shape, layer.name(suffix)
    target = squeezed(shape)
    if target is not None:
        return Change(
            f"Reshape {name!r} from {list(shape)} to {list(target)}",
            True,
            tensors={name: reshaped(header, target)},
        )
    if len(shape) < 2:
        return None
    flat = (shape[0], prod(shape[1:]))
    note = "a convolution's weight has no such path: keep the layer out of the quantization"
    return Change(f"Flatten {name!r} to {list(flat)}", False, note, {name: reshaped(header, flat)})


def reshaped(header: Header, shape: tuple[int, ...]) -> Header:
    """The same elements, in row-major order, with another shape; values of another count are left open."""
    return Header(header.dtype, shape, header.values if prod(shape) == header.numel else None)


def to_shape(layer: Layer, suffix: str, shape: tuple[int, ...], dtype: str = "") -> Change:
    """Give a tensor this shape and type: safe where elements stay, in the same type or a wider one.

    NOTHING where it has them already.
    """
    header, name = layer.held(suffix), layer.name(suffix)
    dtype = dtype or header.dtype
    same = prod(shape) == header.numel
    widened = dtype in ("F32", header.dtype) and header.dtype in ("F32", "F16", "BF16", dtype)
    titles = []
    if header.dtype != dtype:
        titles.append(f"convert {name!r} from {header.dtype} to {dtype}")
    if header.shape != shape:
        how = "reshape {} from {} to {}" if same else "replace {} of shape {} by one of {}"
        titles.append(how.format(repr(name), list(header.shape), list(shape)))
    if not titles:
        return NOTHING
    title = " and ".join(titles)
    changed = Header(dtype, shape, header.values if same else None)
    return Change(
        title[0].upper() + title[1:], same and widened, "" if same and widened else EXPORT, {name: changed}
    )
