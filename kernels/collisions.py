"""What to do where two layers of a checkpoint get one name in the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from kernels.checking import Fix
from kernels.checkpoint import NameMapper


class Mapped(Protocol):
    """A layer under its mapped name; `taken_by` is the prefix that had the name before it, or None."""

    @property
    def prefix(self) -> str: ...
    @property
    def mapped(self) -> str: ...
    @property
    def taken_by(self) -> str | None: ...
    @property
    def call(self) -> Any:
        """The call, with `layers` in order and a `name_mapper`."""


def mapped_apart(layer: Mapped, parameter: str) -> Iterator[Fix[Any]]:
    """Calls whose layers keep names of their own: with the first collision only, since they resolve them all.

    `parameter` says what the format calls a parameter of several layers.
    """
    call = layer.call
    collisions: Sequence[Mapped] = [other for other in call.layers if other.taken_by is not None]
    if layer.prefix != collisions[0].prefix:
        return
    shared = {other.mapped for other in collisions}
    note = (
        f"the model needs a parameter under each of these names: a {parameter} one takes no quantized layers"
    )
    kept = {prefix: mapped for prefix, mapped in (call.name_mapper or {}).items() if mapped not in shared}
    apart = call.replace(name_mapper=NameMapper(kept))
    if kept and not any(other.taken_by for other in apart.layers):
        yield Fix(f"Map no layer to {min(shared)!r}", apart, safe=False, note=note)
    yield Fix("Map no names", call.replace(name_mapper=None), safe=False, note=note)
