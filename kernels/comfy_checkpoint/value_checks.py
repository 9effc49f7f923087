"""What upstream never looks at: the numbers in a layer's scales, where the description has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, Self

from kernels.checking import Fix, Severity, aside
from kernels.checkpoint import Header
from kernels.comfy_checkpoint.beyond_checks import ACTIVATIONS, BeyondCheck
from kernels.comfy_checkpoint.build_checks import FULL_PRECISION
from kernels.comfy_checkpoint.layers import Layer
from kernels.comfy_checkpoint.layouts import fp8
from kernels.comfy_checkpoint.markers import FP8, INSPECTED, INT8, NVFP4
from kernels.comfy_checkpoint.repairs import EXPORT, Change
from kernels.comfy_checkpoint.signature import PREFIX, VALID, ComfyCall, example
from kernels.dtypes import DType
from kernels.spec import TensorSpec
from kernels.stored import largest_code, proved, proved_rows, stored
from kernels.values import Full, bounds

SCALES = (
    "weight_scale",
    "weight_scale_2",
    "weight_s_rel",
    "weight_s_channel",
    "pre_quant_scale",
    "input_scale",
)


@dataclass(frozen=True)
class ScaleNotFinite(BeyondCheck):
    """A scale multiplies whole rows or blocks: one NaN in it is a NaN in every output that meets them."""

    message = "Comfy layer scale {name!r} holds {got}, which is not finite"
    reason = (
        "{described} in {name!r} is {got} in its type: every weight that it scales, and every output that "
        "meets one, is NaN or infinite"
    )
    looks_at = ("checkpoint.tensors",)
    requires = "finite scales"
    category = "values"
    reads_values: ClassVar[bool] = True
    of = INSPECTED
    needs = ()
    shows = SCALES[:4]
    name: str
    got: float
    described: float = aside()
    suffix: str = aside()

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        for suffix in SCALES:
            scale = layer.tensor(suffix)
            for told, held in proved(scale):
                if not isfinite(held):
                    yield cls(layer.name(suffix), held, told, suffix)
                    return

    def describe_actual(self, layer: Layer, /) -> str:
        return layer.describe(self.suffix)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        wrong = {
            layer.name(suffix): Header(scale.dtype, scale.shape)
            for suffix in SCALES
            if (scale := layer.tensor(suffix)) is not None
            and not all(isfinite(held) for _, held in proved(scale))
        }
        yield Change(f"Take {' and '.join(map(repr, wrong))} from the export", False, EXPORT, wrong)

    @classmethod
    def example(cls) -> ComfyCall:
        broken = VALID.checkpoint.with_tensor(f"{PREFIX}.weight_scale_2", Header("F32", (), Full(1e39)))
        return VALID.with_checkpoint(broken)


@dataclass(frozen=True)
class TensorScaleIsZero(BeyondCheck):
    """A scale of 0 makes the whole weight 0; a loader that lost the tensor leaves it so."""

    message = "NVFP4 layer {prefix!r} has a weight_scale_2 of 0"
    reason = "weight_scale_2 of {prefix!r} is 0, so that every weight of the layer is 0"
    looks_at = ("checkpoint.tensors",)
    requires = "weight_scale_2 greater than 0"
    category = "values"
    severity = Severity.WARNING
    reads_values: ClassVar[bool] = True
    of = (NVFP4,)
    needs = ("weight_scale_2",)
    shows = ("weight_scale_2",)
    prefix: str

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        scale = layer.held("weight_scale_2")
        if bounds(scale.values, scale.shape) == (0, 0):
            yield cls(layer.prefix)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        name = layer.name("weight_scale_2")
        yield Change(f"Take {name!r} from the export", False, EXPORT, {name: Header("F32", ())})

    @classmethod
    def example(cls) -> ComfyCall:
        zero = VALID.checkpoint.with_tensor(f"{PREFIX}.weight_scale_2", Header("F32", (), Full(0.0)))
        return VALID.with_checkpoint(zero)


E4M3_LARGEST, E2M1_LARGEST, INT8_LARGEST, INT8_LIMIT = 448, 6, 127, 128
"""Largest magnitudes of codes, which an export reaches: it divides by max(|w|) over them; int8 has 128."""


@dataclass(frozen=True)
class ScaleOverflowsWeights(BeyondCheck):
    """Layers that are multiplied in full precision, and rows of a table, are unpacked in the activation's
    type, where a code times its scale may be beyond the largest number.
    """

    message = "Comfy layer scale {name!r}: {described} times {code} is {got} in {target}"
    reason = (
        "weights of {prefix!r} are unpacked in {target} before they are multiplied: codes reach {code}, and "
        "that times {described} is {got} there, so that outputs become infinite or NaN without an error"
    )
    looks_at = ("checkpoint.tensors", "x.dtype")
    requires = "scales whose products with their codes the activation's type, or else bfloat16, holds"
    category = "values"
    reads_values: ClassVar[bool] = True
    of = (FP8, NVFP4, INT8)
    needs = ("weight", "weight_scale")
    shows = ("weight", "weight_scale", "weight_scale_2")
    name: str
    described: float
    code: int
    got: float
    target: str
    prefix: str = aside()

    @classmethod
    def concerns(cls, layer: Layer, /) -> bool:
        """Other layers keep their scales in float32 and apply them to sums."""
        unpacked = layer.is_embedding if layer.format == INT8 else bool(layer.marker.get(FULL_PRECISION))
        return super().concerns(layer) and unpacked

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        target = _activation_type(layer)
        for suffix, described, code, got in _unpacked(layer, target):
            if not isfinite(got):
                yield cls(layer.name(suffix), described, code, got, target, layer.prefix)
                return

    def describe_actual(self, layer: Layer, /) -> str:
        return ", ".join(
            f"{layer.name(suffix)!r} {layer.tensor(suffix)}" for suffix in self.shows if layer.has(suffix)
        )

    def fixes(self, layer: Layer, /) -> Iterator[Fix[ComfyCall]]:
        call, check = layer.call, type(self)
        first = next(other for other in call.layers if check.evaluable(other) and any(check.find(other)))
        if first.prefix == layer.prefix and call.x is not None and call.x.dtype in ACTIVATIONS:
            for dtype, safe, note in (
                (DType.F32, True, "weights take twice the memory"),
                (DType.BF16, False, "activations keep 8 bits"),
            ):
                if call.x.dtype is not dtype:
                    wide = call.with_dtype("x", dtype)
                    yield Fix(f"Run the model in {dtype}", wide, safe=safe, note=note)
        yield from super().fixes(layer)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        suffix = "weight_scale_2" if layer.format == NVFP4 else "weight_scale"
        name, scale = layer.name(suffix), layer.held(suffix)
        open_ = {name: Header(scale.dtype, scale.shape)}
        yield Change(f"Take {name!r} from the export", False, EXPORT, open_)

    @classmethod
    def example(cls) -> ComfyCall:
        marker = {"format": FP8, FULL_PRECISION: True}
        tensors = {**fp8(8, 64), "weight_scale": Header("F32", (), Full(256.0))}
        return example(marker, tensors, x=TensorSpec((2, 64), DType.F16))


def _activation_type(layer: Layer) -> str:
    """Safetensors' name of the type that weights are unpacked in: x's, else the models' usual one."""
    x = layer.call.x
    return str((x.dtype if x is not None and x.dtype in ACTIVATIONS else DType.BF16).safetensors)


def _unpacked(layer: Layer, target: str) -> Iterator[tuple[str, float, int, float]]:
    """(scale's suffix, a number described in it, what codes reach, their product as the method rounds it)."""
    weight = layer.held("weight")
    if layer.format == NVFP4:
        scale, blocks = layer.tensor("weight_scale_2"), layer.held("weight_scale")
        if (
            weight.values is None and blocks.values is None
        ):  # which code meets which block is told by an export
            for described, held in filter(lambda pair: isfinite(pair[1]), proved(scale)):
                block = stored(E4M3_LARGEST * held, "F32")
                got = stored(stored(E2M1_LARGEST * block, "F32"), target)
                yield "weight_scale_2", described, E4M3_LARGEST * E2M1_LARGEST, got
        return
    code_of, limit = largest_code(weight, INT8_LARGEST), INT8_LIMIT
    if layer.format == FP8:
        code_of, limit = largest_code(weight, E4M3_LARGEST), E4M3_LARGEST
    in_float32 = layer.format == INT8 and layer.held("weight_scale").shape == ()
    for rows, described, held in proved_rows(layer.held("weight_scale")):
        if not isfinite(held):
            continue
        code = min(max(map(code_of, rows if layer.format == INT8 else (None,))), limit)
        got = (
            stored(stored(code * held, "F32"), target)
            if in_float32
            else stored(code * stored(held, target), target)
        )
        yield "weight_scale", described, code, got


VALUE_CHECKS = (ScaleNotFinite, TensorScaleIsZero, ScaleOverflowsWeights)
