"""A safetensors header read as the library reads it, and refused in its words.

The library's JSON reader is serde_json with a struct whose members are flattened: `__metadata__` is read as
it comes, everything else is collected first and typed when the object has ended. Line and column of a message
follow from that: they are the reader's place when it noticed, in bytes, not the fault's own.
Texts and places are those of safetensors 0.8.0, where the tests compare them with the library itself.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kernels.dtypes import DType
from kernels.safetensors_file.reader import DEPTH, METADATA, OMITTED, Reader
from kernels.safetensors_file.wording import Pairs, Part, Refused, invalid_type

FIELDS = ("dtype", "shape", "data_offsets")
# fmt: off
VARIANTS = (
    "BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ",
    "F8_E5M2FNUZ", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64",
)
# fmt: on
"""Element types in the library's own order, which its message lists."""
BITS = {name: DType.parse(name).bits for name in VARIANTS}

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor as the header describes it: data from byte `begin` to `end` of the buffer."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@contextmanager
def _no_collection() -> Iterator[None]:
    """Parsed values hold no cycles; looking for some while millions appear takes most of the time (1.3 s of
    15 MB without, 4.4 s with). Threads that overlap here leave it on.
    """
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


@_no_collection()
def read(data: bytes) -> tuple[dict[str, str], list[Entry]]:
    """Metadata and every entry in the file's order, repeated names too; raises Refused with the place.

    `data` is UTF-8. Python's own JSON reader is tried first: whatever serde_json takes, it takes. The rest is
    read step by step, at about 4 µs a byte, up to EXACT bytes; beyond, the text is OMITTED.
    """
    reader = Reader(data)
    try:
        collected = _collected(data)
        if collected is None:
            metadata, members = reader.header()
        else:
            metadata, members = collected
            reader.at = len(data.rstrip(b" \t\n\r"))
        entries = [_entry(name, value) for name, value in members]
        if collected is None:
            reader.finish()
        return metadata, entries
    except Refused as error:
        if error.text == OMITTED:
            raise
        at = reader.at if error.at is None else error.at
        start = data.rfind(b"\n", 0, at) + 1
        line = data.count(b"\n", 0, start) + 1
        text = f"{error.text} at line {line} column {at - start}"
        raise Refused(error.part, text, at, error.owner) from None


def _collected(data: bytes) -> tuple[dict[str, str], Pairs] | None:
    """Metadata, and the other members without types; None where that must be read as serde_json does."""
    try:
        pairs = json.loads(
            data.decode(),
            object_pairs_hook=Pairs,
            parse_int=_integer,
            parse_float=lambda text: Reader(text.encode()).number(),
            parse_constant=_constant,
        )
    except (ValueError, RecursionError):
        return None
    if not isinstance(pairs, Pairs) or _SURROGATE.search(data) or _deeper(pairs, DEPTH - 1):
        return None
    found = [value for name, value in pairs if name == METADATA]
    members: Any = found[0] if found else None
    if members is None:
        members = Pairs()
    if len(found) > 1 or not isinstance(members, Pairs):
        return None
    if not all(isinstance(value, str) for _, value in members):
        return None
    return dict(members), Pairs(pair for pair in pairs if pair[0] != METADATA)


def _integer(text: str) -> int | float:
    return int(text) if len(text) < 19 and text[0] != "-" else Reader(text.encode()).number()


def _constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def _deeper(value: Any, limit: int) -> bool:
    """Whether containers lie within each other more than `limit` deep."""
    level = [value]
    for _ in range(limit):
        level = [
            member
            for container in level
            for member in ((pair[1] for pair in container) if isinstance(container, Pairs) else container)
            if isinstance(member, list)
        ]
        if not level:
            return False
    return True


def _entry(name: str, value: Any) -> Entry:
    """A tensor's entry; its place in the text is long gone, so errors have none."""
    try:
        if isinstance(value, Pairs):
            fields = _members(value)
        elif isinstance(value, list):
            fields = _sequence(value, FIELDS, "struct TensorInfo with 3 elements")
        else:
            raise Refused(Part.ENTRY, invalid_type(value, "struct TensorInfo"))
    except Refused as error:
        raise Refused(error.part, error.text, None, name) from None
    begin, end = fields["data_offsets"]
    return Entry(name, fields["dtype"], fields["shape"], begin, end)


def _members(value: Pairs) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, member in value:
        if key in fields:
            raise Refused(Part.ENTRY, f"duplicate field `{key}`")
        if key in FIELDS:
            fields[key] = _READERS[key](member)
    for key in FIELDS:
        if key not in fields:
            raise Refused(Part.ENTRY, f"missing field `{key}`")
    return fields


def _sequence(items: list[Any], names: tuple[str, ...], expected: str) -> dict[str, Any]:
    """Fields in order, without their names."""
    fields: dict[str, Any] = {}
    for index, name in enumerate(names):
        if index == len(items):
            raise Refused(Part.ENTRY, f"invalid length {index}, expected {expected}")
        fields[name] = _READERS[name](items[index])
    if len(items) > len(names):
        raise Refused(Part.ENTRY, f"invalid length {len(items)}, expected {len(names)} elements in sequence")
    return fields


def _dtype(value: Any) -> str:
    content = None
    if isinstance(value, Pairs):
        if len(value) != 1:
            raise Refused(Part.DTYPE, "invalid value: map, expected map with a single key")
        [(value, content)] = value
    if not isinstance(value, str):
        raise Refused(Part.DTYPE, invalid_type(value, "string or map"))
    if value not in BITS:
        known = ", ".join(f"`{name}`" for name in VARIANTS)
        raise Refused(Part.DTYPE, f"unknown variant `{value}`, expected one of {known}")
    if content is not None:
        raise Refused(Part.DTYPE, invalid_type(content, "unit"))
    return value


def _shape(value: Any) -> tuple[int, ...]:
    if isinstance(value, Pairs) or not isinstance(value, list):
        raise Refused(Part.ENTRY, invalid_type(value, "a sequence"))
    return tuple(_usize(size) for size in value)


def _offsets(value: Any) -> tuple[int, int]:
    expected = "a tuple of size 2"
    if isinstance(value, Pairs) or not isinstance(value, list):
        raise Refused(Part.ENTRY, invalid_type(value, expected))
    fields = _sequence(value, ("begin", "end"), expected)
    return fields["begin"], fields["end"]


def _usize(value: Any) -> int:
    if type(value) is not int:
        raise Refused(Part.ENTRY, invalid_type(value, "usize"))
    if value < 0:
        raise Refused(Part.ENTRY, f"invalid value: integer `{value}`, expected usize")
    return value


_READERS: dict[str, Any] = {
    "dtype": _dtype,
    "shape": _shape,
    "data_offsets": _offsets,
    "begin": _usize,
    "end": _usize,
}
