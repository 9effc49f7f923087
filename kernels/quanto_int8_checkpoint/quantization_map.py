"""The quantization map in a file's metadata: JSON in base64, decoded as upstream does, or why not."""

from __future__ import annotations

import base64
import json
import re
import string
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kernels.wording import deeper

FORMAT_KEY = "quantization_format"
MAP_KEY = "quantization_map_base64"
FORMAT = "quanto"

QINT8 = "qint8"
NO_ACTIVATIONS = "none"

MAX_ENCODED = 100_000_000
"""Characters: safetensors reads no header longer than this many bytes, so no file holds a longer map."""

MAX_NESTING = 500
"""Levels of JSON; a map needs two. Upstream's limit is Python's recursion limit less the caller's stack."""

_ALPHABET = frozenset(string.ascii_letters + string.digits + "+/=")
_DATA_URL = re.compile(r"data:[a-z0-9/+;=-]{0,80}?base64,")
_TO_STANDARD = str.maketrans("-_", "+/")


class MapFault(ValueError):
    """Why a map cannot be decoded, as the rest of a sentence that begins with the metadata key."""


def entry(weights: Any = QINT8, activations: Any = NO_ACTIVATIONS) -> dict[str, Any]:
    """A layer's entry in the map."""
    return {"weights": weights, "activations": activations}


def encode(quantization_map: Any) -> str:
    """The map as metadata holds it; text is taken as JSON already."""
    text = quantization_map if isinstance(quantization_map, str) else json.dumps(quantization_map)
    return base64.b64encode(text.encode("utf-8")).decode("ascii")


def unwrapped(encoded: str) -> bytes:
    """The bytes of strict base64; raises MapFault."""
    if len(encoded) > MAX_ENCODED:
        raise MapFault(f"is {len(encoded)} characters long, more than a safetensors header can be")
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError as error:
        raise MapFault(_not_base64(encoded)) from error


def decode(encoded: str) -> Any:
    """The JSON value that upstream gets from the metadata text, of repeated keys the last; raises MapFault.

    Strict base64, strict UTF-8, then JSON as Python reads it. What is nested deeper than MAX_NESTING is
    refused, so that the answer does not depend on how much of the interpreter's stack is in use.
    """
    data = unwrapped(encoded)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MapFault(
            f"decodes to bytes that are not UTF-8: 0x{data[error.start]:02x} at offset {error.start}"
        ) from error
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise MapFault(f"is nested deeper than {MAX_NESTING} levels") from error
    except ValueError as error:
        raise MapFault(_not_json(encoded, text, error)) from error
    if deeper(value, MAX_NESTING):
        raise MapFault(f"is nested deeper than {MAX_NESTING} levels")
    return value


@dataclass(frozen=True, slots=True)
class Repeated:
    """A name that one object of the map has several times.

    prefix   the layer whose entry that object is; None for the map itself
    """

    prefix: str | None
    key: str
    times: int


class _Members(dict[str, Any]):
    """An object, and the names that it was written with."""

    counts: Counter[str]


def repeated(encoded: str) -> list[Repeated]:
    """Names that stand several times in a map that `decode` takes, or in the entries that count."""

    def members(pairs: list[tuple[str, Any]]) -> _Members:
        found = _Members(pairs)
        found.counts = Counter(name for name, _ in pairs)
        return found

    whole = json.loads(unwrapped(encoded), object_pairs_hook=members)
    entries = whole.items() if isinstance(whole, _Members) else ()
    objects = [(None, whole), *entries]
    return [
        Repeated(prefix, key, times)
        for prefix, found in objects
        if isinstance(found, _Members) and len(found) < found.counts.total()
        for key, times in found.counts.items()
        if times > 1
    ]


def recovered(encoded: str) -> str | None:
    """The map's JSON text, where the metadata has a near miss: wrapped, URL-safe, with a BOM, bare JSON."""
    if len(encoded) > MAX_ENCODED:
        return None
    bare = encoded.strip()
    candidates = [bare.encode("utf-8", "replace")] if bare.startswith("{") else []
    packed = "".join(_DATA_URL.sub("", bare, count=1).split()).translate(_TO_STANDARD).rstrip("=")
    with suppress(ValueError):  # not base64 of any kind: only bare JSON is left
        candidates.append(base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True))
    for data in candidates:
        try:
            text = data.decode(json.detect_encoding(data)).removeprefix("\ufeff")
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and not deeper(value, MAX_NESTING):
            return text
    return None


def _not_base64(encoded: str) -> str:
    """What keeps a text from being strict base64."""
    if encoded.lstrip()[:1] in ("{", "["):
        return "is the JSON itself; it has to be wrapped in base64"
    where, foreign = next(
        ((index, character) for index, character in enumerate(encoded) if character not in _ALPHABET), (0, "")
    )
    if not foreign:
        return "has misplaced or missing = padding, or is cut short"
    if foreign in "\r\n":
        return f"has a line break at offset {where}; strict base64 is one line"
    if foreign.isspace():
        return f"has white space at offset {where}; strict base64 has none"
    if foreign in "-_":
        return f"has {foreign!r} at offset {where}, of the URL-safe alphabet; the standard one has + and /"
    return f"has {foreign!r} at offset {where}, which is no base64 character"


def _not_json(encoded: str, text: str, error: ValueError) -> str:
    """What keeps the decoded text from being JSON."""
    if not encoded:
        return "is empty"
    if text.startswith("\ufeff"):
        return "decodes to text that begins with a byte order mark (EF BB BF), which JSON does not take"
    if not isinstance(error, json.JSONDecodeError):
        return "holds a number with too many digits"
    hint = "; single quotes are Python's, JSON has double ones" if text.startswith("{'") else ""
    return f"decodes to text that is not JSON: {error.msg} at line {error.lineno} column {error.colno}{hint}"
