"""What upstream refuses of the activation or the row numbers that a layer is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from kernels.checking import Category, Fix, aside
from kernels.checkpoint import Header
from kernels.comfy_checkpoint.build_checks import BuildCheck, backend_of
from kernels.comfy_checkpoint.layers import ROTATIONS, Layer
from kernels.comfy_checkpoint.layouts import file, int8, nvfp4, w4a8
from kernels.comfy_checkpoint.markers import INT8, NVFP4, W4A4, W4A8
from kernels.comfy_checkpoint.signature import ASYMMETRIC, PREFIX, ROTATED, ComfyCall, example
from kernels.comfy_checkpoint.sites import INT8_FILE, JIT_FILE, KITCHEN_FILE, NVFP4_FILE, W4A8_CONFIG, at
from kernels.dtypes import DType, Kind, Torch
from kernels.spec import TensorSpec

FLOATS = (DType.BF16, DType.F16, DType.F32)
TABLE = "embed_tokens"


def operand_prefix(call: ComfyCall) -> str | None:
    """The prefix of the layer that x goes through."""
    return None if call.operand is None else call.operand.prefix


class UseCheck(BuildCheck):
    """A check of the layer that x goes through: as a table by row numbers, or as a linear."""

    looks_at: ClassVar[tuple[str, ...]] = ("x", "layer", "checkpoint.metadata")
    category: ClassVar[Category] = "format"
    of: ClassVar[tuple[str, ...]] = (NVFP4, W4A8, W4A4, INT8)

    @classmethod
    def concerns(cls, layer: Layer, /) -> bool:
        return super().concerns(layer) and layer.prefix == operand_prefix(layer.call)

    def describe_actual(self, layer: Layer, /) -> str:
        return f"x is {layer.call.x}, the marker of {layer.prefix!r} is {dict(layer.marker)!r}"

    def fixes(self, layer: Layer, /) -> Iterator[Fix[ComfyCall]]:
        call = layer.call
        yield Fix(
            "Send no activation through it", call.without("x", "layer"), safe=False, note="it is not run then"
        )


class EmbeddingCheck(UseCheck):
    """Row numbers for a layer that is no INT8 embedding table."""

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        if layer.call.looks_up and not layer.is_embedding:
            yield cls(layer.prefix, str(layer.private))  # type: ignore[call-arg]


@dataclass(frozen=True)
class Nvfp4Embedding(EmbeddingCheck):
    """Rows are looked up one by one, which the tiles of packed scales do not allow: tables are INT8."""

    message = "Unsupported quantized embedding marker for {prefix!r}: {marker}"
    sites = at(226, "ComfyNvfp4Config.get_quant_method", NVFP4_FILE)
    reason = "{prefix!r} is looked up as an embedding table, and its marker is not that of an INT8 one"
    requires = "int8_tensorwise without convrot for an embedding table"
    handlers = ("comfy_nvfp4",)
    prefix: str
    marker: str

    @classmethod
    def example(cls) -> ComfyCall:
        return example({"format": NVFP4}, nvfp4(128, 64), x=TensorSpec((4,), DType.I64), layer=PREFIX)


@dataclass(frozen=True)
class W4a8Embedding(EmbeddingCheck):
    """Rows are looked up one by one, and rotated rows would have to be rotated back: tables are INT8."""

    message = "Unsupported quantized embedding marker for {prefix!r}: {marker}"
    sites = at(97, "KitchenW4A8Config.get_quant_method", W4A8_CONFIG)
    reason = "{prefix!r} is looked up as an embedding table, and its marker is not that of an INT8 one"
    requires = "int8_tensorwise without convrot for an embedding table"
    handlers = ("kitchen_w4a8",)
    prefix: str
    marker: str

    @classmethod
    def example(cls) -> ComfyCall:
        return example(ASYMMETRIC, w4a8(8, 256), x=TensorSpec((4,), DType.I64), layer=PREFIX)


class LinearCheck(UseCheck):
    """A table that is given activations instead of row numbers."""

    of = (INT8,)

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        call = layer.call
        if call.x is not None and call.x.dtype.kind is Kind.FLOAT and layer.is_embedding:
            yield cls(layer.prefix)  # type: ignore[call-arg]


@dataclass(frozen=True)
class Nvfp4Linear(LinearCheck):
    """An INT8 table has no product of its own: a linear in a file of NVFP4 layers is NVFP4 or unquantized."""

    message = "Unsupported quantized linear marker for {prefix!r}"
    sites = at(238, "ComfyNvfp4Config.get_quant_method", NVFP4_FILE)
    reason = "{prefix!r} is used as a linear, and its marker is that of an INT8 embedding table"
    requires = "row numbers for an INT8 embedding table"
    handlers = ("comfy_nvfp4",)
    prefix: str

    @classmethod
    def example(cls) -> ComfyCall:
        return table({"format": NVFP4}, nvfp4(128, 64))


@dataclass(frozen=True)
class W4a8Linear(LinearCheck):
    """An INT8 table has no product of its own: a linear in a file of W4A8 layers is W4A8 or unquantized."""

    message = "Unsupported quantized linear marker for {prefix!r}"
    sites = at(109, "KitchenW4A8Config.get_quant_method", W4A8_CONFIG)
    reason = "{prefix!r} is used as a linear, and its marker is that of an INT8 embedding table"
    requires = "row numbers for an INT8 embedding table"
    handlers = ("kitchen_w4a8",)
    prefix: str

    @classmethod
    def example(cls) -> ComfyCall:
        return table(ASYMMETRIC, w4a8(8, 256))


@dataclass(frozen=True)
class EmbeddingAsLinear(LinearCheck):
    """A table that is tied to the output layer would be multiplied with; its kernel looks rows up and no
    more.
    """

    raises = NotImplementedError
    message = "Comfy INT8 embeddings support lookup only"
    formerly = ("Comfy INT8 embedding weights support lookup only",)
    sites = at(78, "ComfyInt8EmbeddingMethod.apply", INT8_FILE)
    reason = "{prefix!r} is an INT8 embedding table and x is an activation; only row numbers can be looked up"
    requires = "row numbers for an INT8 embedding table"
    handlers = ("convrot_int8",)
    prefix: str = aside()

    @classmethod
    def example(cls) -> ComfyCall:
        return example({"format": INT8}, int8(32, 64), x=TensorSpec((2, 64), DType.BF16))


class ActivationTypeCheck(UseCheck):
    """A check of the activation of a rotated INT8 linear."""

    looks_at = ("x.dtype",)
    category = "dtype"
    of = (INT8,)
    handlers = ("convrot_int8", "kitchen_w4a4")
    library: ClassVar[str]
    types: ClassVar[tuple[DType, ...]]

    @classmethod
    def concerns(cls, layer: Layer, /) -> bool:
        if not super().concerns(layer) or layer.is_embedding or layer.call.looks_up:
            return False
        return layer.marker.get("convrot_groupsize") in ROTATIONS and backend_of(layer) == cls.library

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        x = layer.call.x
        if x is not None and x.dtype not in cls.types:
            yield cls(Torch(x.dtype))  # type: ignore[call-arg]

    def describe_actual(self, layer: Layer, /) -> str:
        return f"x is {layer.call.x}"

    def fixes(self, layer: Layer, /) -> Iterator[Fix[ComfyCall]]:
        yield Fix(
            "Convert x to bfloat16",
            layer.call.with_dtype("x", DType.BF16),
            safe=True,
            note="8 bits of fraction stay",
        )


@dataclass(frozen=True)
class Int8ActivationType(ActivationTypeCheck):
    """The kernel writes its output in x's own type, of three that are compiled."""

    message = "convrot_int8 does not support activation dtype {x.dtype}"
    sites = at(184, "ConvRotInt8ComfyKitchenLinearMethod.apply", KITCHEN_FILE)
    reason = "x is {dtype}; bfloat16, float16 or float32 is needed"
    requires = "x bfloat16, float16 or float32"
    library = "comfy_kitchen"
    types = FLOATS
    dtype: Torch

    @classmethod
    def example(cls) -> ComfyCall:
        return example(ROTATED, int8(8, 256), x=TensorSpec((2, 256), DType.F64))


@dataclass(frozen=True)
class JitActivationType(ActivationTypeCheck):
    """The compiled operations take bfloat16 alone; float16 is converted to it and back."""

    message = "convrot_int8 backend jit does not support activation dtype {x.dtype}"
    sites = at(155, "_as_rows", JIT_FILE)
    reason = "x is {dtype}; bfloat16 or float16 is needed"
    requires = "x bfloat16 or float16"
    library = "jit"
    types = FLOATS[:2]
    dtype: Torch

    @classmethod
    def example(cls) -> ComfyCall:
        return example(ROTATED, int8(8, 256), x=TensorSpec((2, 256), DType.F32), backend="jit")


def table(marker: Mapping[str, Any], tensors: Mapping[str, Header]) -> ComfyCall:
    """A call that sends an activation through the embedding table beside a layer."""
    held = {PREFIX: (marker, tensors), TABLE: ({"format": INT8}, int8(32, 64))}
    return ComfyCall(file(held), x=TensorSpec((2, 64), DType.BF16), layer=TABLE)


METHOD_USES = (Nvfp4Embedding, Nvfp4Linear, W4a8Embedding, W4a8Linear)
APPLIED = (Int8ActivationType, JitActivationType, EmbeddingAsLinear)
