"""TensorSpec: a tensor described, not built. Shape, dtype, strides, offset, device and what it holds."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from kernels.dtypes import DType
from kernels.values import Values

BASE_ALIGNMENT = 512
"""Bytes a described tensor's storage is aligned to, as CUDA's caching allocator gives it."""

MAX_DIMENSIONS = 64
"""torch's own limit on the number of dimensions."""

MAX_SIZE = 2**63 - 1
"""torch holds sizes, strides and offsets in 64 bits."""

LONGEST_KEPT = 100
"""Characters of a compact form that is kept once it was read: tensors are described again and again."""

Shape = tuple[int, ...]

DEVICE = re.compile(r"(cuda|cpu|hip|xpu|mps|meta)(:[0-9]{1,3})?")
"""Devices that a description may name, with or without an index."""

_COMPACT = re.compile(r"\s*([A-Za-z0-9_.]+)\s*\[([0-9,\s]*)\]\s*((?::\s*[a-z]+\([A-Za-z0-9_:,\s]*\)\s*)*)")
_OPTION = re.compile(r":\s*([a-z]+)\(([A-Za-z0-9_:,\s]*)\)")


def row_major(shape: Shape) -> Shape:
    """Strides in elements of a freshly allocated tensor; a zero size counts as one, as torch counts it."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A described tensor.

    shape      sizes, elements
    dtype      element type
    strides    elements; row-major when omitted
    offset     elements from a base address that is aligned to BASE_ALIGNMENT bytes
    device     `cuda`, `cuda:1`, `cpu`, …: where the caller has it
    values     what it holds; None leaves that to the operation's own fill
    """

    shape: Shape
    dtype: DType
    strides: Shape = ()
    offset: int = 0
    device: str = "cuda"
    values: Values | None = None

    def __post_init__(self) -> None:
        if len(self.strides) != len(self.shape):
            if self.strides:
                raise ValueError(f"{len(self.strides)} strides for {len(self.shape)} dimensions")
            object.__setattr__(self, "strides", row_major(self.shape))

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return self.dtype.itemsize

    @property
    def address(self) -> int:
        """Byte address of the first element, counted from the aligned base; torch gives an empty tensor 0."""
        return self.offset * self.itemsize if self.numel else 0

    @property
    def extent(self) -> int:
        """Elements of storage from the first to the last element touched, both included."""
        if self.numel == 0:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))

    @property
    def storage_bytes(self) -> int:
        """Bytes of the storage that it is taken for a view of: whole strides of every dimension, since a
        slice of wider rows has the rest of its last row behind it.
        """
        if self.numel == 0:
            return self.offset * self.itemsize
        strides = max(
            (size * stride for size, stride in zip(self.shape, self.strides, strict=True)), default=1
        )
        return (self.offset + max(self.extent, strides)) * self.itemsize

    @property
    def shares_memory(self) -> bool:
        """Whether elements of it lie in one place, so that they cannot all hold values of their own."""
        return self.extent < self.numel or 0 in self.strides

    @property
    def is_contiguous(self) -> bool:
        """torch's rule: row-major strides, where sizes of one may have any stride and empty tensors
        always are.
        """
        if self.numel == 0:
            return True
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1:
                if stride != step:
                    return False
                step *= size
        return True

    @property
    def describable(self) -> bool:
        """Whether torch could hold it: numbers within 64 bits, on a device of a kind that exists."""
        largest = max((*self.shape, *self.strides, self.offset), default=0)
        return largest <= MAX_SIZE and DEVICE.fullmatch(self.device) is not None

    @property
    def is_default(self) -> bool:
        """Whether strides and offset are those of a freshly allocated tensor."""
        return self.offset == 0 and self.strides == row_major(self.shape)

    @property
    def device_index(self) -> str:
        """The device with its index, as launchers print it: `cuda:0`."""
        return "cuda:0" if self.device == "cuda" else self.device

    @property
    def device_type(self) -> str:
        """`cuda` or `cpu`, without the index."""
        return self.device.partition(":")[0]

    def with_shape(self, *shape: int) -> TensorSpec:
        """The same tensor freshly allocated with another shape."""
        return replace(self, shape=shape, strides=row_major(shape), offset=0, values=None)

    def with_dtype(self, dtype: DType) -> TensorSpec:
        """The same layout with another element type."""
        return replace(self, dtype=dtype)

    def contiguous(self) -> TensorSpec:
        """The same shape and type, freshly allocated."""
        return replace(self, strides=row_major(self.shape), offset=0)

    def __str__(self) -> str:
        """The compact form: `int32[16,14]:stride(1,16)`."""
        parts = [f"{self.dtype}[{','.join(map(str, self.shape))}]"]
        if self.strides != row_major(self.shape):
            parts.append(f"stride({','.join(map(str, self.strides))})")
        if self.offset:
            parts.append(f"offset({self.offset})")
        if self.device_index != "cuda:0":
            parts.append(f"device({self.device})")
        return ":".join(parts)

    @classmethod
    def parse(cls, text: str) -> TensorSpec:
        """Read the compact form `dtype[sizes]`, then any of `:stride(…)`, `:offset(n)`, `:device(name)`.

        Raises ValueError with what is wrong.
        """
        return _parsed(text) if len(text) <= LONGEST_KEPT else cls._parse(text)

    @classmethod
    def _parse(cls, text: str) -> TensorSpec:
        found = _COMPACT.fullmatch(text)
        if found is None:
            raise ValueError(
                f"cannot read {text[:80]!r} as a tensor; write it like int32[16,14]:stride(1,16), "
                "with :offset(8) or :device(cpu) where needed"
            )
        shape = _numbers(found[2])
        strides: Shape = ()
        offset = 0
        device = "cuda"
        seen: set[str] = set()
        for name, value in _OPTION.findall(found[3]):
            if name.rstrip("s") in seen:
                raise ValueError(f"{name} is given twice in {text[:80]!r}")
            seen.add(name.rstrip("s"))
            match name:
                case "stride" | "strides":
                    strides = _numbers(value)
                    if len(strides) != len(shape):
                        raise ValueError(
                            f"{len(strides)} strides for {len(shape)} dimensions in {text[:80]!r}"
                        )
                case "offset":
                    offsets = _numbers(value)
                    if len(offsets) != 1:
                        raise ValueError(f"offset takes one number, got {value[:40]!r}")
                    offset = offsets[0]
                case "device":
                    device = value.strip()
                    if DEVICE.fullmatch(device) is None:
                        raise ValueError(f"unknown device {device[:40]!r}; write cuda, cuda:1 or cpu")
                case _:
                    raise ValueError(f"unknown tensor attribute {name!r}; known: stride, offset, device")
        return cls(shape, DType.parse(found[1]), strides, offset, device)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> TensorSpec:
    return TensorSpec._parse(text)


def _numbers(text: str) -> Shape:
    items = [item.strip() for item in text.split(",")]
    if items == [""]:
        return ()
    if not all(item.isascii() and item.isdigit() and len(item) <= 19 for item in items):
        raise ValueError(f"expected whole numbers separated by commas, got {text[:40]!r}")
    return tuple(int(item) for item in items)
