"""A described file as its bytes: those that are known at their places, zeros elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from kernels.checkpoint import RESERVED, Checkpoint, Header
from kernels.dtypes import DType
from kernels.values import Listed, Text

LENGTH = 8
"""Bytes of a safetensors file that hold the length of its header."""

BYTES = tuple(dtype.safetensors for dtype in (DType.U8, DType.I8, DType.BOOL))
"""Types whose described elements are written: those that markers are read from."""


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
    if tensor.dtype not in BYTES:
        return
    match tensor.values:
        case Text() as text:
            yield text.encoded()[: tensor.numel]
        case Listed() as listed:
            codes = [int(item) & 0xFF for item in listed.flat()]
            if codes:
                yield bytes(codes[place % len(codes)] for place in range(tensor.numel))
