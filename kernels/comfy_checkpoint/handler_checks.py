"""What upstream refuses once the inspection is through: formats without a method, GPUs too old for one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from kernels.checking import Check, Fix, aside
from kernels.comfy_checkpoint.layouts import nvfp4, w4a4, w4a8
from kernels.comfy_checkpoint.markers import INSPECTED, MXFP8, W4A4
from kernels.comfy_checkpoint.repairs import is_certain, with_markers
from kernels.comfy_checkpoint.signature import ASYMMETRIC, ComfyCall, example
from kernels.comfy_checkpoint.sites import W4A4_CONFIG, W4A8_CONFIG, at
from kernels.wording import count


@dataclass(frozen=True)
class FormatsUnsupported(Check[ComfyCall]):
    """One method loads a whole file, so its formats have to be one, or one with INT8 companions."""

    raises = NotImplementedError
    message = "Unsupported Comfy quantization format(s): {', '.join(formats)}"
    sites = at(416, "resolve_comfy_checkpoint_quantization")
    reason = "no method loads a file of {formats}{hint}"
    looks_at = ("checkpoint.metadata", "checkpoint.tensors")
    requires = (
        "one format for all layers: int8_tensorwise, float8_e4m3fn, mxfp8, nvfp4, asym_w4a8_int8 or "
        "convrot_w4a4; "
        "the last three also with int8_tensorwise"
    )
    category = "format"
    formats: str
    hint: str = aside()

    @classmethod
    def find(cls, call: ComfyCall, /) -> Iterator[Self]:
        if call.layers and call.handler is None:
            unknown = [name for name in call.formats if name not in (*INSPECTED, MXFP8)]
            hint = f"; {', '.join(unknown)} is no format that is known" if unknown else " together"
            yield cls(", ".join(call.formats), hint)

    def describe_actual(self, call: ComfyCall, /) -> str:
        groups = {
            name: [layer.prefix for layer in call.layers if str(layer.format) == name]
            for name in call.formats
        }
        return "; ".join(f"{name}: {count(prefixes, 'layer')}" for name, prefixes in groups.items())

    def fixes(self, call: ComfyCall, /) -> Iterator[Fix[ComfyCall]]:
        wrong = [layer for layer in call.layers if layer.format not in (*INSPECTED, MXFP8)]
        markers: dict[str, dict[str, Any]] = {}
        spelled = True
        for layer in wrong:
            own = layer.inferred
            if own is None or own["format"] == MXFP8:
                return
            near = str(layer.format).lower().replace("-", "_")
            spelled = spelled and near == own["format"]
            markers[layer.prefix] = own
        if markers:
            formats = sorted({marker["format"] for marker in markers.values()})
            yield Fix(
                f"Write the format of {count(markers, 'layer')} as {' and '.join(formats)}",
                with_markers(call, markers),
                safe=spelled or all(map(is_certain, markers.values())),
                note="as the layers' tensors tell it",
            )

    @classmethod
    def example(cls) -> ComfyCall:
        return example({"format": "NVFP4"}, nvfp4(128, 64))


class CapabilityCheck(Check[ComfyCall]):
    """A check of the GPU that loads the file, where the call states it."""

    raises = ValueError
    looks_at: ClassVar[tuple[str, ...]] = ("capability",)
    category = "values"
    premises = (FormatsUnsupported,)
    handler: ClassVar[str]
    least: ClassVar[float]

    @classmethod
    def below(cls, call: ComfyCall) -> float | None:
        """The capability, where the file's method needs a newer GPU."""
        found = call.compute_capability
        if call.handler != cls.handler or found is None or found >= round(cls.least * 10):
            return None
        return found / 10

    def remedy(self, call: ComfyCall, /) -> str:
        return (
            f"no edit of the file helps: it takes another GPU, of compute capability {self.least} or newer, "
            "or the unquantized weights"
        )


@dataclass(frozen=True)
class W4a8Capability(CapabilityCheck):
    """The kernel's asynchronous copies came with Ampere."""

    message = (
        "Serialized W4A8 checkpoints require CUDA compute capability >= "
        "{self.get_min_capability() / 10:.1f}; got {capability.to_int() / 10:.1f}"
    )
    sites = at(44, "KitchenW4A8Config.__init__", W4A8_CONFIG)
    reason = "the GPU has compute capability {got}; W4A8 files need {needed} or newer"
    requires = "compute capability 8.0 or newer"
    handler = "kitchen_w4a8"
    least = 8.0
    needed: float
    got: float

    @classmethod
    def find(cls, call: ComfyCall, /) -> Iterator[Self]:
        found = cls.below(call)
        if found is not None:
            yield cls(cls.least, found)

    @classmethod
    def example(cls) -> ComfyCall:
        return example(ASYMMETRIC, w4a8(8, 256), capability=7.5)


@dataclass(frozen=True)
class W4a4Capability(CapabilityCheck):
    """4-bit integer tensor cores came with Turing."""

    message = (
        "Serialized W4A4 checkpoints require CUDA compute capability >= "
        "{self.get_min_capability() / 10:.1f}; got {capability.to_int() / 10:.1f}"
    )
    sites = at(44, "KitchenW4A4Config.__init__", W4A4_CONFIG)
    reason = "the GPU has compute capability {got}; W4A4 files need {needed} or newer"
    requires = "compute capability 7.5 or newer"
    handler = "kitchen_w4a4"
    least = 7.5
    needed: float
    got: float

    @classmethod
    def find(cls, call: ComfyCall, /) -> Iterator[Self]:
        found = cls.below(call)
        if found is not None:
            yield cls(cls.least, found)

    @classmethod
    def example(cls) -> ComfyCall:
        return example({"format": W4A4}, w4a4(8, 256), capability=7.0)
