"""What the library refuses of one tensor's entry, in its order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from kernels.checking import Category, Check, aside
from kernels.safetensors_file.file_start import Placed
from kernels.safetensors_file.signature import (
    HEADER,
    PREFIX,
    VALIDATE,
    SafetensorError,
    SafetensorsCall,
    at,
    entry,
    whole,
)


class EntryCheck(Check[Placed]):
    """A check of one tensor's entry, in the order of the tensors' data."""

    raises = SafetensorError
    looks_at: ClassVar[tuple[str, ...]] = ("filename",)
    category: ClassVar[Category] = "format"

    def describe_actual(self, placed: Placed, /) -> str:
        return placed.describe()


@dataclass(frozen=True)
class InvalidOffset(EntryCheck):
    """Data without gaps and overlaps hides nothing, and no byte of it is read as two tensors."""

    message = f"{PREFIX}invalid offset for tensor `{{tensor_name}}`"
    formerly = (f'{PREFIX}InvalidOffset("{{tensor_name}}")',)
    sites = at(VALIDATE, 637)
    reason = (
        "its data goes from byte {begin} to {end}; it must begin at {start}, where the data before it ends"
    )
    requires = "data that begins where that of the tensor before it ends, the first at 0"
    tensor_name: str
    begin: int = aside()
    end: int = aside()
    start: int = aside()

    @classmethod
    def find(cls, placed: Placed, /) -> Iterator[Self]:
        if placed.misplaced:
            yield cls(placed.entry.name, placed.entry.begin, placed.entry.end, placed.start)

    @classmethod
    def example(cls) -> SafetensorsCall:
        return whole({**HEADER, "down_proj.weight": entry("BF16", [2, 3], 16, 28)}, 28)


@dataclass(frozen=True)
class ValidationOverflow(EntryCheck):
    """Sizes are 64-bit numbers; a product beyond them would wrap and pass for a small tensor."""

    message = f"{PREFIX}overflow computing buffer size from shape and/or element type"
    formerly = (f"{PREFIX}ValidationOverflow",)
    sites = at(VALIDATE, 647, 650)
    reason = "the elements of {tensor_name!r} {shape} take more than 2^64 - 1 bits"
    requires = "a product of sizes and bits per element below 2^64"
    category = "shape"
    tensor_name: str = aside()
    shape: tuple[int, ...] = aside()

    @classmethod
    def find(cls, placed: Placed, /) -> Iterator[Self]:
        if placed.bits is None:
            yield cls(placed.entry.name, placed.entry.shape)

    @classmethod
    def example(cls) -> SafetensorsCall:
        return whole({"up_proj.weight": entry("F32", [2**40, 2**40], 0, 12)}, 12)


@dataclass(frozen=True)
class MisalignedSlice(EntryCheck):
    """Elements of 4 or 6 bits share bytes; the next tensor cannot begin within one."""

    message = (
        f"{PREFIX}The slice is slicing for subbytes dtypes, "
        "and the slice does not end up at a byte boundary, this is invalid."
    )
    sites = at(VALIDATE, 653)
    reason = (
        "the elements of {tensor_name!r} {dtype} {shape} take {bits} bits, which is no whole number of bytes"
    )
    requires = "a whole number of bytes: an even number of F4 elements, a multiple of four F6 elements"
    category = "divisibility"
    premises = (ValidationOverflow,)
    tensor_name: str = aside()
    dtype: str = aside()
    shape: tuple[int, ...] = aside()
    bits: int = aside()

    @classmethod
    def find(cls, placed: Placed, /) -> Iterator[Self]:
        bits = placed.bits or 0
        if bits % 8:
            yield cls(placed.entry.name, placed.entry.dtype, placed.entry.shape, bits)

    @classmethod
    def example(cls) -> SafetensorsCall:
        return whole({"up_proj.weight": entry("F4", [3, 3], 0, 5)}, 5)


@dataclass(frozen=True)
class TensorInvalidInfo(EntryCheck):
    """Shape and type say what the place says again; where they differ, none of them is trusted."""

    message = f"{PREFIX}invalid shape, data type, or offset for tensor"
    formerly = (f"{PREFIX}TensorInvalidInfo",)
    sites = at(VALIDATE, 660)
    reason = "{tensor_name!r} {dtype} {shape} takes {needed} bytes, and its data has {given}"
    requires = "data of as many bytes as the shape and the type make"
    category = "shape"
    premises = (ValidationOverflow, MisalignedSlice)
    tensor_name: str = aside()
    dtype: str = aside()
    shape: tuple[int, ...] = aside()
    needed: int = aside()
    given: int = aside()

    @classmethod
    def evaluable(cls, placed: Placed, /) -> bool:
        return placed.entry.end >= placed.entry.begin

    @classmethod
    def find(cls, placed: Placed, /) -> Iterator[Self]:
        entry, needed = placed.entry, (placed.bits or 0) // 8
        given = entry.end - entry.begin
        if needed != given:
            yield cls(entry.name, entry.dtype, entry.shape, needed, given)

    @classmethod
    def example(cls) -> SafetensorsCall:
        return whole({"up_proj.weight": entry("F32", [3, 2], 0, 12)}, 12)


ENTRY_CHECKS: tuple[type[Check[Any]], ...] = (
    InvalidOffset,
    ValidationOverflow,
    MisalignedSlice,
    TensorInvalidInfo,
)
