"""What the inspection refuses in every marked layer, and in NVFP4 layers: codes, block scales, one scale of
all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernels.checking import aside
from kernels.checkpoint import Header, encodable
from kernels.comfy_checkpoint.layer_check import LayerCheck
from kernels.comfy_checkpoint.layers import Layer
from kernels.comfy_checkpoint.markers import FP8, INSPECTED, NVFP4, W4A8
from kernels.comfy_checkpoint.repairs import EXPORT, Change, as_matrix, to_shape
from kernels.comfy_checkpoint.signature import PREFIX, VALID, ComfyCall
from kernels.comfy_checkpoint.sites import at
from kernels.wording import Listing

BLOCK = 16
"""Columns that share one block scale."""

TILE_ROWS, TILE_COLUMNS = 128, 64
"""A tile of block scales is stored whole: 128 rows of 4 blocks."""

PRE_SCALES = ("BF16", "F16", "F32")


def required(layer: Layer) -> tuple[str, ...]:
    """Tensors that a layer of this format has to have."""
    if layer.format == W4A8:
        return ("weight", "weight_s_rel", "weight_s_channel")
    return (
        ("weight", "weight_scale", "weight_scale_2") if layer.format == NVFP4 else ("weight", "weight_scale")
    )


@dataclass(frozen=True)
class TensorsMissing(LayerCheck):
    """Codes without their scales are no weights; a marker without tensors belongs to another file."""

    message = "Comfy layer {prefix!r} is missing checkpoint tensors: {sorted(missing)}"
    sites = at(226)
    reason = "{prefix!r} is marked as {format}, but the file does not have {missing}"
    looks_at = ("checkpoint.metadata", "checkpoint.tensors")
    requires = (
        "weight and weight_scale, for nvfp4 weight_scale_2 too; for asym_w4a8_int8 weight_s_rel and "
        "weight_s_channel"
    )
    of = INSPECTED
    needs = ()
    prefix: str
    missing: Listing
    format: str = aside()

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        missing = sorted(layer.name(suffix) for suffix in required(layer) if layer.tensor(suffix) is None)
        if missing:
            yield cls(layer.prefix, Listing(missing), layer.format)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        absent = [suffix for suffix in required(layer) if layer.tensor(suffix) is None]
        forms = {} if layer.matrix is None or not encodable(layer.prefix) else _forms(layer)
        if "weight" in absent or not set(absent) <= set(forms):
            stray = not any(layer.has(suffix) for suffix in required(layer))
            note = "where another shard has its tensors, look at the shards together"
            dropped: dict[str, Header | None] = {layer.name(suffix): None for suffix in required(layer)}
            yield Change(f"Remove the marker of {layer.prefix!r}", stray, note, dropped, None)
            return
        added = {layer.name(suffix): forms[suffix] for suffix in absent}
        names = " and ".join(f"{name!r} {header}" for name, header in added.items())
        yield Change(f"Add {names}", False, EXPORT, added)

    def describe_actual(self, layer: Layer, /) -> str:
        return layer.describe(*required(layer))

    @classmethod
    def example(cls) -> ComfyCall:
        return VALID.with_checkpoint(VALID.checkpoint.without_tensors(f"{PREFIX}.weight_scale_2"))


def _forms(layer: Layer) -> dict[str, Header]:
    """The scales that a layer's weight calls for."""
    rows, columns = layer.rows or 0, layer.columns or 0
    if layer.format == W4A8:
        group = max(layer.whole("group_size", BLOCK) or BLOCK, 1)
        return {
            "weight_s_rel": Header("F8_E4M3", (rows, columns // group)),
            "weight_s_channel": Header("F32", (rows,)),
        }
    if layer.format == NVFP4:
        scale = Header("F8_E4M3", (rows, columns // BLOCK))
        return {"weight_scale": scale, "weight_scale_2": Header("F32", ())}
    if layer.format == FP8:
        return {"weight_scale": Header("F32", ())}
    flat = layer.format != "int8_tensorwise"
    return {"weight_scale": Header("F32", (rows,) if flat else (rows, 1))}


@dataclass(frozen=True)
class Nvfp4Types(LayerCheck):
    """Two 4-bit codes share a byte without a sign, and a block's scale is an E4M3 number."""

    message = (
        "Comfy NVFP4 layer {prefix!r} needs U8 packed weights and FP8 block scales, "
        "got {weight_dtype} and {scale_dtype}"
    )
    sites = at(323)
    reason = (
        "{prefix!r} has weights of type {weight} and block scales of type {scale}; U8 and F8_E4M3 are needed"
    )
    requires = "weight U8, weight_scale F8_E4M3"
    category = "dtype"
    of = (NVFP4,)
    needs = ("weight", "weight_scale")
    prefix: str
    weight: str
    scale: str

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        weight, scale = layer.held("weight").dtype, layer.held("weight_scale").dtype
        if (weight, scale) != ("U8", "F8_E4M3"):
            yield cls(layer.prefix, weight, scale)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        titles: list[str] = []
        tensors: dict[str, Header | None] = {}
        safe = True
        for suffix, wanted, alike in (("weight", "U8", ("I8",)), ("weight_scale", "F8_E4M3", ("U8", "I8"))):
            header, name = layer.held(suffix), layer.name(suffix)
            if header.dtype != wanted:
                viewed = header.dtype in alike
                titles.append(f"{'view' if viewed else 'convert'} {name!r} {header.dtype} as {wanted}")
                tensors[name] = Header(wanted, header.shape)
                safe = safe and viewed
        title = " and ".join(titles)
        note = (
            "the bytes stay as they are"
            if safe
            else "scales that were swizzled and rounded cannot be converted: export again"
        )
        yield Change(title[0].upper() + title[1:], safe, note, tensors)

    @classmethod
    def example(cls) -> ComfyCall:
        signed = VALID.checkpoint.with_tensor(f"{PREFIX}.weight", Header("I8", (128, 32)))
        return VALID.with_checkpoint(signed)


@dataclass(frozen=True)
class Nvfp4TensorScale(LayerCheck):
    """E4M3 block scales reach from 2⁻⁹ to 448 only; one float of all the tensor moves them to where weights
    are.
    """

    message = (
        "Comfy NVFP4 layer {prefix!r} needs a scalar F32 weight_scale_2, got {scale_2_dtype}{scale_2_shape}"
    )
    sites = at(328)
    reason = (
        "weight_scale_2 of {prefix!r} is {dtype} of shape {shape}; it must be F32 with one element, [] or [1]"
    )
    requires = "weight_scale_2 F32 of shape [] or [1]"
    category = "shape"
    of = (NVFP4,)
    needs = ("weight_scale_2",)
    shows = ("weight_scale_2",)
    prefix: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        scale = layer.held("weight_scale_2")
        if scale.dtype != "F32" or scale.shape not in ((), (1,)):
            yield cls(layer.prefix, scale.dtype, scale.shape)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        shape = layer.held("weight_scale_2").shape
        yield to_shape(layer, "weight_scale_2", shape if shape == (1,) else (), "F32")

    @classmethod
    def example(cls) -> ComfyCall:
        half = VALID.checkpoint.with_tensor(f"{PREFIX}.weight_scale_2", Header("BF16", ()))
        return VALID.with_checkpoint(half)


@dataclass(frozen=True)
class Nvfp4WeightNotMatrix(LayerCheck):
    """Only a linear's matrix is packed so, in rows of K/2 bytes."""

    message = "Comfy NVFP4 layer {prefix!r} needs a 2D packed weight, got {weight_shape}"
    sites = at(333)
    reason = "the packed weight of {prefix!r} has the shape {shape}; it must have two dimensions, [N, K/2]"
    requires = "weight of two dimensions, [N, K/2]"
    category = "shape"
    of = (NVFP4,)
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
        deep = VALID.checkpoint.with_tensor(f"{PREFIX}.weight", Header("U8", (1, 128, 32)))
        return VALID.with_checkpoint(deep)


@dataclass(frozen=True)
class Nvfp4Shapes(LayerCheck):
    """A block of 16 columns, eight bytes, has one scale; the shape is read row by row although tiles are
    stored.
    """

    message = (
        "Comfy NVFP4 layer {prefix!r} has incompatible weight/scale shapes: {weight_shape} and {scale_shape}"
    )
    sites = at(340)
    reason = "{prefix!r} {why}"
    requires = "weight [N, K/2] with K a multiple of 16, weight_scale [N, K/16]"
    category = "shape"
    of = (NVFP4,)
    needs = ("weight", "weight_scale")
    prefix: str
    weight: tuple[int, ...]
    scale: tuple[int, ...]
    why: str = aside()

    @classmethod
    def evaluable(cls, layer: Layer, /) -> bool:
        return super().evaluable(layer) and (layer.format != NVFP4 or layer.matrix is not None)

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        rows, columns = layer.rows or 0, layer.columns or 0
        weight, scale = layer.held("weight").shape, layer.held("weight_scale").shape
        if columns % BLOCK:
            yield cls(layer.prefix, weight, scale, f"has K = {columns} columns, no multiple of {BLOCK}")
        elif scale != (rows, columns // BLOCK):
            padded = _padded(rows, columns)
            wanted = [rows, columns // BLOCK]
            why = f"has block scales of shape {list(scale)}; its weight calls for {wanted}"
            if scale == padded:
                why += f", and {list(padded)} is that padded to whole tiles, as the exporter stores them"
            yield cls(layer.prefix, weight, scale, why)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        rows, columns = layer.rows or 0, layer.columns or 0
        scale = layer.held("weight_scale")
        if columns % BLOCK:
            return
        if scale.shape == _padded(rows, columns) and scale.shape[1] * BLOCK == columns:
            name = layer.name("weight")
            wider = Header(layer.held("weight").dtype, (scale.shape[0], columns // 2))
            note = (
                "the layer then has more rows, which the model has to cut off; else leave the layer "
                "unquantized"
            )
            yield Change(f"Pad {name!r} to {scale.shape[0]} rows", False, note, {name: wider})
        else:
            yield to_shape(layer, "weight_scale", (rows, columns // BLOCK))

    def library_fault(self, layer: Layer, /) -> str:
        if self.scale != _padded(layer.rows or 0, layer.columns or 0):
            return ""
        return (
            "scales are stored in whole tiles, which the exporter's padded shape holds; the shape that is "
            f"asked for, {list(self.wanted(layer))}, has no room for them"
        )

    def remedy(self, layer: Layer, /) -> str:
        if not self.library_fault(layer):
            return ""
        return f"leave {self.prefix!r} unquantized, or have rows and columns in whole tiles before the export"

    @staticmethod
    def wanted(layer: Layer) -> tuple[int, int]:
        """The shape of block scales that upstream asks for."""
        return layer.rows or 0, (layer.columns or 0) // BLOCK

    @classmethod
    def example(cls) -> ComfyCall:
        flat = VALID.checkpoint.with_tensor(f"{PREFIX}.weight_scale", Header("F8_E4M3", (512,)))
        return VALID.with_checkpoint(flat)


def _padded(rows: int, columns: int) -> tuple[int, int]:
    """Shape of block scales padded to whole tiles."""
    return -(-rows // TILE_ROWS) * TILE_ROWS, -(-columns // TILE_COLUMNS) * (TILE_COLUMNS // BLOCK)


@dataclass(frozen=True)
class Nvfp4PreQuantScale(LayerCheck):
    """It multiplies the activation column by column before the linear, so it has one number for each."""

    message = (
        "Comfy NVFP4 layer {prefix!r} has an incompatible pre_quant_scale: {pre_scale_dtype}{pre_scale_shape}"
    )
    formerly = (
        "Comfy NVFP4 layer {prefix!r} has a pre-quant scale that the native NVFP4 GEMM cannot consume",
    )
    sites = at(351)
    reason = (
        "pre_quant_scale of {prefix!r} is {dtype} of shape {shape}; it must be BF16, F16 or F32 of shape "
        "[{columns}]"
    )
    requires = "pre_quant_scale, where there is one, BF16, F16 or F32 of shape [K]"
    category = "shape"
    of = (NVFP4,)
    shows = ("weight", "pre_quant_scale")
    prefix: str
    dtype: str
    shape: tuple[int, ...]
    columns: int = aside()

    @classmethod
    def concerns(cls, layer: Layer, /) -> bool:
        return super().concerns(layer) and layer.has("pre_quant_scale")

    @classmethod
    def evaluable(cls, layer: Layer, /) -> bool:
        return not cls.concerns(layer) or layer.matrix is not None

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        scale = layer.held("pre_quant_scale")
        if scale.dtype not in PRE_SCALES or scale.shape != (layer.columns,):
            yield cls(layer.prefix, scale.dtype, scale.shape, layer.columns or 0)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        scale, name = layer.held("pre_quant_scale"), layer.name("pre_quant_scale")
        dtype = scale.dtype if scale.dtype in PRE_SCALES else "F32"
        if scale.numel == layer.columns:
            yield to_shape(layer, "pre_quant_scale", (scale.numel,), dtype)
        elif scale.numel == 1:
            one = {name: Header(dtype, (layer.columns or 0,), scale.values)}
            yield Change(
                f"Repeat the one number of {name!r} for each of {layer.columns} columns", True, "", one
            )
        else:
            note = "weights that were scaled for it are then wrong by its factors"
            yield Change(f"Remove {name!r}", False, note, {name: None})

    @classmethod
    def example(cls) -> ComfyCall:
        row = VALID.checkpoint.with_tensor(f"{PREFIX}.pre_quant_scale", Header("BF16", (1, 64)))
        return VALID.with_checkpoint(row)


NVFP4_CHECKS = (Nvfp4Types, Nvfp4TensorScale, Nvfp4WeightNotMatrix, Nvfp4Shapes, Nvfp4PreQuantScale)
