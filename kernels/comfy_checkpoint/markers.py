"""Markers that say how each layer is quantized: in the header's metadata, or as bytes of a tensor of their
own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kernels.checkpoint import Header
from kernels.filed import element_bytes
from kernels.values import Text
from kernels.wording import deeper

METADATA_KEY = "_quantization_metadata"
GLOBAL_KEY = "quant_format"
MARKER = "comfy_quant"
ENDING = f".{MARKER}"

NVFP4 = "nvfp4"
FP8 = "float8_e4m3fn"
INT8 = "int8_tensorwise"
W4A8 = "asym_w4a8_int8"
W4A4 = "convrot_w4a4"
MXFP8 = "mxfp8"
INSPECTED = (FP8, INT8, W4A8, W4A4, NVFP4)
"""Formats whose tensors the inspection looks at; of any other it reads the name alone."""

MAX_MARKER = 1_000_000
"""Bytes of a marker tensor that are read here; a marker has some dozens."""

MAX_NESTING = 500
"""Levels of JSON; a marker needs one. Upstream's limit is Python's recursion limit."""


@dataclass(frozen=True)
class Reading:
    """A JSON value, or why there is none, as the rest of a sentence that begins with where it stands."""

    value: Any
    fault: str = ""


def read_json(data: str | bytes) -> Reading:
    """JSON as Python reads it: of repeated keys the last counts, NaN is a number, bytes are in UTF."""
    try:
        value = json.loads(data)
    except UnicodeDecodeError as error:
        return Reading(None, f"is not UTF-8: byte 0x{error.object[error.start]:02x} at offset {error.start}")
    except json.JSONDecodeError as error:
        return Reading(None, f"is not JSON: {error.msg} at offset {error.pos}{_hint(data, error.pos)}")
    except RecursionError:
        return Reading(None, f"is nested deeper than {MAX_NESTING} levels")
    except ValueError:
        return Reading(None, "holds a number with too many digits")
    if deeper(value, MAX_NESTING):
        return Reading(None, f"is nested deeper than {MAX_NESTING} levels")
    return Reading(value)


def recovered(data: str | bytes) -> Any:
    """The object that a near miss holds: NUL bytes or spaces behind it, a byte order mark; else None."""
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    with suppress(ValueError, RecursionError):
        value = json.loads(text.removeprefix("\ufeff").strip("\0 \t\r\n"))
        return value if isinstance(value, dict) and not deeper(value, MAX_NESTING) else None
    return None


def marker_header(marker: Mapping[str, Any]) -> Header:
    """A marker as the tensor that carries it."""
    text = Text(json.dumps(marker, separators=(",", ":")))
    return Header("U8", (len(text.encoded()),), text)


def fitted(marker: Mapping[str, Any], size: int) -> bytes:
    """As much of a marker as `size` bytes hold, spaces behind it; no more of those than are ever read."""
    size = min(size, MAX_MARKER)
    for members in (marker, {key: marker[key] for key in ("format",) if key in marker}, {}):
        text = marker_header(members).values
        assert isinstance(text, Text)
        if len(text.encoded()) <= size:
            return text.encoded().ljust(size)
    return bytes(size)


def marker_bytes(header: Header) -> bytes | None:
    """What a described marker tensor holds, whatever its type: upstream takes the bytes behind its elements.
    None where the description leaves it open.
    """
    return element_bytes(header) if header.nbytes <= MAX_MARKER else None


def _hint(data: str | bytes, place: int) -> str:
    """What is likely behind the first character that is not JSON."""
    rest = data[place : place + 1]
    if rest in ("\0", b"\0"):
        return "; a NUL byte ends it, which JSON does not take"
    if data[:2] in ("{'", b"{'"):
        return "; single quotes are Python's, JSON has double ones"
    return "; it is empty" if not data else ""
