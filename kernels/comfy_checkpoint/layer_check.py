"""A check of one marked layer: of some formats, and with repairs that are made in every layer that needs
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, Self

from kernels.checking import Category, Check, Fix
from kernels.comfy_checkpoint.layers import Layer
from kernels.comfy_checkpoint.repairs import NOTHING, Change, applied
from kernels.comfy_checkpoint.signature import ComfyCall


class LayerCheck(Check[Layer]):
    """Layers of other formats pass; `faults` are one layer's violations, `repairs` its own."""

    raises: ClassVar[type[Exception]] = ValueError
    looks_at: ClassVar[tuple[str, ...]] = ("checkpoint.tensors",)
    category: ClassVar[Category] = "format"
    of: ClassVar[tuple[str, ...]]
    """Formats of the layers that it is about."""
    needs: ClassVar[tuple[str, ...]] = ("weight",)
    """Tensors without which it cannot be evaluated."""
    shows: ClassVar[tuple[str, ...]] = ("weight", "weight_scale")
    """Tensors that the violation is about."""

    @classmethod
    def concerns(cls, layer: Layer, /) -> bool:
        """Whether the check is about this layer at all."""
        return layer.format in cls.of

    @classmethod
    def evaluable(cls, layer: Layer, /) -> bool:
        return not cls.concerns(layer) or layer.has(*cls.needs)

    @classmethod
    def find(cls, layer: Layer, /) -> Iterator[Self]:
        if cls.concerns(layer):
            yield from cls.faults(layer)

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        """The violations in a layer that the check concerns."""
        raise NotImplementedError(cls.__name__)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        """Changes after which the layer passes, the best first."""
        return iter(())

    def fixes(self, layer: Layer, /) -> Iterator[Fix[ComfyCall]]:
        """What the first violation offers repairs all layers; the others offer nothing."""
        check = type(self)
        failing = (other for other in layer.call.layers if check.evaluable(other) and any(check.find(other)))
        first = next(failing)
        if first.prefix != layer.prefix or next(check.find(first)) != self:
            return
        others = list(failing)
        best = [(other.prefix, next(iter(self.repairs(other)), None)) for other in others]
        known = [(prefix, change) for prefix, change in best if change is not None]
        if len(known) < len(others):
            return
        for change in self.repairs(layer):
            if change is NOTHING:
                continue
            changes = [(layer.prefix, change), *known]
            notes = dict.fromkeys(change.note for _, change in changes if change.note)
            more = f", and so in {len(others)} more layer{'s' * (len(others) > 1)}" if others else ""
            yield Fix(
                change.title + more,
                applied(layer.call, changes),
                safe=all(change.safe for _, change in changes),
                note="; ".join(notes),
            )

    def describe_actual(self, layer: Layer, /) -> str:
        return layer.describe(*self.shows)


def of_formats(*checks: type[LayerCheck]) -> Callable[[Layer], tuple[type[LayerCheck], ...]]:
    """Which of the checks are about a layer of its format: a file has thousands of layers of one."""
    by_format: dict[str, tuple[type[LayerCheck], ...]] = {}
    for name in {name for check in checks for name in check.of}:
        by_format[name] = tuple(check for check in checks if name in check.of)

    def select(layer: Layer) -> tuple[type[LayerCheck], ...]:
        found = layer.format
        return by_format.get(found, ()) if isinstance(found, str) else ()

    return select


class MarkerCheck(LayerCheck):
    """A check of what the layer's marker says."""

    looks_at = ("checkpoint.metadata", "checkpoint.tensors")
    needs = ()

    def describe_actual(self, layer: Layer, /) -> str:
        return f"the marker of {layer.prefix!r} is {dict(layer.marker)!r}"
