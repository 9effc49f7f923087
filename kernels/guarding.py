"""Memory around and between a call's tensors, watched: what a kernel writes where it must not is seen.

Every built tensor lies between GUARD bytes of poison on either side, in a storage of its own. Before a call
the storages are copied; afterwards bytes that belong to no element of an output must be what they were, and
those of inputs too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kernels.spec import BASE_ALIGNMENT

POISON = 0xA5
"""Byte that fills memory to which nothing was assigned, so that an element nobody wrote shows."""

GUARD = 1 << 16
"""Bytes of poison on either side of a tensor's storage."""

LARGE = 1 << 26
"""Bytes of a storage beyond which only its ends are watched."""

_ALLOCATORS = (torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty)


@dataclass(frozen=True, slots=True)
class Breach:
    """Bytes that a call changed and must not have.

    tensor   the argument, or the result, by name
    where    outside the tensor, between its elements, or elements of it, where it is an input
    count    bytes
    first    the first of them, counted in bytes from the tensor's first element
    """

    tensor: str
    where: str
    count: int
    first: int

    def __str__(self) -> str:
        place = f"{-self.first} before" if self.first < 0 else f"{self.first} behind"
        return (
            f"{self.count:,} bytes {self.where} of {self.tensor} were written, "
            f"the first {place} where it begins"
        )


def guarded(nbytes: int, device: torch.device | str) -> torch.Tensor:
    """Poisoned bytes, aligned as CUDA's caching allocator aligns, with a guard on either side."""
    raw = torch.full((nbytes + 2 * GUARD + BASE_ALIGNMENT,), POISON, dtype=torch.uint8, device=device)
    start = GUARD + -(raw.data_ptr() + GUARD) % BASE_ALIGNMENT
    return raw[start : start + nbytes]


class Watch:
    """Watches tensors during a call: make it before, ask `breaches` after.

    written    names of those whose elements the call may write
    """

    def __init__(self, tensors: Mapping[str, Any], written: Collection[str]) -> None:
        self._written = frozenset(written)
        self._parts = [
            (name, tensor, start, part, part.clone())
            for name, tensor in tensors.items()
            if isinstance(tensor, torch.Tensor)
            for start, part in _watched(tensor)
        ]

    def breaches(self) -> tuple[Breach, ...]:
        """What was changed and must not have been; reads the tensors' memory once more."""
        changed = []
        for name, tensor, start, part, before in self._parts:
            if part.device.type == "cpu" and self._untouched(name, tensor, start, part, before):
                continue  # on a GPU each answer would be waited for
            mask = part != before
            if name in self._written:
                mask &= ~elements(tensor)[start : start + part.numel()]
            changed.append((name, tensor, start, mask))
        if not changed:
            return ()
        flags = torch.stack([mask.any().to("cpu") for *_, mask in changed]).tolist()
        return tuple(
            breach
            for (name, tensor, start, mask), flag in zip(changed, flags, strict=True)
            if flag
            for breach in _described(name, tensor, mask.nonzero().flatten() + start)
        )

    def _untouched(
        self, name: str, tensor: torch.Tensor, start: int, part: torch.Tensor, before: torch.Tensor
    ) -> bool:
        """Whether nothing changed that must not, told without looking at each byte: False is no verdict."""
        if torch.equal(part, before):
            return True
        if name not in self._written or start or (bounds := _dense(tensor)) is None:
            return False
        first, end = bounds
        return torch.equal(part[:first], before[:first]) and torch.equal(part[end:], before[end:])


def _dense(tensor: torch.Tensor) -> tuple[int, int] | None:
    """(first, end) of the bytes of a tensor in its storage where no others lie between, else None."""
    if not tensor.is_contiguous():
        return None
    first = int(tensor.storage_offset()) * tensor.element_size()
    return first, first + tensor.numel() * tensor.element_size()


def elements(tensor: torch.Tensor) -> torch.Tensor:
    """Which bytes of its storage are elements of a tensor."""
    size = tensor.element_size()
    mask = torch.zeros(tensor.untyped_storage().nbytes(), dtype=torch.bool, device=tensor.device)
    if tensor.numel():
        strides = (*(step * size for step in tensor.stride()), 1)
        mask.as_strided((*tensor.shape, size), strides, tensor.storage_offset() * size).fill_(True)
    return mask


class Allocating(TorchFunctionMode):
    """Within it, tensors that torch allocates without values are guarded and poisoned; `made` lists them."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func not in _ALLOCATORS or made.device.type == "meta" or not made.numel():
            return made
        extent = 1 + sum((size - 1) * step for size, step in zip(made.shape, made.stride(), strict=True))
        storage = guarded(extent * made.element_size(), made.device).view(made.dtype)
        tensor = storage.as_strided(made.shape, made.stride(), storage.storage_offset())
        self.made.append(tensor)
        return tensor

    def breaches(self, names: Mapping[int, str]) -> Iterator[Breach]:
        """Poison around the tensors made that is gone; `names` of those that are known, by address."""
        for tensor in self.made:
            if (bounds := _dense(tensor)) is not None:
                around = _bytes(tensor)[: bounds[0]], _bytes(tensor)[bounds[1] :]
                if all(bool((each == POISON).all()) for each in around):
                    continue
            mask = (_bytes(tensor) != POISON) & ~elements(tensor)
            if bool(mask.any()):
                places = mask.nonzero().flatten()
                yield from _described(names.get(tensor.data_ptr(), "a result"), tensor, places)


def unwritten(actual: torch.Tensor, expected: torch.Tensor) -> int:
    """Elements that still hold poison where the reference has something else."""
    if actual.shape != expected.shape:
        return 0
    size = actual.element_size()
    held, wanted = (
        row_major_bytes(tensor.detach().to(actual.dtype)).reshape(-1, size) for tensor in (actual, expected)
    )
    if held.device == wanted.device and torch.equal(held, wanted):
        return 0
    poisoned = (held == POISON).all(dim=1)
    return int((poisoned.to(wanted.device) & (wanted != POISON).any(dim=1)).sum())


def row_major_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's elements in row-major order."""
    # A copy even of a dense one: dimensions of size 1 may carry any stride, which view() refuses.
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of a tensor's storage."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _watched(tensor: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """(first byte, bytes) of the parts of a storage that are watched: all of it, of a large one its ends."""
    held = _bytes(tensor)
    if held.numel() <= LARGE:
        yield 0, held
    else:
        yield 0, held[:GUARD]
        yield held.numel() - GUARD, held[-GUARD:]


def _described(name: str, tensor: torch.Tensor, places: torch.Tensor) -> Iterator[Breach]:
    """Changed bytes of a storage, by where they lie."""
    size = tensor.element_size()
    start = tensor.storage_offset() * size
    extent = 1 + sum((count - 1) * step for count, step in zip(tensor.shape, tensor.stride(), strict=True))
    end = start + (extent * size if tensor.numel() else 0)
    inside = (places >= start) & (places < end)
    own = inside & elements(tensor)[places]
    for where, chosen in (
        ("outside", places[~inside]),
        ("between the elements", places[inside & ~own]),
        ("that are elements", places[own]),
    ):
        if chosen.numel():
            yield Breach(name, where, int(chosen.numel()), int(chosen[0]) - int(start))
