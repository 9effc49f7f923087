"""Sizes that layers with 4-bit codes share, and what Python refuses to read as one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from kernels.checking import Category, aside
from kernels.comfy_checkpoint.layer_check import MarkerCheck
from kernels.comfy_checkpoint.layers import Layer
from kernels.comfy_checkpoint.layouts import w4a4, w4a8
from kernels.comfy_checkpoint.markers import W4A4, W4A8
from kernels.comfy_checkpoint.repairs import Change
from kernels.comfy_checkpoint.signature import ASYMMETRIC, ComfyCall, example

GROUP = 16
"""Columns of a W4A8 group where the marker says nothing."""

ROTATION = 256
"""Columns of a rotation where the marker says nothing."""

W4A4_GROUP = 64
SMALLEST_GROUP = 4
CODES = 16

MARKED = {"format": W4A4, "convrot_groupsize": ROTATION}

NOT_ROTATED_SO = (
    "weights are rotated in the groups that the exporter chose: another number makes noise of them"
)


def group_of(layer: Layer) -> int | None:
    """Columns of a group: W4A8's scale group as the shapes of its scales tell it."""
    scale = layer.tensor("weight_s_rel")
    columns = layer.columns
    if scale is None or columns is None or len(scale.shape) != 2 or not scale.shape[1]:
        return None
    size = columns // scale.shape[1]
    return size if size >= SMALLEST_GROUP and size * scale.shape[1] == columns else None


class NumeralCheck(MarkerCheck):
    """A size of the marker that Python's int() refuses to read."""

    category: ClassVar[Category] = "type"
    pythons_own = True
    key: ClassVar[str]

    @classmethod
    def concerns(cls, layer: Layer, /) -> bool:
        return super().concerns(layer) and cls.key in layer.marker

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        told = group_of(layer) if cls.key == "group_size" else (layer.inferred or {}).get(cls.key)
        size = told or {"group_size": GROUP}.get(cls.key, ROTATION)
        safe = cls.key == "group_size" and told is not None
        title = f"Write {cls.key} of {layer.prefix!r} as {size}"
        yield Change(title, safe, "" if safe else NOT_ROTATED_SO, {}, {cls.key: size})


class NotNumeral(NumeralCheck):
    """A text that is no numeral."""

    raises = ValueError
    message = "invalid literal for int() with base 10: {value!r}"
    reason = "{member} of {prefix!r} is the text {value!r}; a whole number is needed"

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        value = layer.marker[cls.key]
        if isinstance(value, str) and layer.whole(cls.key, 0) is None:
            yield cls(value, cls.key, layer.prefix)  # type: ignore[call-arg]


class NotNumber(NumeralCheck):
    """null, a list or an object."""

    raises = TypeError
    message = "int() argument must be a string, a bytes-like object or a real number, not {type!r}"
    reason = "{member} of {prefix!r} is {value!r}; a whole number is needed, or no such member"

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        value = layer.marker[cls.key]
        if value is None or isinstance(value, (list, dict)):
            yield cls(type(value).__name__, cls.key, layer.prefix, value)  # type: ignore[call-arg]


@dataclass(frozen=True)
class GroupSizeNotNumeral(NotNumeral):
    """int() reads a text of digits, and no other."""

    requires = "group_size as a whole number"
    of = (W4A8,)
    key = "group_size"
    value: str
    member: str = aside()
    prefix: str = aside()

    @classmethod
    def example(cls) -> ComfyCall:
        return example({**ASYMMETRIC, "group_size": "auto"}, w4a8(8, 256))


@dataclass(frozen=True)
class GroupSizeNotNumber(NotNumber):
    """null is a value of its own to JSON, not the default."""

    requires = "group_size as a whole number"
    of = (W4A8,)
    key = "group_size"
    type_name: str
    member: str = aside()
    prefix: str = aside()
    value: Any = aside()

    @classmethod
    def example(cls) -> ComfyCall:
        return example({**ASYMMETRIC, "group_size": None}, w4a8(8, 256))


@dataclass(frozen=True)
class RotationNotNumeral(NotNumeral):
    """int() reads a text of digits, and no other."""

    requires = "convrot_groupsize as a whole number"
    of = (W4A4,)
    key = "convrot_groupsize"
    value: str
    member: str = aside()
    prefix: str = aside()

    @classmethod
    def example(cls) -> ComfyCall:
        return example({**MARKED, "convrot_groupsize": "auto"}, w4a4(8, 256))


@dataclass(frozen=True)
class RotationNotNumber(NotNumber):
    """null is a value of its own to JSON, not the default."""

    requires = "convrot_groupsize as a whole number"
    of = (W4A4,)
    key = "convrot_groupsize"
    type_name: str
    member: str = aside()
    prefix: str = aside()
    value: Any = aside()

    @classmethod
    def example(cls) -> ComfyCall:
        return example({**MARKED, "convrot_groupsize": None}, w4a4(8, 256))
