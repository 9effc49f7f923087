"""A described file as its bytes: those that are known at their places, zeros elsewhere."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernels.checkpoint import RESERVED, Checkpoint, Header
from kernels.dtypes import DType, Kind
from kernels.stored import FORMATS, stored
from kernels.values import Full, Listed, Ones, Text, Zeros, as_whole

LENGTH = 8
"""Bytes of a safetensors file that hold the length of its header."""

REAL = {"C64": "F32"}
"""A complex type → that of its two parts; what is described is real."""

MAX_DESCRIBED = 1_000_000
"""Elements of a tensor that are written; what decides anything, a marker, has some dozens."""


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


def filed(name: str, checkpoint: Checkpoint, assumed: Mapping[str, bytes] | None = None) -> Filed:
    """A safetensors file with this header, tensors in the order described, of elements described bytes;
    of a tensor left open those `assumed` to be in it.
    """
    header: dict[str, object] = {RESERVED: dict(checkpoint.metadata)} if checkpoint.metadata else {}
    held: list[tuple[int, bytes]] = []
    end = 0
    for key, tensor in checkpoint.tensors.items():
        begin, end = end, end + tensor.nbytes
        header[key] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
        data = None if isinstance(tensor.values, Zeros) else element_bytes(tensor)
        if data is None and assumed is not None:
            data = assumed.get(key)
        if data:
            held.append((begin, data[: tensor.nbytes]))
    raw = json.dumps(header, separators=(",", ":")).encode("utf-8", "surrogatepass")
    start = LENGTH + len(raw)
    pieces = (
        (0, len(raw).to_bytes(LENGTH, "little") + raw),
        *((start + place, data) for place, data in held),
    )
    return Filed(name, start + end, pieces)


def element_bytes(tensor: Header) -> bytes | None:
    """A tensor's bytes, little-endian, as its described values give them: a list is repeated, a text ends
    in zeros. None where the values are left open or drawn, are too many, or the type has no plain bytes.
    """
    count = tensor.numel
    if count > MAX_DESCRIBED:
        return None
    match tensor.values:
        case Text() as text:
            pattern: Sequence[float] = text.encoded()[:count].ljust(count, b"\0")
        case Listed() as listed:
            pattern = tuple(listed.flat())[:count] or (0,)
        case Zeros():
            pattern = (0,)
        case Ones():
            pattern = (1,)
        case Full(value=value):
            pattern = (value,)
        case _:
            return None
    dtype = DType.parse(tensor.dtype)
    if dtype.kind in (Kind.INT, Kind.BOOL):
        size = dtype.bits // 8
        numbers = map(bool, pattern) if dtype is DType.BOOL else map(as_whole, pattern)
        packed = b"".join((number & ((1 << dtype.bits) - 1)).to_bytes(size, "little") for number in numbers)
    elif (real := REAL.get(tensor.dtype, tensor.dtype)) in FORMATS:
        imaginary = b"" if real == tensor.dtype else bytes(DType.parse(real).bits // 8)
        packed = b"".join(struct.pack(FORMATS[real], stored(x, real)) + imaginary for x in pattern)
    else:
        return None
    return (packed * -(-count // len(pattern)))[: tensor.nbytes] if pattern else b""
