"""What the inspection refuses in W4A8 layers: 4-bit codes with a scale for each group and each row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from kernels.checking import aside
from kernels.checkpoint import Header
from kernels.comfy_checkpoint.layer_check import LayerCheck, MarkerCheck
from kernels.comfy_checkpoint.layers import Layer
from kernels.comfy_checkpoint.layouts import w4a8
from kernels.comfy_checkpoint.markers import W4A8
from kernels.comfy_checkpoint.repairs import EXPORT, Change, as_matrix, to_shape
from kernels.comfy_checkpoint.signature import ASYMMETRIC, ComfyCall, example
from kernels.comfy_checkpoint.sites import at
from kernels.comfy_checkpoint.w4_checks import (
    CODES,
    GROUP,
    SMALLEST_GROUP,
    GroupSizeNotNumber,
    GroupSizeNotNumeral,
    group_of,
)


class W4a8Check(LayerCheck):
    """A check of a W4A8 layer's tensors."""

    of = (W4A8,)
    needs: ClassVar[tuple[str, ...]] = ("weight", "weight_s_rel", "weight_s_channel")
    shows: ClassVar[tuple[str, ...]] = ("weight", "weight_s_rel", "weight_s_channel")


@dataclass(frozen=True)
class W4a8GroupSize(MarkerCheck):
    """Scales of fewer than four columns would take more room than the codes; none at all cannot be divided
    by.
    """

    message = "Comfy W4A8 layer {prefix!r} has invalid group_size={group_size}"
    sites = at(241)
    reason = "group_size of {prefix!r} is {size}; it must be 4 or more"
    requires = "group_size of 4 or more"
    category = "values"
    of = (W4A8,)
    prefix: str
    size: int

    @classmethod
    def evaluable(cls, layer: Layer, /) -> bool:
        return not cls.concerns(layer) or layer.whole("group_size", GROUP) is not None

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        size = layer.whole("group_size", GROUP)
        if size is not None and size < SMALLEST_GROUP:
            yield cls(layer.prefix, size)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        size = group_of(layer)
        if size is not None:
            title = f"Write group_size of {layer.prefix!r} as {size}, as its scales have it"
            yield Change(title, True, "", {}, {"group_size": size})

    @classmethod
    def example(cls) -> ComfyCall:
        return example({**ASYMMETRIC, "group_size": 2}, w4a8(8, 256))


@dataclass(frozen=True)
class W4a8Types(W4a8Check):
    """Codes are packed in signed bytes, and a group's scale is an E4M3 number beside the row's float."""

    message = (
        "Comfy W4A8 layer {prefix!r} needs I8 weights and FP8 group scales, got {weight_dtype} and "
        "{scale_dtype}"
    )
    sites = at(245)
    reason = (
        "{prefix!r} has weights of type {weight} and group scales of type {scale}; I8 and F8_E4M3 are needed"
    )
    requires = "weight I8, weight_s_rel F8_E4M3"
    category = "dtype"
    prefix: str
    weight: str
    scale: str

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        weight, scale = layer.held("weight").dtype, layer.held("weight_s_rel").dtype
        if (weight, scale) != ("I8", "F8_E4M3"):
            yield cls(layer.prefix, weight, scale)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        titles: list[str] = []
        tensors: dict[str, Header | None] = {}
        viewed = True
        for suffix, wanted, alike in (("weight", "I8", ("U8",)), ("weight_s_rel", "F8_E4M3", ("U8", "I8"))):
            header, name = layer.held(suffix), layer.name(suffix)
            if header.dtype != wanted:
                titles.append(
                    f"{'view' if header.dtype in alike else 'convert'} {name!r} {header.dtype} as {wanted}"
                )
                tensors[name] = Header(wanted, header.shape)
                viewed = viewed and header.dtype in alike
        title = " and ".join(titles)
        note = (
            "the bytes stay as they are"
            if viewed
            else "E4M3 keeps four bits of a scale: weights change a little"
        )
        yield Change(title[0].upper() + title[1:], viewed, note, tensors)

    @classmethod
    def example(cls) -> ComfyCall:
        return example(ASYMMETRIC, {**w4a8(8, 256), "weight": Header("U8", (8, 128))})


@dataclass(frozen=True)
class W4a8ChannelType(W4a8Check):
    """A row's scale multiplies an int32 sum in float32."""

    message = "Comfy W4A8 layer {prefix!r} needs F32 channel scales, got {channel_dtype}"
    sites = at(250)
    reason = "weight_s_channel of {prefix!r} is {dtype}; it must be F32"
    requires = "weight_s_channel F32"
    category = "dtype"
    needs = ("weight_s_channel",)
    prefix: str
    dtype: str

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        dtype = layer.held("weight_s_channel").dtype
        if dtype != "F32":
            yield cls(layer.prefix, dtype)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        yield to_shape(layer, "weight_s_channel", layer.held("weight_s_channel").shape, "F32")

    @classmethod
    def example(cls) -> ComfyCall:
        return example(ASYMMETRIC, {**w4a8(8, 256), "weight_s_channel": Header("BF16", (8,))})


@dataclass(frozen=True)
class W4a8WeightNotMatrix(W4a8Check):
    """Only a linear's matrix is packed so, in rows of K/2 bytes."""

    message = "Comfy W4A8 layer {prefix!r} needs a 2D packed weight, got {weight_shape}"
    sites = at(255)
    reason = "the packed weight of {prefix!r} has the shape {shape}; it must have two dimensions, [N, K/2]"
    requires = "weight of two dimensions, [N, K/2]"
    category = "shape"
    needs = ("weight",)
    prefix: str
    shape: tuple[int, ...]

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        shape = layer.held("weight").shape
        if len(shape) != 2:
            yield cls(layer.prefix, shape)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        change = as_matrix(layer)
        if change is not None:
            yield change

    @classmethod
    def example(cls) -> ComfyCall:
        return example(ASYMMETRIC, {**w4a8(8, 256), "weight": Header("I8", (1, 8, 128))})


class W4a8MatrixCheck(W4a8Check):
    """A check that N, K and the group size are needed for."""

    @classmethod
    def evaluable(cls, layer: Layer, /) -> bool:
        if not cls.concerns(layer):
            return True
        return layer.has(*cls.needs) and layer.matrix is not None and bool(layer.whole("group_size", GROUP))


@dataclass(frozen=True)
class W4a8Shapes(W4a8MatrixCheck):
    """Each group of a row has a scale, and each row one more, without a dimension beside the rows."""

    message = (
        "Comfy W4A8 layer {prefix!r} has incompatible weight/scale shapes: "
        "{weight_shape}, {scale_shape}, and {channel_shape}"
    )
    sites = at(264)
    reason = (
        "{prefix!r} of N = {rows} rows and K = {columns} columns in groups of {group} needs group scales "
        "[{rows}, {wide}] and channel scales [{rows}], and has {scale} and {channel}"
    )
    requires = "weight [N, K/2], weight_s_rel [N, K/group_size], weight_s_channel [N]"
    category = "shape"
    prefix: str
    weight: tuple[int, ...]
    scale: tuple[int, ...]
    channel: tuple[int, ...]
    rows: int = aside()
    columns: int = aside()
    group: int = aside()
    wide: int = aside()

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        rows, columns, group = layer.rows or 0, layer.columns or 0, layer.whole("group_size", GROUP) or GROUP
        scale, channel = layer.held("weight_s_rel").shape, layer.held("weight_s_channel").shape
        wide = columns // group
        if scale != (rows, wide) or channel != (rows,):
            yield cls(layer.prefix, layer.held("weight").shape, scale, channel, rows, columns, group, wide)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        rows, columns, group = layer.rows or 0, layer.columns or 0, layer.whole("group_size", GROUP) or GROUP
        scale, channel = layer.held("weight_s_rel"), layer.held("weight_s_channel")
        told = group_of(layer)
        if channel.shape == (rows,) and told is not None and scale.shape[0] == rows:
            title = f"Write group_size of {layer.prefix!r} as {told}, as its scales have it"
            yield Change(title, True, "", {}, {"group_size": told})
            return
        changes = []
        if scale.shape != (rows, columns // group):
            changes.append(to_shape(layer, "weight_s_rel", (rows, columns // group)))
        if channel.shape != (rows,):
            changes.append(to_shape(layer, "weight_s_channel", (rows,)))
        first, *rest = changes
        title = "; ".join([first.title, *(change.title[0].lower() + change.title[1:] for change in rest)])
        tensors = {name: header for change in changes for name, header in change.tensors.items()}
        safe = all(change.safe for change in changes)
        yield Change(title, safe, "" if safe else EXPORT, tensors)

    @classmethod
    def example(cls) -> ComfyCall:
        return example(ASYMMETRIC, {**w4a8(8, 256), "weight_s_channel": Header("F32", (8, 1))})


@dataclass(frozen=True)
class W4a8Codebook(W4a8Check):
    """A code has four bits, so the table of what codes mean has sixteen floats."""

    message = "Comfy W4A8 layer {prefix!r} needs an F32[16] codebook"
    sites = at(276)
    reason = "weight_codebook of {prefix!r} is {found}; it must be F32 [16]"
    requires = "weight_codebook, where there is one, F32 [16]"
    category = "shape"
    needs = ()
    shows = ("weight_codebook",)
    prefix: str
    found: Header = aside()

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        table = layer.tensor("weight_codebook")
        if table is not None and (table.dtype, table.shape) != ("F32", (CODES,)):
            yield cls(layer.prefix, table)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        yield to_shape(layer, "weight_codebook", (CODES,), "F32")

    @classmethod
    def example(cls) -> ComfyCall:
        return example(ASYMMETRIC, {**w4a8(8, 256), "weight_codebook": Header("BF16", (16,))})


@dataclass(frozen=True)
class W4a8Correction(W4a8MatrixCheck):
    """Added group by group to every row, it is stored by group first, unlike the scales."""

    message = "Comfy W4A8 layer {prefix!r} has an incompatible correction tensor"
    sites = at(287)
    reason = "weight_correction of {prefix!r} is {found}; it must be F32 [{wide}, {rows}]"
    requires = "weight_correction, where there is one, F32 [K/group_size, N]"
    category = "shape"
    needs = ("weight",)
    shows = ("weight", "weight_correction")
    prefix: str
    found: Header = aside()
    wide: int = aside()
    rows: int = aside()

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        correction = layer.tensor("weight_correction")
        rows, wide = layer.rows or 0, (layer.columns or 0) // (layer.whole("group_size", GROUP) or GROUP)
        if correction is not None and (correction.dtype, correction.shape) != ("F32", (wide, rows)):
            yield cls(layer.prefix, correction, wide, rows)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        rows, wide = layer.rows or 0, (layer.columns or 0) // (layer.whole("group_size", GROUP) or GROUP)
        correction, name = layer.held("weight_correction"), layer.name("weight_correction")
        if correction.shape == (rows, wide) and rows != wide and correction.dtype == "F32":
            turned = {name: Header("F32", (wide, rows))}
            yield Change(f"Transpose {name!r} to {[wide, rows]}", True, "the numbers change places", turned)
        else:
            yield to_shape(layer, "weight_correction", (wide, rows), "F32")

    @classmethod
    def example(cls) -> ComfyCall:
        return example(ASYMMETRIC, {**w4a8(8, 256), "weight_correction": Header("F32", (8, 16))})


W4A8_CHECKS = (
    GroupSizeNotNumeral,
    GroupSizeNotNumber,
    W4a8GroupSize,
    W4a8Types,
    W4a8ChannelType,
    W4a8WeightNotMatrix,
    W4a8Shapes,
    W4a8Codebook,
    W4a8Correction,
)
