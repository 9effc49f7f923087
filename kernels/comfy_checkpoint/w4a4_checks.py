"""What the inspection refuses in W4A4 layers: 4-bit codes with a scale for each row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernels.checkpoint import Header
from kernels.comfy_checkpoint.layer_check import LayerCheck
from kernels.comfy_checkpoint.layers import ROTATIONS, Layer
from kernels.comfy_checkpoint.layouts import w4a4
from kernels.comfy_checkpoint.markers import W4A4
from kernels.comfy_checkpoint.repairs import Change, as_matrix, to_shape
from kernels.comfy_checkpoint.signature import ComfyCall, example
from kernels.comfy_checkpoint.sites import at
from kernels.comfy_checkpoint.w4_checks import (
    MARKED,
    NOT_ROTATED_SO,
    ROTATION,
    W4A4_GROUP,
    RotationNotNumber,
    RotationNotNumeral,
)


class W4a4Check(LayerCheck):
    """A check of a W4A4 layer's tensors."""

    of = (W4A4,)
    needs = ("weight", "weight_scale")


@dataclass(frozen=True)
class W4a4Types(W4a4Check):
    """Two signed 4-bit codes share a byte, and a row's scale multiplies an int32 sum in float32."""

    message = (
        "Comfy W4A4 layer {prefix!r} needs I8 packed weights and F32 scales, got {weight_dtype} and "
        "{scale_dtype}"
    )
    sites = at(295)
    reason = "{prefix!r} has weights of type {weight} and scales of type {scale}; I8 and F32 are needed"
    requires = "weight I8, weight_scale F32"
    category = "dtype"
    prefix: str
    weight: str
    scale: str

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        weight, scale = layer.held("weight").dtype, layer.held("weight_scale").dtype
        if (weight, scale) != ("I8", "F32"):
            yield cls(layer.prefix, weight, scale)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        weight, scale, name = layer.held("weight"), layer.held("weight_scale"), layer.name("weight")
        scaled = to_shape(layer, "weight_scale", scale.shape, "F32") if scale.dtype != "F32" else None
        if weight.dtype == "I8" and scaled is not None:
            yield scaled
        elif weight.dtype == "U8":
            tensors = {name: Header("I8", weight.shape), **(scaled.tensors if scaled else {})}
            more = f"; {scaled.title[0].lower()}{scaled.title[1:]}" if scaled else ""
            yield Change(f"View {name!r} U8 as I8{more}", scaled is None or scaled.safe, "", tensors)

    @classmethod
    def example(cls) -> ComfyCall:
        return example(MARKED, {**w4a4(8, 256), "weight": Header("U8", (8, 128))})


@dataclass(frozen=True)
class W4a4Shapes(W4a4Check):
    """One scale a row, without a dimension beside the rows: unlike INT8's column."""

    message = (
        "Comfy W4A4 layer {prefix!r} has incompatible weight/scale shapes: {weight_shape} and {scale_shape}"
    )
    sites = at(300)
    reason = (
        "{prefix!r} has a weight of shape {weight} and scales of shape {scale}; [N, K/2] and [N] are needed"
    )
    requires = "weight [N, K/2], weight_scale [N]"
    category = "shape"
    prefix: str
    weight: tuple[int, ...]
    scale: tuple[int, ...]

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        weight, scale = layer.held("weight").shape, layer.held("weight_scale").shape
        if len(weight) != 2 or scale != (weight[0],):
            yield cls(layer.prefix, weight, scale)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        if layer.matrix is not None:
            yield to_shape(layer, "weight_scale", (layer.rows or 0,))
            return
        change = as_matrix(layer)
        if change is not None:
            yield change

    @classmethod
    def example(cls) -> ComfyCall:
        return example(MARKED, {**w4a4(8, 256), "weight_scale": Header("F32", (8, 1))})


class W4a4MatrixCheck(LayerCheck):
    """A check that K and the rotation's size are needed for."""

    of = (W4A4,)
    looks_at = ("checkpoint.metadata", "checkpoint.tensors")

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        columns = layer.columns or 0
        size = next((size for size in ROTATIONS if columns % size == 0), None)
        if size is not None and columns % W4A4_GROUP == 0:
            title = f"Write convrot_groupsize of {layer.prefix!r} as {size}"
            yield Change(title, False, NOT_ROTATED_SO, {}, {"convrot_groupsize": size})

    def describe_actual(self, layer: Layer, /) -> str:
        size = layer.marker.get("convrot_groupsize", ROTATION)
        return f"{layer.describe('weight')}, convrot_groupsize = {size!r}"


@dataclass(frozen=True)
class W4a4Rotation(W4a4MatrixCheck):
    """A rotation is a Hadamard matrix of a size that the kernels have."""

    message = "Comfy W4A4 layer {prefix!r} has unsupported convrot_groupsize={convrot_group_size}"
    sites = at(307)
    reason = "convrot_groupsize of {prefix!r} is {size}; it must be 16, 64 or 256"
    requires = "convrot_groupsize 16, 64 or 256"
    category = "values"
    needs = ()
    prefix: str
    size: int

    @classmethod
    def evaluable(cls, layer: Layer, /) -> bool:
        return not cls.concerns(layer) or layer.whole("convrot_groupsize", ROTATION) is not None

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        size = layer.whole("convrot_groupsize", ROTATION)
        if size is not None and size not in ROTATIONS:
            yield cls(layer.prefix, size)

    @classmethod
    def example(cls) -> ComfyCall:
        return example({**MARKED, "convrot_groupsize": 128}, w4a4(8, 256))


@dataclass(frozen=True)
class W4a4InputSize(W4a4MatrixCheck):
    """Rows are cut into whole rotations, and multiplied in whole groups of 64 columns."""

    message = (
        "Comfy W4A4 layer {prefix!r} has input size {logical_input_size}, incompatible with "
        "quant_group_size=64 and convrot_groupsize={convrot_group_size}"
    )
    sites = at(312)
    reason = "{prefix!r} has K = {columns} columns, no multiple of both 64 and its convrot_groupsize {size}"
    requires = "K, twice the weight's width, a multiple of 64 and of convrot_groupsize"
    category = "divisibility"
    prefix: str
    columns: int
    size: int

    @classmethod
    def evaluable(cls, layer: Layer, /) -> bool:
        if not cls.concerns(layer):
            return True
        return layer.matrix is not None and bool(layer.whole("convrot_groupsize", ROTATION))

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        columns, size = layer.columns or 0, layer.whole("convrot_groupsize", ROTATION) or ROTATION
        if columns % W4A4_GROUP or columns % size:
            yield cls(layer.prefix, columns, size)

    @classmethod
    def example(cls) -> ComfyCall:
        return example(MARKED, w4a4(8, 320))


W4A4_CHECKS = (
    W4a4Types,
    W4a4Shapes,
    RotationNotNumeral,
    RotationNotNumber,
    W4a4Rotation,
    W4a4InputSize,
)
