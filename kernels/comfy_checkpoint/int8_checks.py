"""What the inspection refuses in INT8 layers, of one scale in all or one a row, and in names of the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernels.checking import Fix, aside
from kernels.checkpoint import Header, NameMapper
from kernels.collisions import mapped_apart
from kernels.comfy_checkpoint.layer_check import LayerCheck
from kernels.comfy_checkpoint.layers import Layer
from kernels.comfy_checkpoint.layouts import file, int8, nvfp4
from kernels.comfy_checkpoint.markers import INT8
from kernels.comfy_checkpoint.repairs import Change, as_matrix, to_shape
from kernels.comfy_checkpoint.signature import PREFIX, ROTATED, ComfyCall, example
from kernels.comfy_checkpoint.sites import at


def is_tensorwise(layer: Layer) -> bool:
    """Whether one float stands for the whole of an INT8 weight."""
    scale = layer.held("weight_scale")
    return layer.held("weight").dtype == "I8" and (scale.dtype, scale.shape) == ("F32", ())


class Int8Check(LayerCheck):
    """A check of an INT8 layer's weight and scale."""

    of = (INT8,)
    needs = ("weight", "weight_scale")


@dataclass(frozen=True)
class TensorwiseWeightNotMatrix(Int8Check):
    """One scale for all elements does not care for dimensions; the linear and the table that use it do."""

    message = "Comfy tensorwise INT8 layer {prefix!r} needs a 2D weight, got {weight_shape}"
    sites = at(362)
    reason = "the weight of {prefix!r} has the shape {shape}; it must have two dimensions"
    requires = "weight of two dimensions, [N, K]"
    category = "shape"
    prefix: str
    shape: tuple[int, ...]

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        shape = layer.held("weight").shape
        if is_tensorwise(layer) and len(shape) != 2:
            yield cls(layer.prefix, shape)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        change = as_matrix(layer)
        if change is not None:
            yield change

    @classmethod
    def example(cls) -> ComfyCall:
        tensors = {"weight": Header("I8", (1, 8, 256)), "weight_scale": Header("F32", ())}
        return example({"format": INT8}, tensors)


@dataclass(frozen=True)
class Int8Types(Int8Check):
    """Products are summed up in int32 and multiplied by the scales in float32: codes are signed, scales
    exact.
    """

    message = (
        "Comfy INT8 layer {prefix!r} needs I8 weights and F32 scales, got {weight_dtype} and {scale_dtype}"
    )
    sites = at(369)
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
        weight, scale = layer.held("weight"), layer.held("weight_scale")
        if weight.dtype == "I8":
            yield to_shape(layer, "weight_scale", scale.shape, "F32")
            return
        tensors: dict[str, Header | None] = {
            layer.name("weight"): Header("I8", weight.shape),
            layer.name("weight_scale"): Header("F32", scale.shape),
        }
        note = f"{weight.dtype} elements are no INT8 codes as they stand"
        yield Change(f"Quantize {layer.prefix!r} again: {weight.dtype} to I8", False, note, tensors)

    @classmethod
    def example(cls) -> ComfyCall:
        return example(ROTATED, {**int8(8, 256), "weight_scale": Header("BF16", (8, 1))})


@dataclass(frozen=True)
class Int8Shapes(Int8Check):
    """A row's scale multiplies its sum once, as a column beside the rows; one of all has no dimension."""

    message = (
        "Comfy INT8 layer {prefix!r} has incompatible weight/scale shapes: {weight_shape} and {scale_shape}"
    )
    sites = at(374)
    reason = (
        "{prefix!r} has a weight of shape {weight} and scales of shape {scale}; [N, K] and [N, 1] or [] "
        "are needed"
    )
    requires = "weight [N, K], weight_scale [N, 1] or []"
    category = "shape"
    prefix: str
    weight: tuple[int, ...]
    scale: tuple[int, ...]

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        weight, scale = layer.held("weight").shape, layer.held("weight_scale").shape
        if not is_tensorwise(layer) and (len(weight) != 2 or scale != (weight[0], 1)):
            yield cls(layer.prefix, weight, scale)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        scale = layer.held("weight_scale")
        if layer.matrix is None:
            change = as_matrix(layer)
            if change is not None and scale.numel == dict(change.tensors)[layer.name("weight")].shape[0]:  # type: ignore[union-attr]
                column = to_shape(layer, "weight_scale", (scale.numel, 1))
                tensors = {**column.tensors, **change.tensors}
                yield Change(change.title, change.safe, change.note, tensors)
            return
        rows = layer.rows or 0
        name = layer.name("weight_scale")
        if scale.numel == 1 and layer.is_rotated:
            repeated = {name: Header("F32", (rows, 1), scale.values)}
            yield Change(f"Repeat the one scale {name!r} for each of {rows} rows", True, "", repeated)
        elif scale.numel == 1:
            yield to_shape(layer, "weight_scale", ())
        else:
            yield to_shape(layer, "weight_scale", (rows, 1))

    @classmethod
    def example(cls) -> ComfyCall:
        return example(ROTATED, {**int8(8, 256), "weight_scale": Header("F32", (8,))})


@dataclass(frozen=True)
class MarkersCollide(LayerCheck):
    """Each layer needs a parameter of its own in the model; two under one name would overwrite each other."""

    message = "Comfy markers collide after parameter mapping at {mapped_prefix!r}"
    sites = at(384)
    reason = "{taken_by!r} and {prefix!r} are both mapped to {mapped!r}"
    looks_at = ("name_mapper", "checkpoint.metadata", "checkpoint.tensors")
    requires = "a mapping that gives every marked layer another name"
    category = "values"
    needs = ()
    mapped: str
    prefix: str = aside()
    taken_by: str = aside()

    @classmethod
    def concerns(cls, layer: Layer, /) -> bool:
        return True

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        if layer.taken_by is not None:
            yield cls(layer.mapped, layer.prefix, layer.taken_by)

    def describe_actual(self, layer: Layer, /) -> str:
        return f"{self.taken_by!r} → {self.mapped!r}, {self.prefix!r} → {self.mapped!r}"

    def fixes(self, layer: Layer, /) -> Iterator[Fix[ComfyCall]]:
        yield from mapped_apart(layer, "fused")

    @classmethod
    def example(cls) -> ComfyCall:
        names = [PREFIX, PREFIX.replace("to_q", "to_k")]
        fused = PREFIX.replace("to_q", "to_qkv")
        marker = {"format": "nvfp4", "full_precision_matrix_mult": True}
        layers = {name: (marker, nvfp4(128, 64)) for name in names}
        return ComfyCall(file(layers), NameMapper(dict.fromkeys(names, fused)))


INT8_CHECKS = (TensorwiseWeightNotMatrix, Int8Types, Int8Shapes)
