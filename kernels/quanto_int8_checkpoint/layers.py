"""What upstream's inspection refuses in a layer, in its order; it finishes a layer before the next one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernels.checking import Fix, aside
from kernels.checkpoint import NameMapper
from kernels.collisions import mapped_apart
from kernels.quanto_int8_checkpoint.entry_checks import ENTRY_CHECKS
from kernels.quanto_int8_checkpoint.layer_check import LayerCheck
from kernels.quanto_int8_checkpoint.scale_checks import SCALE_CHECKS
from kernels.quanto_int8_checkpoint.signature import PREFIX, VALID, Layer, QuantoCall, at, quanto
from kernels.quanto_int8_checkpoint.weight_checks import WEIGHT_CHECKS


@dataclass(frozen=True)
class LayersCollide(LayerCheck):
    """Each layer needs a parameter of its own in the model; two under one name would overwrite each other."""

    message = "Quanto layers collide after parameter mapping at {mapped_prefix!r}"
    sites = at(186)
    reason = "{taken_by!r} and {prefix!r} are both mapped to {mapped!r}"
    looks_at = ("name_mapper", "checkpoint.metadata")
    requires = "a mapping that gives every layer another name"
    category = "values"
    mapped: str
    prefix: str = aside()
    taken_by: str = aside()

    @classmethod
    def find(cls, layer: Layer, /) -> Iterator[Self]:
        if layer.taken_by is not None:
            yield cls(layer.mapped, layer.prefix, layer.taken_by)

    def describe_actual(self, layer: Layer, /) -> str:
        return f"{self.taken_by!r} → {self.mapped!r}, {self.prefix!r} → {self.mapped!r}"

    def fixes(self, layer: Layer, /) -> Iterator[Fix[QuantoCall]]:
        yield from mapped_apart(layer, "merged")

    @classmethod
    def example(cls) -> QuantoCall:
        names = [PREFIX.replace("up_proj", part) for part in ("gate_proj", "up_proj")]
        merged = PREFIX.replace("up_proj", "gate_up_proj")
        return VALID.replace(
            checkpoint=quanto(names, 3, 2), name_mapper=NameMapper(dict.fromkeys(names, merged))
        )


LAYER_CHECKS = (*ENTRY_CHECKS, *WEIGHT_CHECKS, *SCALE_CHECKS, LayersCollide)
