"""One marked layer of a described file, and the tensors that carry markers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernels.checkpoint import Header
from kernels.comfy_checkpoint.markers import FP8, INT8, MXFP8, NVFP4, W4A4, W4A8, Reading

if TYPE_CHECKING:
    from kernels.comfy_checkpoint.signature import ComfyCall

PACKED = (NVFP4, W4A8, W4A4)
"""Formats with two columns in one byte."""

ROTATIONS = (256, 64, 16)
"""Columns that one Hadamard rotation spans, the customary one first."""


@dataclass(frozen=True)
class Declaration:
    """One file's metadata on quantization.

    index     the file's place among the call's files
    path      its name, as messages print it
    text      the metadata as the file holds it
    reading   the text as JSON
    """

    call: ComfyCall
    index: int
    path: str
    text: str
    reading: Reading

    @property
    def layers(self) -> dict[str, Any]:
        """Layer prefix → marker, any JSON value; empty where it has no layers."""
        return self.reading.value["layers"] if self.has_layers else {}

    @property
    def has_layers(self) -> bool:
        """Whether it is readable: an object with an object of layers, be it empty."""
        value = self.reading.value
        return isinstance(value, dict) and isinstance(value.get("layers"), dict)

    def with_value(self, value: Any) -> ComfyCall:
        """The call with another declaration in this file."""
        return self.call.with_declaration(self.index, value)

    def removed(self) -> ComfyCall:
        """The call without the declaration."""
        return self.call.with_declaration(self.index, None)


@dataclass(frozen=True)
class Entry:
    """What a declaration says of one layer.

    marker     any JSON value
    before     the layer's marker as merged from the files before
    conflicts  keys that it gives another value than `before` does
    """

    declaration: Declaration
    prefix: str
    marker: Any
    before: Mapping[str, Any]
    conflicts: tuple[str, ...]

    @property
    def call(self) -> ComfyCall:
        return self.declaration.call


def conflicts(before: Mapping[str, Any], marker: Any) -> tuple[str, ...]:
    """Keys that two markers of one layer give other values."""
    found = marker if isinstance(marker, dict) else {}
    return tuple(key for key, value in found.items() if key in before and before[key] != value)


@dataclass(frozen=True)
class MarkerTensor:
    """A tensor that carries a marker.

    path       the name of its file, as messages print it
    data       its bytes, None where the description leaves them open: the layer's own tensors then tell
    reading    the bytes as JSON
    before     the layer's marker as merged so far
    conflicts  keys that it gives another value than `before` does
    """

    call: ComfyCall
    name: str
    prefix: str
    path: str
    header: Header
    data: bytes | None
    reading: Reading
    before: Mapping[str, Any]
    conflicts: tuple[str, ...]


@dataclass(frozen=True)
class Layer:
    """A layer's marker, merged from all that speak of it, and the tensors under its prefix.

    mapped     the prefix in the model
    taken_by   the earlier layer with the same prefix in the model, None where there is none
    """

    call: ComfyCall
    prefix: str
    marker: Mapping[str, Any]
    mapped: str
    taken_by: str | None

    @property
    def format(self) -> Any:
        """The marker's format: any JSON value, None where it has none."""
        return self.marker.get("format")

    def name(self, suffix: str) -> str:
        """A tensor's full name."""
        return f"{self.prefix}.{suffix}"

    def tensor(self, suffix: str) -> Header | None:
        """A tensor of the layer, None where the file does not have it."""
        return self.call.headers.get(self.name(suffix))

    def has(self, *suffixes: str) -> bool:
        """Whether the file has all of these tensors."""
        return all(self.tensor(suffix) is not None for suffix in suffixes)

    def held(self, suffix: str) -> Header:
        """A tensor that a check has found to be there."""
        header = self.tensor(suffix)
        assert header is not None, suffix
        return header

    @property
    def matrix(self) -> Header | None:
        """The weight, where it is there and has two dimensions."""
        weight = self.tensor("weight")
        return weight if weight is not None and len(weight.shape) == 2 else None

    @property
    def rows(self) -> int | None:
        """N, None without a two-dimensional weight."""
        return None if self.matrix is None else self.matrix.shape[0]

    @property
    def columns(self) -> int | None:
        """K, None without a two-dimensional weight; a packed one holds two columns a byte."""
        if self.matrix is None:
            return None
        return self.matrix.shape[1] * (2 if self.format in PACKED else 1)

    def whole(self, key: str, default: int) -> int | None:
        """A whole number of the marker as int() reads it; None where int() cannot."""
        try:
            return int(self.marker.get(key, default))
        except (TypeError, ValueError, OverflowError):
            return None

    @property
    def is_rotated(self) -> bool:
        """Whether `convrot` counts as set."""
        return bool(self.marker.get("convrot", False))

    @property
    def is_embedding(self) -> bool:
        """Whether upstream takes it for an INT8 embedding table: not rotated, one scale or one a row."""
        return self.format == INT8 and not self.is_rotated

    @property
    def private(self) -> dict[str, Any]:
        """The marker as upstream goes on with it, its inspection's own fields added."""
        added: dict[str, Any] = {}
        if self.format == FP8:
            added = {"_activation_scheme": "static" if self.has("input_scale") else "dynamic"}
        elif self.format == W4A8:
            added = {
                "_has_codebook": self.has("weight_codebook"),
                "_has_correction": self.has("weight_correction"),
            }
        elif self.format == NVFP4:
            added = {"_has_pre_quant_scale": self.has("pre_quant_scale")}
        elif self.format == INT8:
            scale = self.tensor("weight_scale")
            added = {
                "_is_tensorwise_scalar" if scale is not None and scale.shape == () else "_is_rowwise": True
            }
        return {**self.marker, **added}

    def describe(self, *suffixes: str) -> str:
        """These tensors of the layer, with type and shape."""
        return ", ".join(f"{self.name(suffix)!r} {self.tensor(suffix) or 'absent'}" for suffix in suffixes)

    @property
    def inferred(self) -> dict[str, Any] | None:
        """The marker that the tensors under this prefix speak for; None where they fit no format."""
        weight, scale = self.tensor("weight"), self.tensor("weight_scale")
        if weight is None or len(weight.shape) != 2:
            return None
        rows, stored = weight.shape
        if weight.dtype == "U8" and scale is not None and scale.dtype == "F8_E4M3":
            return {"format": NVFP4}
        if weight.dtype == "F8_E4M3":
            return {"format": MXFP8 if scale is not None and scale.dtype == "U8" else FP8}
        if weight.dtype != "I8":
            return None
        group = self.tensor("weight_s_rel")
        if group is not None and self.has("weight_s_channel"):
            columns = stored * 2
            wide = group.shape[1] if len(group.shape) == 2 else 0
            size = columns // wide if wide and columns % wide == 0 else 16
            return {"format": W4A8, **rotation(columns), "group_size": size}
        if scale is None:
            return None
        if scale.shape == (rows,):
            return {"format": W4A4, **rotation(stored * 2)}
        if scale.shape == () or "embed" in self.prefix:
            return {"format": INT8}
        return {"format": INT8, **rotation(stored)}


def rotation(columns: int) -> dict[str, Any]:
    """A marker's fields for weights that are rotated in the widest groups that divide K."""
    return {
        "convrot": True,
        "convrot_groupsize": next((size for size in ROTATIONS if columns % size == 0), ROTATIONS[0]),
    }


def tensors_of(call: ComfyCall, prefix: str) -> Layer:
    """What the file has under a prefix, whatever its marker says."""
    return Layer(call, prefix, {}, prefix, None)
