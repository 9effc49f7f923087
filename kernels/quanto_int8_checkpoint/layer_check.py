"""A check of one layer, whose repairs are made in every layer that needs them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from kernels.checking import Category, Check, Fix
from kernels.quanto_int8_checkpoint.repairs import Change, applied
from kernels.quanto_int8_checkpoint.signature import REQUIRED, Layer, QuantoCall


class LayerCheck(Check[Layer]):
    """A check of one layer; `repairs` are a layer's own, `fixes` repair every layer that needs it."""

    raises = ValueError
    looks_at: ClassVar[tuple[str, ...]] = ("checkpoint.tensors",)
    category: ClassVar[Category] = "format"
    shows: ClassVar[tuple[str, ...]] = REQUIRED
    """Tensors that the violation is about."""

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        """Changes after which the layer passes, the best first."""
        return iter(())

    def fixes(self, layer: Layer, /) -> Iterator[Fix[QuantoCall]]:
        broken = (other for other in layer.call.layers if type(self).evaluable(other))
        failing = (other for other in broken if any(type(self).find(other)))
        first = next(failing)
        if first.prefix != layer.prefix or next(type(self).find(first)) != self:
            return  # what the first violation offers repairs them all
        others = list(failing)
        best = [next(iter(self.repairs(other)), None) for other in others]
        for change in self.repairs(layer):
            changes = [change, *(other for other in best if other is not None)]
            if len(changes) == 1 + len(others) and (call := applied(layer.call, changes)) is not None:
                more = f", and so in {len(others)} more layer{'s' * (len(others) > 1)}" if others else ""
                notes = dict.fromkeys(change.note for change in changes if change.note)
                yield Fix(change.title + more, call, safe=all(c.safe for c in changes), note="; ".join(notes))

    def describe_actual(self, layer: Layer, /) -> str:
        return layer.describe(*self.shows)
