"""What upstream's inspection refuses in a layer's entry of the map, in its order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from kernels.checking import aside
from kernels.quanto_int8_checkpoint.layer_check import LayerCheck
from kernels.quanto_int8_checkpoint.quantization_map import NO_ACTIVATIONS, QINT8, entry
from kernels.quanto_int8_checkpoint.repairs import Change
from kernels.quanto_int8_checkpoint.signature import PREFIX, VALID, Layer, QuantoCall, at


class EntryCheck(LayerCheck):
    """A check of the layer's entry in the map."""

    looks_at = ("checkpoint.metadata",)

    @classmethod
    def evaluable(cls, layer: Layer, /) -> bool:
        return isinstance(layer.declared, dict)

    def describe_actual(self, layer: Layer, /) -> str:
        return f"the map's entry of {layer.prefix!r} is {layer.declared!r}"


@dataclass(frozen=True)
class WeightTypeUnsupported(EntryCheck):
    """The linear unpacks one code a byte with one scale a row; Quanto's other types are packed otherwise."""

    message = "Unsupported Quanto weight type for {prefix!r}: {quantization.get('weights')!r}"
    sites = at(130)
    reason = "weights of {prefix!r} is {weights!r} in the map; only the text 'qint8' is supported"
    requires = "weights: qint8 in the layer's entry"
    prefix: str
    weights: Any

    @classmethod
    def find(cls, layer: Layer, /) -> Iterator[Self]:
        weights = layer.declared.get("weights")
        if weights != QINT8:
            yield cls(layer.prefix, weights)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        told = layer.declared.get("weights")
        entries = {layer.prefix: {**layer.declared, "weights": QINT8}}
        if told is None and layer.is_qint8:
            yield Change(
                f"State the weights of {layer.prefix!r} as qint8, as its tensors are", True, entries=entries
            )
        else:
            note = (
                f"correct only where the tensors hold qint8 codes, not {told}; else quantize again with qint8"
            )
            yield Change(f"State the weights of {layer.prefix!r} as qint8", False, note, entries=entries)

    @classmethod
    def example(cls) -> QuantoCall:
        return VALID.with_map({PREFIX: entry(weights="qint4")})


@dataclass(frozen=True)
class ActivationsQuantized(EntryCheck):
    """The linear takes activations as they are; calibrated input and output scales have no place in it."""

    message = "Quanto activation quantization is not supported for {prefix!r}"
    sites = at(135)
    reason = (
        "activations of {prefix!r} is {activations!r} in the map; it must be there and be the text 'none'"
    )
    requires = "activations: none in the layer's entry, as text"
    prefix: str
    activations: Any = aside()

    @classmethod
    def find(cls, layer: Layer, /) -> Iterator[Self]:
        activations = layer.declared.get("activations")
        if activations != NO_ACTIVATIONS:
            yield cls(layer.prefix, activations)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        entries = {layer.prefix: {**layer.declared, "activations": NO_ACTIVATIONS}}
        if layer.declared.get("activations") is None:
            yield Change(f"Write activations of {layer.prefix!r} as the text none", True, entries=entries)
        else:
            note = "the layer then runs on unquantized activations, and its input and output scales must be 1"
            yield Change(
                f"Leave the activations of {layer.prefix!r} unquantized", False, note, entries=entries
            )

    @classmethod
    def example(cls) -> QuantoCall:
        return VALID.with_map({PREFIX: entry(activations=QINT8)})


ENTRY_CHECKS = (WeightTypeUnsupported, ActivationsQuantized)
