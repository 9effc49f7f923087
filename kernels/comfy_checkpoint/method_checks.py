"""What the methods refuse of markers that the inspection has taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from kernels.checking import Check, Fix, aside
from kernels.comfy_checkpoint.handler_checks import FormatsUnsupported
from kernels.comfy_checkpoint.layer_check import MarkerCheck
from kernels.comfy_checkpoint.layers import ROTATIONS, Layer, rotation
from kernels.comfy_checkpoint.layouts import file, int8, nvfp4, w4a4, w4a8
from kernels.comfy_checkpoint.markers import INT8, NVFP4, W4A4, W4A8
from kernels.comfy_checkpoint.repairs import Change
from kernels.comfy_checkpoint.signature import ASYMMETRIC, PREFIX, ROTATED, VALID, ComfyCall, example
from kernels.comfy_checkpoint.sites import CONVROT_FILE, NVFP4_FILE, W4A4_CONFIG, W4A8_CONFIG, at

BACKENDS = ("auto", "comfy_kitchen", "jit")
LINEAR_TYPES = ("int4", "int8")
NOT_TOLD = (
    "whether its weights are rotated only the export tells: unrotated ones then multiply rotated activations"
)


@dataclass(frozen=True)
class BackendUnknown(Check[ComfyCall]):
    """Two libraries have the kernels; auto takes the one that has them for this GPU and rotation."""

    raises = ValueError
    message = "convrot_int8 backend must be one of {BACKENDS}, got {backend!r}"
    sites = at(104, "ConvRotInt8Config.__init__", CONVROT_FILE)
    reason = "SGLANG_DIFFUSION_CONVROT_INT8_BACKEND is {backend!r}; it must be one of {backends}"
    looks_at = ("backend",)
    requires = "backend auto, comfy_kitchen or jit"
    category = "values"
    premises = (FormatsUnsupported,)
    backends: tuple[str, ...]
    backend: Any

    @classmethod
    def find(cls, call: ComfyCall, /) -> Iterator[Self]:
        if uses_convrot(call) and call.backend not in BACKENDS:
            yield cls(BACKENDS, call.backend)

    def fixes(self, call: ComfyCall, /) -> Iterator[Fix[ComfyCall]]:
        yield Fix("Let auto choose the backend", call.replace(backend="auto"), safe=True)

    @classmethod
    def example(cls) -> ComfyCall:
        return example(ROTATED, int8(8, 256), backend="comfy-kitchen")


def uses_convrot(call: ComfyCall) -> bool:
    """Whether INT8 linears are loaded by the ConvRot method: in files of their own, and beside W4A4."""
    return call.handler in ("convrot_int8", "kitchen_w4a4") and INT8 in call.formats


class ConvRotCheck(MarkerCheck):
    """A check of an INT8 layer that is to be a linear with rotated weights."""

    of = (INT8,)

    @classmethod
    def concerns(cls, layer: Layer, /) -> bool:
        return super().concerns(layer) and uses_convrot(layer.call) and not layer.is_embedding


@dataclass(frozen=True)
class Int8NotRotated(ConvRotCheck):
    """Activations are rotated in the kernel; a marker says with JSON's own true that weights are too."""

    message = "Serialized convrot_int8 layer {prefix!r} must set convrot=true"
    sites = at(130, "ConvRotInt8Config.__init__", CONVROT_FILE)
    reason = "convrot of {prefix!r} is {value!r}; it must be true, or absent for an embedding table"
    requires = "convrot: true, to the letter"
    category = "type"
    prefix: str
    value: Any = aside()

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        if layer.marker.get("convrot") is not True:
            yield cls(layer.prefix, layer.marker.get("convrot"))

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        value = layer.marker.get("convrot")
        meant = value in (1, "true", "True", "1")
        title = f"Write convrot of {layer.prefix!r} as true"
        yield Change(title, meant, "" if meant else NOT_TOLD, {}, {"convrot": True})

    @classmethod
    def example(cls) -> ComfyCall:
        return example({**ROTATED, "convrot": 1}, int8(8, 256))


@dataclass(frozen=True)
class Int8RotationUndeclared(ConvRotCheck):
    """The rotation is undone by rotating activations alike, in groups of the same size, of those compiled."""

    message = (
        "Serialized convrot_int8 layer {prefix!r} must declare convrot_groupsize in "
        "{BACKEND_GROUP_SIZES[COMFY_KITCHEN]}, got {marker_group_size!r}"
    )
    sites = at(136, "ConvRotInt8Config.__init__", CONVROT_FILE)
    reason = "convrot_groupsize of {prefix!r} is {size!r}; it must be one of {sizes}, as a number"
    requires = "convrot_groupsize 16, 64 or 256, as a number"
    category = "values"
    prefix: str
    sizes: tuple[int, ...]
    size: Any

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        size = layer.marker.get("convrot_groupsize")
        if size not in ROTATIONS:
            yield cls(layer.prefix, tuple(sorted(ROTATIONS)), size)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        size = layer.marker.get("convrot_groupsize")
        meant = next((number for number in ROTATIONS if size == str(number)), None)
        widest = meant or rotation(layer.columns or 0)["convrot_groupsize"]
        title = f"Write convrot_groupsize of {layer.prefix!r} as {widest}"
        note = "" if meant else "it has to be the size that the exporter rotated with"
        yield Change(title, meant is not None, note, {}, {"convrot_groupsize": widest})

    @classmethod
    def example(cls) -> ComfyCall:
        return example({**ROTATED, "convrot_groupsize": "256"}, int8(8, 256))


@dataclass(frozen=True)
class W4a8Companion(MarkerCheck):
    """Beside W4A8 linears only embedding tables may be INT8: its method has no other kernel."""

    message = "Unsupported Comfy W4A8 format for {prefix!r}: {marker_format!r}"
    sites = at(58, "KitchenW4A8Config.__init__", W4A8_CONFIG)
    reason = (
        "{prefix!r} is a rotated INT8 linear in a file of W4A8 layers; only INT8 embedding tables may "
        "stand there"
    )
    requires = "int8_tensorwise without convrot beside asym_w4a8_int8"
    of = (INT8,)
    prefix: str
    format: str

    @classmethod
    def concerns(cls, layer: Layer, /) -> bool:
        return super().concerns(layer) and layer.call.handler == "kitchen_w4a8" and not layer.is_embedding

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        yield cls(layer.prefix, layer.format)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        note = "right only for an embedding table; quantize a linear as W4A8 or leave it unquantized"
        yield Change(f"Write convrot of {layer.prefix!r} as false", False, note, {}, {"convrot": False})

    @classmethod
    def example(cls) -> ComfyCall:
        other = PREFIX.replace("to_q", "to_k")
        return ComfyCall(file({PREFIX: (ASYMMETRIC, w4a8(8, 256)), other: (ROTATED, int8(8, 256))}))


@dataclass(frozen=True)
class W4a8NotRotated(MarkerCheck):
    """The kernel always rotates activations; weights that are not rotated would meet them at an angle."""

    message = "Serialized W4A8 layer {prefix!r} must set convrot=true"
    sites = at(62, "KitchenW4A8Config.__init__", W4A8_CONFIG)
    reason = "convrot of {prefix!r} is {value!r}; it must be true"
    requires = "convrot: true, to the letter"
    category = "type"
    of = (W4A8,)
    prefix: str
    value: Any = aside()

    @classmethod
    def concerns(cls, layer: Layer, /) -> bool:
        return super().concerns(layer) and layer.call.handler == "kitchen_w4a8"

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        yield from (cls(layer.prefix, value) for value in [layer.marker.get("convrot")] if value is not True)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        meant = layer.marker.get("convrot") in (1, "true", "True", "1")
        title = f"Write convrot of {layer.prefix!r} as true"
        yield Change(title, meant, "" if meant else NOT_TOLD, {}, {"convrot": True})

    @classmethod
    def example(cls) -> ComfyCall:
        return example({**ASYMMETRIC, "convrot": "true"}, w4a8(8, 256))


@dataclass(frozen=True)
class W4a4LinearType(MarkerCheck):
    """Codes are multiplied as 4-bit integers, or widened to 8 bits where a GPU has no 4-bit ones."""

    message = (
        "Serialized W4A4 layer {prefix!r} has unsupported linear_dtype={linear_dtype!r}; "
        "expected one of {_SUPPORTED_LINEAR_DTYPES}"
    )
    sites = at(132, "KitchenW4A4Config._parse_marker", W4A4_CONFIG)
    reason = "linear_dtype of {prefix!r} is {value!r}; it must be one of {known}"
    requires = "linear_dtype int4 or int8, or no such member"
    category = "values"
    of = (W4A4,)
    prefix: str
    value: str
    known: tuple[str, ...]

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        value = str(layer.marker.get("linear_dtype", LINEAR_TYPES[0]))
        if value not in LINEAR_TYPES:
            yield cls(layer.prefix, value, LINEAR_TYPES)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        value = str(layer.marker.get("linear_dtype"))
        meant = "int8" if "8" in value else "int4"
        note = (
            "" if meant in value else "the weights are the same; sums differ by how activations are rounded"
        )
        title = f"Write linear_dtype of {layer.prefix!r} as {meant}"
        yield Change(title, not note, note, {}, {"linear_dtype": meant})

    @classmethod
    def example(cls) -> ComfyCall:
        return example({"format": W4A4, "linear_dtype": "fp4"}, w4a4(8, 256))


class Nvfp4MethodCheck(MarkerCheck):
    """A check of the method that loads NVFP4 files."""

    @classmethod
    def concerns(cls, layer: Layer, /) -> bool:
        return super().concerns(layer) and layer.call.handler == "comfy_nvfp4"


@dataclass(frozen=True)
class Nvfp4Companion(Nvfp4MethodCheck):
    """Beside NVFP4 linears only embedding tables may be INT8: its method has no INT8 linear."""

    message = "Unsupported Comfy NVFP4 companion for {prefix!r}: {marker_format!r}"
    sites = at(188, "ComfyNvfp4Config.__init__", NVFP4_FILE)
    reason = (
        "{prefix!r} is a rotated INT8 linear in a file of NVFP4 layers; only INT8 embedding tables may "
        "stand there"
    )
    requires = "int8_tensorwise without convrot beside nvfp4"
    of = (INT8,)
    prefix: str
    format: str

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        if not layer.is_embedding:
            yield cls(layer.prefix, layer.format)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        note = "right only for an embedding table; quantize a linear as NVFP4 or leave it unquantized"
        yield Change(f"Write convrot of {layer.prefix!r} as false", False, note, {}, {"convrot": False})

    @classmethod
    def example(cls) -> ComfyCall:
        other = PREFIX.replace("to_q", "to_k")
        return ComfyCall(file({PREFIX: ({"format": NVFP4}, nvfp4(128, 64)), other: (ROTATED, int8(8, 256))}))


@dataclass(frozen=True)
class Nvfp4Rotated(Nvfp4MethodCheck):
    """FP4 blocks are scaled where they are; no kernel rotates activations before an FP4 product."""

    message = "Rotated NVFP4 weights are not supported: {prefix!r}"
    sites = at(193, "ComfyNvfp4Config.__init__", NVFP4_FILE)
    reason = "convrot of {prefix!r} is {value!r}; NVFP4 weights must not be rotated"
    requires = "no convrot in an nvfp4 marker"
    of = (NVFP4,)
    prefix: str
    value: Any = aside()

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        if layer.is_rotated:
            yield cls(layer.prefix, layer.marker["convrot"])

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        note = "only where the weights are not rotated in fact: export again without rotation otherwise"
        yield Change(f"Write convrot of {layer.prefix!r} as false", False, note, {}, {"convrot": False})

    @classmethod
    def example(cls) -> ComfyCall:
        marker = {"format": NVFP4, "full_precision_matrix_mult": True, "convrot": True}
        return VALID.with_checkpoint(file({PREFIX: (marker, nvfp4(128, 64))}))


CONVROT_CHECKS = (Int8NotRotated, Int8RotationUndeclared)
METHOD_CHECKS = (W4a8Companion, W4a8NotRotated, W4a4LinearType, Nvfp4Companion, Nvfp4Rotated)
