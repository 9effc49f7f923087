"""What upstream refuses while it builds a layer: GPUs, fused linears, sizes without a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from kernels.checking import Category, Fix, aside
from kernels.comfy_checkpoint.layer_check import LayerCheck
from kernels.comfy_checkpoint.layers import ROTATIONS, Layer
from kernels.comfy_checkpoint.layouts import fp8, int8, nvfp4, w4a8
from kernels.comfy_checkpoint.markers import FP8, INT8, NVFP4, W4A8
from kernels.comfy_checkpoint.nvfp4_checks import BLOCK
from kernels.comfy_checkpoint.repairs import with_markers
from kernels.comfy_checkpoint.signature import ASYMMETRIC, ROTATED, VALID, ComfyCall, example
from kernels.comfy_checkpoint.sites import CONVROT_FILE, FP8_FILE, NVFP4_FILE, W4A8_CONFIG, at
from kernels.comfy_checkpoint.w4_checks import GROUP, ROTATION, SMALLEST_GROUP

BACKEND_GROUPS = {"comfy_kitchen": (16, 64, 256), "jit": (64, 128, 256, 512)}
JIT_CAPABILITIES = (90, 100, 120, 121)
JIT_OUTPUTS = 8
FULL_PRECISION = "full_precision_matrix_mult"
BLACKWELL = 100


class BuildCheck(LayerCheck):
    """A check of a layer as its method builds it; what repairs it is an argument or the marker."""

    handlers: ClassVar[tuple[str, ...]]
    needs = ()

    @classmethod
    def concerns(cls, layer: Layer, /) -> bool:
        return super().concerns(layer) and layer.call.handler in cls.handlers

    @classmethod
    def first(cls, layer: Layer) -> bool:
        """Whether it is the first layer that breaks the check: its fix repairs all."""
        return layer.prefix == next(other.prefix for other in layer.call.layers if any(cls.find(other)))


def failing(check: type[LayerCheck], call: ComfyCall) -> list[str]:
    """Prefixes of the layers that break a check."""
    return [layer.prefix for layer in call.layers if check.evaluable(layer) and any(check.find(layer))]


@dataclass(frozen=True)
class Nvfp4Capability(BuildCheck):
    """The product of two FP4 matrices is an instruction that Blackwell brought; weights alone decode
    anywhere.
    """

    message = "Comfy NVFP4 matmul requires NVIDIA compute capability 10.0+"
    formerly = ("Comfy NVFP4 layer {prefix!r} must request full_precision_matrix_mult",)
    sites = at(137, "ComfyNvfp4LinearMethod.__init__", NVFP4_FILE)
    reason = "{prefix!r} asks for FP4 products, and the GPU has compute capability {capability}"
    looks_at = ("capability", "checkpoint.metadata")
    requires = "compute capability 10.0 or newer, or full_precision_matrix_mult: true"
    category = "values"
    of = (NVFP4,)
    handlers = ("comfy_nvfp4",)
    prefix: str = aside()
    capability: float = aside()

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        found = layer.call.compute_capability
        if not layer.marker.get(FULL_PRECISION, False) and found is not None and found < BLACKWELL:
            yield cls(layer.prefix, found / 10)

    def describe_actual(self, layer: Layer, /) -> str:
        return f"capability = {self.capability}, {FULL_PRECISION} = {layer.marker.get(FULL_PRECISION)!r}"

    def fixes(self, layer: Layer, /) -> Iterator[Fix[ComfyCall]]:
        if self.first(layer):
            wanted = {prefix: {FULL_PRECISION: True} for prefix in failing(type(self), layer.call)}
            note = "weights are unpacked for each product: slower, and activations stay unrounded"
            yield Fix(f"Set {FULL_PRECISION} to true", with_markers(layer.call, wanted), safe=True, note=note)

    def remedy(self, layer: Layer, /) -> str:
        return "FP4 products themselves need another GPU, of compute capability 10.0 or newer"

    @classmethod
    def example(cls) -> ComfyCall:
        return example({"format": NVFP4}, nvfp4(128, 64), capability=9.0)


class FusedCheck(BuildCheck):
    """A fused linear whose marker asks for products in full precision."""

    looks_at = ("partitions", "checkpoint.metadata")
    category = "values"

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        parts = layer.call.partitions
        if layer.marker.get(FULL_PRECISION, False) and parts != 1:
            yield cls(layer.prefix, parts)  # type: ignore[call-arg]

    def describe_actual(self, layer: Layer, /) -> str:
        return (
            f"partitions = {layer.call.partitions!r}, {FULL_PRECISION} = {layer.marker.get(FULL_PRECISION)!r}"
        )

    def fixes(self, layer: Layer, /) -> Iterator[Fix[ComfyCall]]:
        if self.first(layer):
            note = "the model has to build the linears apart"
            yield Fix(
                "Load it as a linear of its own", layer.call.replace(partitions=1), safe=True, note=note
            )


@dataclass(frozen=True)
class Fp8Fused(FusedCheck):
    """One scale of all the weight is used; fused parts have one each."""

    message = "Comfy full_precision_matrix_mult does not support fused linears"
    sites = at(45, "ComfyFullPrecisionFp8LinearMethod.create_weights", FP8_FILE)
    reason = "{prefix!r} is part of {parts} fused linears, and its marker asks for full precision products"
    requires = "one linear by itself, or no full_precision_matrix_mult"
    of = (FP8,)
    handlers = ("comfy_fp8",)
    prefix: str = aside()
    parts: int = aside()

    @classmethod
    def example(cls) -> ComfyCall:
        return example({"format": FP8, FULL_PRECISION: True}, fp8(8, 64), partitions=3)


@dataclass(frozen=True)
class Nvfp4Fused(FusedCheck):
    """One weight_scale_2 of all the weight is used, and scales are stored in tiles: fused parts have their
    own.
    """

    message = "Comfy full_precision_matrix_mult does not support fused linears"
    sites = at(78, "ComfyFullPrecisionNvfp4LinearMethod.create_weights", NVFP4_FILE)
    reason = "{prefix!r} is part of {parts} fused linears, and its marker asks for full precision products"
    requires = "one linear by itself, or no full_precision_matrix_mult"
    of = (NVFP4,)
    handlers = ("comfy_nvfp4",)
    prefix: str = aside()
    parts: int = aside()

    @classmethod
    def example(cls) -> ComfyCall:
        return VALID.replace(partitions=3)


class RotatedCheck(BuildCheck):
    """A check of an INT8 linear with rotated weights."""

    of = (INT8,)
    handlers = ("convrot_int8", "kitchen_w4a4")
    category: ClassVar[Category] = "divisibility"
    looks_at: ClassVar[tuple[str, ...]] = ("checkpoint.metadata", "checkpoint.tensors")

    @classmethod
    def concerns(cls, layer: Layer, /) -> bool:
        return super().concerns(layer) and not layer.is_embedding

    @classmethod
    def evaluable(cls, layer: Layer, /) -> bool:
        sound = layer.matrix is not None and layer.marker.get("convrot_groupsize") in ROTATIONS
        return not cls.concerns(layer) or sound

    @classmethod
    def size(cls, layer: Layer) -> int:
        """Columns of its rotation."""
        return int(layer.marker["convrot_groupsize"])

    def describe_actual(self, layer: Layer, /) -> str:
        return f"{layer.describe('weight')}, convrot_groupsize = {layer.marker.get('convrot_groupsize')!r}"


@dataclass(frozen=True)
class Int8InputSize(RotatedCheck):
    """Rows are cut into whole rotations."""

    message = (
        "Serialized convrot_int8 layer {prefix!r} has input size {layer.input_size}, which is not "
        "divisible by "
        "its ConvRot group size {marker_group_size}"
    )
    sites = at(293, "ConvRotInt8Config.get_quant_method", CONVROT_FILE)
    reason = "{prefix!r} has K = {columns} columns, no multiple of its convrot_groupsize {rotation}"
    requires = "K a multiple of convrot_groupsize"
    prefix: str
    columns: int
    rotation: int

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        columns, size = layer.columns or 0, cls.size(layer)
        if columns % size:
            yield cls(layer.prefix, columns, size)

    def fixes(self, layer: Layer, /) -> Iterator[Fix[ComfyCall]]:
        fitting = next((size for size in ROTATIONS if self.columns % size == 0), None)
        if fitting is not None:
            note = "right only where the exporter rotated in groups of that size"
            call = with_markers(layer.call, {layer.prefix: {"convrot_groupsize": fitting}})
            yield Fix(
                f"Write convrot_groupsize of {layer.prefix!r} as {fitting}", call, safe=False, note=note
            )

    @classmethod
    def example(cls) -> ComfyCall:
        return example(ROTATED, int8(8, 192))


def backend_of(layer: Layer) -> str | None:
    """The library that serves a rotated INT8 layer; None where there is none.

    auto takes jit on the GPUs that it is compiled for, where the call states one, else comfy_kitchen.
    """
    call, size = layer.call, int(layer.marker["convrot_groupsize"])
    if call.backend != "auto":
        serves = size in BACKEND_GROUPS.get(call.backend, ())
        outputs = call.backend != "jit" or (layer.rows or 0) % JIT_OUTPUTS == 0
        return call.backend if serves and outputs else None
    compiled = size in BACKEND_GROUPS["jit"] and call.compute_capability in JIT_CAPABILITIES
    return "jit" if compiled and (layer.rows or 0) % JIT_OUTPUTS == 0 else "comfy_kitchen"


@dataclass(frozen=True)
class Int8NoKernel(RotatedCheck):
    """A library that is asked for by name is never replaced by the other."""

    message = (
        "Serialized convrot_int8 layer {prefix!r} has no kernel: "
        "{self._no_kernel_reason(group_size=marker_group_size, out_size=out_size)}"
    )
    sites = at(300, "ConvRotInt8Config.get_quant_method", CONVROT_FILE)
    reason = (
        "jit has kernels for rotations of 64, 128, 256 and 512 columns and outputs in eights; {prefix!r} "
        "has {why}"
    )
    looks_at = ("backend", "checkpoint.metadata", "checkpoint.tensors")
    requires = "backend auto or comfy_kitchen, or a rotation and outputs that jit has"
    category = "values"
    prefix: str
    told: str
    why: str = aside()

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        call, size, rows = layer.call, cls.size(layer), layer.rows or 0
        if call.backend in BACKEND_GROUPS and backend_of(layer) is None:
            told = (
                f"ConvRot group {size}, {rows} outputs; backend {call.backend!r}; jit serves group sizes "
                f"{BACKEND_GROUPS['jit']} with an output width that is a multiple of 8, comfy_kitchen "
                "serves group "
                f"sizes {BACKEND_GROUPS['comfy_kitchen']} and is installed"
            )
            yield cls(layer.prefix, told, f"{size} and {rows}")

    def describe_actual(self, layer: Layer, /) -> str:
        return f"backend = {layer.call.backend!r}, {super().describe_actual(layer)}"

    def fixes(self, layer: Layer, /) -> Iterator[Fix[ComfyCall]]:
        if self.first(layer):
            yield Fix("Let auto choose the backend", layer.call.replace(backend="auto"), safe=True)

    @classmethod
    def example(cls) -> ComfyCall:
        return example({**ROTATED, "convrot_groupsize": 16}, int8(8, 256), backend="jit")


@dataclass(frozen=True)
class W4a8InputSize(BuildCheck):
    """The kernel reads 16 columns at a time, whole scale groups and whole rotations of a row."""

    message = (
        "Serialized W4A8 layer {prefix!r} has input size {layer.input_size}, incompatible with "
        "group_size={group_size} and convrot_groupsize={convrot_group_size}"
    )
    sites = at(116, "KitchenW4A8Config.get_quant_method", W4A8_CONFIG)
    reason = (
        "{prefix!r} has K = {columns} columns, which must be a multiple of 16, of its group_size {group} "
        "and of its "
        "convrot_groupsize {rotation}; and {group} must divide 16 or be a multiple of it"
    )
    looks_at = ("checkpoint.metadata", "checkpoint.tensors")
    requires = (
        "K a multiple of 16, group_size and convrot_groupsize; group_size dividing 16 or a multiple of 16"
    )
    category = "divisibility"
    of = (W4A8,)
    handlers = ("kitchen_w4a8",)
    prefix: str
    columns: int
    group: int
    rotation: int

    @classmethod
    def evaluable(cls, layer: Layer, /) -> bool:
        if not cls.concerns(layer):
            return True
        sizes = (layer.whole("group_size", GROUP), layer.whole("convrot_groupsize", ROTATION))
        return layer.matrix is not None and all(sizes)

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        columns = layer.columns or 0
        group, size = (
            layer.whole("group_size", GROUP) or GROUP,
            layer.whole("convrot_groupsize", ROTATION) or ROTATION,
        )
        grouped = group >= SMALLEST_GROUP and (BLOCK % group == 0 or group % BLOCK == 0)
        if not grouped or columns % BLOCK or columns % group or columns % size:
            yield cls(layer.prefix, columns, group, size)

    def fixes(self, layer: Layer, /) -> Iterator[Fix[ComfyCall]]:
        fitting = next((size for size in ROTATIONS if self.columns % size == 0), None)
        if fitting is not None and self.columns % self.rotation:
            note = "right only where the exporter rotated in groups of that size"
            call = with_markers(layer.call, {layer.prefix: {"convrot_groupsize": fitting}})
            yield Fix(
                f"Write convrot_groupsize of {layer.prefix!r} as {fitting}", call, safe=False, note=note
            )

    def describe_actual(self, layer: Layer, /) -> str:
        return f"K = {self.columns}, group_size = {self.group}, convrot_groupsize = {self.rotation}"

    @classmethod
    def example(cls) -> ComfyCall:
        return example(ASYMMETRIC, w4a8(8, 192))


BUILD_CHECKS = (Nvfp4Capability, Nvfp4Fused, Fp8Fused, Int8InputSize, Int8NoKernel, W4a8InputSize)
