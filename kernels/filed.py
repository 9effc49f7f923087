"""A described file as its bytes: those that are known at their places, zeros elsewhere."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from kernels.checkpoint import RESERVED, Checkpoint, Header
from kernels.dtypes import DType
from kernels.values import Listed, Text

LENGTH = 8
"""Bytes of a safetensors file that hold the length of its header."""

CODES = {
    DType.U8: "B",
    DType.U16: "H",
    DType.U32: "I",
    DType.U64: "Q",
    DType.I16: "h",
    DType.I32: "i",
    DType.I64: "q",
    DType.F16: "e",
    DType.F32: "f",
    DType.F64: "d",
}
"""Types of which described elements are written, by struct's letters; I8 and BOOL from their values."""


class NotAllKnown(ValueError):
    """The file's bytes were not all given, and what is missing decides."""


@dataclass(frozen=True, slots=True)
class Filed:
    """A file to write.

    name     its path, relative, as messages print it
    size     bytes
    pieces   (place, bytes) of what is not zero
    """

    name: str
    size: int
    pieces: tuple[tuple[int, bytes], ...]


def filed(name: str, checkpoint: Checkpoint) -> Filed:
    """A safetensors file with this header, tensors in the order described, of elements described bytes."""
    header: dict[str, object] = {RESERVED: dict(checkpoint.metadata)} if checkpoint.metadata else {}
    held: list[tuple[int, bytes]] = []
    end = 0
    for key, tensor in checkpoint.tensors.items():
        begin, end = end, end + tensor.nbytes
        header[key] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
        held += [(begin, data) for data in _elements(tensor)]
    raw = json.dumps(header, separators=(",", ":")).encode("utf-8", "surrogatepass")
    start = LENGTH + len(raw)
    pieces = (
        (0, len(raw).to_bytes(LENGTH, "little") + raw),
        *((start + place, data) for place, data in held),
    )
    return Filed(name, start + end, pieces)


def _elements(tensor: Header) -> Iterator[bytes]:
    match tensor.values:
        case Text() as text:
            held: list[float] = list(text.encoded()[: tensor.numel])
        case Listed() as listed if tensor.numel:
            given = list(listed.flat()) or [0]
            held = [given[place % len(given)] for place in range(tensor.numel)]
        case _:
            return
    dtype = DType.parse(tensor.dtype)
    if dtype in (DType.I8, DType.U8):
        yield bytes(int(item) & 0xFF for item in held)
    elif dtype is DType.BOOL:
        yield bytes(bool(item) for item in held)
    elif dtype in CODES:
        whole = CODES[dtype].isupper() or CODES[dtype] in "hiq"
        yield struct.pack(f"<{len(held)}{CODES[dtype]}", *(int(x) if whole else x for x in held))
