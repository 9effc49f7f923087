"""A call's arguments built from their JSON form: tensors, types, files to open, functions that rename.

An argument is an object with one member, which says its kind: `tensor`, `dtype`, `file`, `renaming`, `list`
or `value`. Tensors get the described layout and alignment; drawn values come from a seeded generator on the
CPU, as in Faultbook's own worker, so that both see equal numbers.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ALIGNMENT = 512
"""Bytes that a described tensor's storage is aligned to, as CUDA's caching allocator gives it."""

GUARD = 1 << 16
"""Bytes of poison on either side of a tensor's storage."""

MOST_WATCHED = 1 << 27
"""Bytes of a tensor beyond which it is not watched."""

POISON = 0xA5
"""Byte that fills memory to which nothing was assigned."""

INT64 = torch.iinfo(torch.int64)


class Unbuildable(Exception):
    """An argument that cannot be built here; the message says why."""


def build(name: str, form: dict[str, Any], tensor: Callable[[str, dict[str, Any]], Any]) -> Any:
    """One argument; `tensor` builds those that are tensors. Files are written below the current folder."""
    ((kind, content),) = form.items()
    if kind == "tensor":
        return tensor(name, content)
    if kind == "dtype":
        return dtype_of(content)
    if kind == "file":
        return written(content)
    if kind == "renaming":
        return lambda name: content.get(name, name)
    if kind == "list":
        return [build(name, item, tensor) for item in content]
    return content


def dtype_of(name: str) -> torch.dtype:
    """torch's type of this name."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise Unbuildable(f"this torch has no tensors of {name}")
    return found


def written(content: dict[str, Any]) -> str:
    """Write a file below the current folder: its first bytes, pieces at their places, zeros elsewhere.

    Returns its path, relative, as messages are to print it.
    """
    name = content["name"]
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or not name:
        raise Unbuildable("a file of this name is not written")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for place, data in content["pieces"]:
                file.seek(place)
                file.write(base64.b64decode(data))
            file.truncate(content["size"])
    except (OSError, ValueError) as error:
        raise Unbuildable(f"the file cannot be written here: {error}") from error
    return str(name)


class Arena:
    """The live tensors of one call, each between guards; what a call wrote where it must not is told.

    written    names of the arguments whose elements it may write
    """

    def __init__(self, written: list[str]) -> None:
        self._written = written
        self._held: list[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def build(self, name: str, spec: dict[str, Any]) -> torch.Tensor:
        """A tensor on its device, filled as described; poisoned where no values are given."""
        dtype = dtype_of(spec["dtype"])
        size = spec["bytes"] + ALIGNMENT + 2 * GUARD
        raw = torch.full((size,), POISON, dtype=torch.uint8, device=spec["device"])
        start = GUARD + -(raw.data_ptr() + GUARD) % ALIGNMENT
        storage = raw[start : start + spec["bytes"]].view(dtype)
        shape, strides = tuple(spec["shape"]), tuple(spec["strides"])
        tensor = storage.as_strided(shape, strides, storage.storage_offset() + spec["offset"])
        if spec["values"] is not None and tensor.numel():
            fill(storage[spec["offset"] :] if spec["shared"] else tensor, spec["values"])
        if size <= MOST_WATCHED:
            self._held.append((name, tensor, raw, raw.clone()))
        return tensor

    def breaches(self) -> list[str]:
        """A sentence for each tensor around which, or in which, bytes changed that must not have."""
        return [
            told
            for name, tensor, raw, before in self._held
            if (told := self._told(name, tensor, raw, before))
        ]

    def _told(self, name: str, tensor: torch.Tensor, raw: torch.Tensor, before: torch.Tensor) -> str:
        changed = raw != before
        size = tensor.element_size()
        start = tensor.storage_offset() * size
        if name in self._written and tensor.numel():
            strides = (*(step * size for step in tensor.stride()), 1)
            changed.as_strided((*tensor.shape, size), strides, start).fill_(False)
        places = changed.nonzero().flatten()
        if not places.numel():
            return ""
        first = int(places[0]) - start
        where = f"{-first:,} before" if first < 0 else f"{first:,} behind"
        what = "" if name in self._written else ", which is only read,"
        count = f"{places.numel():,} bytes around or in {name}{what}"
        return f"{count} were written, the first {where} its beginning"


def fill(tensor: torch.Tensor, values: dict[str, Any]) -> None:
    """Write the described values in row-major order."""
    drawn = _drawn(tensor, values).to(tensor.device)
    if tensor.dtype.itemsize == 1 and tensor.dtype.is_floating_point:
        limit = torch.finfo(tensor.dtype).max
        drawn = drawn.to(torch.float32).clamp(-limit, limit)
    exponents = getattr(torch, "float8_e8m0fnu", None)
    target = tensor.view(torch.uint8) if tensor.dtype is exponents else tensor
    target.copy_(drawn.expand(tensor.shape).to(target.dtype))


def _drawn(tensor: torch.Tensor, values: dict[str, Any]) -> torch.Tensor:
    kind = values["kind"]
    generator = torch.Generator().manual_seed(values.get("seed") or 0)
    if kind == "zeros":
        return torch.zeros((), dtype=torch.float64)
    if kind == "ones":
        return torch.ones((), dtype=torch.float64)
    if kind == "full":
        return _wide([values["value"]])[0]
    if kind == "arange":
        steps: torch.Tensor = torch.arange(tensor.numel()) * _wide([values["step"]])
        return torch.add(steps, _wide([values["start"]])).reshape(tensor.shape)
    if kind == "randint":
        low = max(min(values["low"], INT64.max - 1), INT64.min)
        high = max(min(values["high"], INT64.max), low + 1)
        return torch.randint(low, high, tensor.shape, generator=generator)
    if kind == "randn":
        drawn: torch.Tensor = torch.randn(tensor.shape, generator=generator)
        return torch.add(drawn * _representable(values["std"]), _representable(values["mean"]))
    elements = list(values["text"].encode("utf-8", "replace")) if kind == "text" else _flat(values["data"])
    if kind == "text":
        elements += [0] * (tensor.numel() - len(elements))
    flat = _wide(elements or [0])
    return flat.repeat(-(-tensor.numel() // flat.numel()))[: tensor.numel()].reshape(tensor.shape)


def _flat(items: list[Any]) -> list[Any]:
    return [each for item in items for each in (_flat(item) if isinstance(item, list) else [item])]


def _wide(numbers: list[Any]) -> torch.Tensor:
    """Numbers in the type that loses least of them: int64 or bool, or float64 where one is a float."""
    numbers = [_representable(number) for number in numbers]
    return torch.tensor(numbers, dtype=torch.float64 if any(isinstance(x, float) for x in numbers) else None)


def _representable(number: Any) -> Any:
    """The number where torch holds it, else the float nearest to it, which may be infinite."""
    if isinstance(number, int) and not INT64.min <= number <= INT64.max:
        return float("inf") * (1 if number > 0 else -1) if abs(number) >= 2**1024 else float(number)
    return number
