"""What upstream never looks at: the numbers in a layer's scales, where the description has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, Self

from kernels.checking import Severity, aside
from kernels.checkpoint import Header
from kernels.comfy_checkpoint.beyond_checks import BeyondCheck
from kernels.comfy_checkpoint.layers import Layer
from kernels.comfy_checkpoint.markers import INSPECTED, NVFP4
from kernels.comfy_checkpoint.repairs import EXPORT, Change
from kernels.comfy_checkpoint.signature import PREFIX, VALID, ComfyCall
from kernels.stored import proved
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


VALUE_CHECKS = (ScaleNotFinite, TensorScaleIsZero)
