"""What upstream lets through: files that are none, tensors it overlooks, layers that fail or lie later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernels.checking import Check, Fix, Severity, aside
from kernels.checkpoint import Checkpoint, Header
from kernels.comfy_checkpoint.handler_checks import FormatsUnsupported
from kernels.comfy_checkpoint.layer_check import LayerCheck
from kernels.comfy_checkpoint.layers import Layer
from kernels.comfy_checkpoint.layouts import fp8, int8, nvfp4
from kernels.comfy_checkpoint.markers import FP8, GLOBAL_KEY, INT8, METADATA_KEY, MXFP8, NVFP4
from kernels.comfy_checkpoint.nvfp4_checks import BLOCK, TILE_COLUMNS, TILE_ROWS
from kernels.comfy_checkpoint.repairs import EXPORT, Change, as_matrix, to_shape
from kernels.comfy_checkpoint.signature import PREFIX, ROTATED, VALID, ComfyCall, example
from kernels.dtypes import DType
from kernels.spec import TensorSpec

QUANTO_KEY = "quantization_format"
ACTIVATIONS = (DType.BF16, DType.F16, DType.F32)
SHOWN = 5


@dataclass(frozen=True)
class NotComfy(Check[ComfyCall]):
    """Upstream takes a file without any marker as unquantized and says nothing."""

    raises = ValueError
    message = "not a Comfy quantized checkpoint: no marker among {count} tensors"
    reason = "neither the metadata nor any tensor says how a layer is quantized{hint}"
    looks_at = ("checkpoint.metadata", "checkpoint.tensors")
    requires = "_quantization_metadata, a tensor .comfy_quant, or quant_format mxfp8"
    category = "format"
    count: int
    hint: str = aside()

    @classmethod
    def find(cls, call: ComfyCall, /) -> Iterator[Self]:
        told = any(declared.layers or not declared.has_layers for declared in call.declarations)
        if not (told or call.layers or call.marker_tensors or call.quantized):
            quanto = any(file.metadata.get(QUANTO_KEY) == "quanto" for _, file in call.files)
            hint = "; it declares itself a Quanto file, which is inspected otherwise" if quanto else ""
            yield cls(len(call.headers), hint)

    def describe_actual(self, call: ComfyCall, /) -> str:
        keys = {key for _, file in call.files for key in file.metadata}
        names = [name for name in (METADATA_KEY, GLOBAL_KEY, QUANTO_KEY) if name in keys]
        return f"metadata {names or 'without any of these keys'}, {len(call.headers)} tensors"

    def fixes(self, call: ComfyCall, /) -> Iterator[Fix[ComfyCall]]:
        return iter(())

    @classmethod
    def example(cls) -> ComfyCall:
        plain = {f"{PREFIX}.weight": Header("BF16", (128, 64))}
        return ComfyCall(Checkpoint({}, plain))


@dataclass(frozen=True)
class PackedTensorsOverlooked(Check[ComfyCall]):
    """Only .weight of three types is looked for; codes of another type or name load as numbers."""

    raises = ValueError
    message = "quantized tensors that no marker speaks of: {names}"
    reason = (
        "{number} beside scales, but no marker says how to read them: the loader takes the bytes for "
        "numbers, "
        "and a packed weight is half as wide as the activation"
    )
    looks_at = ("checkpoint.metadata", "checkpoint.tensors")
    requires = "a marker for every layer with scales"
    category = "format"
    names: str
    number: str = aside()

    @classmethod
    def find(cls, call: ComfyCall, /) -> Iterator[Self]:
        names = overlooked(call)
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            number = f"{names[0]!r} stands" if len(names) == 1 else f"{len(names)} weights stand"
            yield cls(", ".join(map(repr, names[:SHOWN])) + more, number)

    def describe_actual(self, call: ComfyCall, /) -> str:
        tensors = call.headers
        return ", ".join(f"{name!r} {tensors[name]}" for name in overlooked(call)[:SHOWN])

    def fixes(self, call: ComfyCall, /) -> Iterator[Fix[ComfyCall]]:
        names = overlooked(call)
        changes: dict[str, Header | None] = {}
        for name in names:
            changes |= {scale: None for scale in scales_of(name) if scale in call.headers}
            changes[name] = Header("BF16", call.headers[name].shape)
        note = "that is another file: take the unquantized weights, or export again with markers"
        yield Fix(f"Store {names[0]!r} unquantized", call.with_tensors(changes), safe=False, note=note)

    @classmethod
    def example(cls) -> ComfyCall:
        other = PREFIX.replace("to_q", "to_k")
        file = VALID.checkpoint.with_tensor(f"{other}.weight", Header("F8_E5M2", (128, 64)))
        return VALID.with_checkpoint(file.with_tensor(f"{other}.weight_scale", Header("F32", ())))


BYTES = ("F8_E4M3", "F8_E5M2", "I8", "U8", "F4")
"""Types of codes, one or two of them a byte."""


def scales_of(name: str) -> tuple[str, ...]:
    """Names that a weight's scales may have."""
    return tuple(f"{name}{ending}" for ending in ("_scale", "_scale_2", "_s_rel", "_s_channel"))


def overlooked(call: ComfyCall) -> list[str]:
    """Tensors of codes that have scales and no marker, and that the inspection does not miss one for."""
    marked = {layer.prefix for layer in call.layers} | {carrier.prefix for carrier in call.marker_tensors}
    tensors = call.headers
    known = {f"{prefix}.weight" for prefix in (*marked, *call.quantized)}
    return [
        name
        for name, header in tensors.items()
        if header.dtype in BYTES and name not in known and any(scale in tensors for scale in scales_of(name))
    ]


class BeyondCheck(LayerCheck):
    """A check of a layer that upstream does not make."""

    premises = (FormatsUnsupported,)


@dataclass(frozen=True)
class Fp8Incompatible(BeyondCheck):
    """The first element of one scale multiplies an FP8 matrix; the inspection looks at neither."""

    message = "FP8 layer {prefix!r} has incompatible weight/scale: {weight} and {scale}"
    reason = (
        "{prefix!r} needs a weight F8_E4M3 of two dimensions and one scale F32, and has {weight} and {scale}"
    )
    requires = "weight F8_E4M3 [N, K], weight_scale F32 of one element"
    category = "format"
    of = (FP8,)
    needs = ("weight", "weight_scale")
    prefix: str
    weight: str
    scale: str

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        weight, scale = layer.held("weight"), layer.held("weight_scale")
        sound = (
            weight.dtype == "F8_E4M3" and len(weight.shape) == 2 and scale.dtype == "F32" and scale.numel == 1
        )
        if not sound:
            yield cls(layer.prefix, str(weight), str(scale))

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        weight, scale, name = layer.held("weight"), layer.held("weight_scale"), layer.name("weight")
        tensors: dict[str, Header | None] = {}
        changes = []
        if scale.dtype != "F32" or scale.numel != 1:
            changes.append(to_shape(layer, "weight_scale", scale.shape if scale.numel == 1 else (), "F32"))
        if len(weight.shape) != 2 and (change := as_matrix(layer)):
            changes.append(change)
        for change in changes:
            tensors |= change.tensors
        if weight.dtype != "F8_E4M3":
            shape = getattr(tensors.get(name), "shape", weight.shape)
            tensors[name] = Header("F8_E4M3", shape)
        safe = weight.dtype == "F8_E4M3" and all(change.safe for change in changes)
        title = (
            changes[0].title
            if len(changes) == 1 and weight.dtype == "F8_E4M3"
            else f"Quantize {layer.prefix!r} again"
        )
        yield Change(title, safe, "" if safe else EXPORT, tensors)

    @classmethod
    def example(cls) -> ComfyCall:
        return example({"format": FP8}, {**fp8(8, 64), "weight_scale": Header("BF16", (1,))})


@dataclass(frozen=True)
class Nvfp4ScalesNotWholeTiles(BeyondCheck):
    """Block scales are stored in tiles of 128 rows and 4 blocks; a shape that is no whole number of them has
    no room.
    """

    message = (
        "NVFP4 layer {prefix!r} of {rows} rows and {columns} columns has block scales that fill no whole "
        "tiles"
    )
    reason = (
        "N = {rows} must be a multiple of 128 and K = {columns} of 64: the scales of [N, K/16] are stored "
        "in tiles of "
        "128 rows and 4 blocks, and without padding some are read from where there are none"
    )
    requires = "N a multiple of 128, K a multiple of 64"
    category = "divisibility"
    of = (NVFP4,)
    needs = ("weight", "weight_scale")
    prefix: str
    rows: int
    columns: int

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        rows, columns = layer.rows, layer.columns
        if rows is None or columns is None or layer.held("weight_scale").shape != (rows, columns // BLOCK):
            return
        if rows % TILE_ROWS or columns % TILE_COLUMNS:
            yield cls(layer.prefix, rows, columns)

    @classmethod
    def example(cls) -> ComfyCall:
        return example({"format": NVFP4}, nvfp4(100, 64))


@dataclass(frozen=True)
class Mxfp8NotGlobal(BeyondCheck):
    """Shapes of MXFP8 layers are looked at only where the file as a whole is declared MXFP8."""

    message = "MXFP8 layer {prefix!r} without quant_format in the metadata"
    reason = "{prefix!r} is marked mxfp8, but quant_format is not mxfp8: its tensors are never checked"
    looks_at = ("checkpoint.metadata",)
    requires = "metadata quant_format = mxfp8 where layers are marked so"
    category = "format"
    severity = Severity.WARNING
    of = (MXFP8,)
    needs = ()
    prefix: str

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        if not layer.call.is_mxfp8:
            yield cls(layer.prefix)

    def fixes(self, layer: Layer, /) -> Iterator[Fix[ComfyCall]]:
        call = layer.call
        yield Fix(f"Set {GLOBAL_KEY} to {MXFP8}", call.with_format(MXFP8), safe=True)

    @classmethod
    def example(cls) -> ComfyCall:
        tensors = {"weight": Header("F8_E4M3", (32, 64)), "weight_scale": Header("U8", (32, 2))}
        return example({"format": MXFP8}, tensors)


@dataclass(frozen=True)
class RotatedWithOneScale(BeyondCheck):
    """The rotated linear loads a column of scales, [N, 1], into which one number does not go."""

    message = "rotated INT8 layer {prefix!r} has one scale for all rows"
    reason = "{prefix!r} sets convrot and has a weight_scale of shape []; the linear is built for [{rows}, 1]"
    requires = "weight_scale [N, 1] for a rotated layer"
    category = "shape"
    of = (INT8,)
    needs = ("weight", "weight_scale")
    prefix: str
    rows: int = aside()

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        if layer.is_rotated and layer.held("weight_scale").shape == ():
            yield cls(layer.prefix, layer.rows or 0)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        rows, name = layer.rows or 0, layer.name("weight_scale")
        repeated = {name: Header("F32", (rows, 1), layer.held("weight_scale").values)}
        yield Change(f"Repeat the one scale {name!r} for each of {rows} rows", True, "", repeated)

    @classmethod
    def example(cls) -> ComfyCall:
        return example(ROTATED, {**int8(8, 256), "weight_scale": Header("F32", ())})


@dataclass(frozen=True)
class ActivationDoesNotFit(Check[ComfyCall]):
    """The layer multiplies x by its weight, converted to x's own type; torch raises otherwise."""

    raises = ValueError
    message = "no layer of the checkpoint takes {x}"
    reason = "x is {x}; {why}"
    looks_at = ("x", "layer")
    requires = "x floating point with one layer's K as its last size, or row numbers for an embedding table"
    category = "shape"
    premises = (FormatsUnsupported,)
    x: str
    why: str = aside()

    @classmethod
    def evaluable(cls, call: ComfyCall, /) -> bool:
        return call.x is None or any(layer.matrix for layer in call.layers)

    @classmethod
    def find(cls, call: ComfyCall, /) -> Iterator[Self]:
        if call.x is None:
            return
        widths = ", ".join(str(width) for width in widths_of(call)[:SHOWN])
        operand = call.operand
        if operand is None and call.layer is not None:
            yield cls(str(call.x), f"no layer of the file is marked under the prefix {call.layer!r}")
        elif call.looks_up:
            if operand is None or (
                not operand.is_embedding and call.handler in ("convrot_int8", "kitchen_w4a4")
            ):
                yield cls(str(call.x), "row numbers are for INT8 embedding tables, not rotated")
        elif call.x.dtype not in ACTIVATIONS:
            yield cls(str(call.x), "the layers take bfloat16, float16 and float32")
        elif operand is None or operand.columns != (call.x.shape[-1] if call.x.ndim else None):
            yield cls(str(call.x), f"the layers have {widths} columns")

    def fixes(self, call: ComfyCall, /) -> Iterator[Fix[ComfyCall]]:
        linear = next((layer for layer in call.layers if layer.columns and not layer.is_embedding), None)
        if call.x is None or linear is None:
            return
        lead = call.x.shape[:-1] or (1,)
        fitting = call.replace(x=TensorSpec((*lead, linear.columns or 0), ACTIVATIONS[0]), layer=None)
        yield Fix(
            f"Give x the shape {[*lead, linear.columns]}, bfloat16",
            fitting,
            safe=False,
            note="x holds other numbers then",
        )

    @classmethod
    def example(cls) -> ComfyCall:
        return VALID.with_tensor("x", shape=(1, 32))


def widths_of(call: ComfyCall) -> list[int]:
    """The layers' distinct K, in order."""
    return list(dict.fromkeys(layer.columns for layer in call.layers if layer.columns is not None))


BEYOND_LAYER_CHECKS = (
    Fp8Incompatible,
    Nvfp4ScalesNotWholeTiles,
    Mxfp8NotGlobal,
    RotatedWithOneScale,
)
