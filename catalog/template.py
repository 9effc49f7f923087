"""A record's message template: its pattern, its literals and the values its holes printed.

A template is literals with holes between them. Matching one against a text needs no regular expression:
literals are looked for in order, each at its first place after the hole before it has got a character. That
walk is linear, and it finds exactly what the lazy pattern `lit(.+?)lit(.+?)` finds when it has to match the
whole text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from kernels.message import Hole, parse

HOLE_PATTERN: Final = "(.+?)"
KINDS: Final = ("dtype", "shape", "int", "float", "bool", "device", "path", "name", "text")

_ESCAPES: Final = {ord(c): "\\" + c for c in "\\^$.|?*+()[]{}"}

# Key domain: what is compared. Case, white space, quotes, backslashes, "?" (what an unencodable character
# becomes), control and non-ASCII characters differ between a message and its paste without changing which
# message it is.
DROPPED: Final = bytes(range(33)) + b"\"'`\\?" + bytes(range(127, 256))
LOWER: Final = bytes(range(256)).lower()

_KINDS_BY_NAME: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"dtype(\(\))?$", "dtype"),
        (r"\b(is|has|use|enable|allow)_\w+(\(\))?$|contiguous\(\)$", "bool"),
        (r"shape\[-?\d+\]|\b(size|stride)\(-?\w+\)|\b(len|sum)\(|\.(ndim|dim\(\)|numel\(\))$", "int"),
        (r"shape\b|shape\)|\bsize\(\)|\bstrides?(\(\))?\)?$", "shape"),
        (r"device(\.type)?$", "device"),
        (r"(path|file|filename|dir|folder)$", "path"),
        (r"(^|[._])(size|dim|count|rank|num|num_\w+|n|index|idx|line|width|height|bits|capability)$", "int"),
        (r"(eps|ratio|factor|threshold|fraction|tolerance|alpha|beta)$", "float"),
        (r"(prefix|name|key|__name__|__qualname__)$", "name"),
    )
)


def key_of(text: str) -> bytes:
    """The text in the key domain, in which templates and pasted texts are compared."""
    return text.encode("latin-1", "replace").translate(LOWER, DROPPED)


def solid_part(segment: str) -> tuple[int, int] | None:
    """From the first to behind the last character of a segment that a key holds; None where it holds none."""
    kept = [at for at, byte in enumerate(segment.encode("latin-1", "replace")) if byte not in DROPPED]
    return (kept[0], kept[-1] + 1) if kept else None


def infer_kind(expr: str, format_spec: str = "") -> str:
    """The kind of value a hole prints, guessed from its expression; "text" when nothing tells."""
    if format_spec.endswith(("f", "e", "g", "%")):
        return "float"
    return next((kind for pattern, kind in _KINDS_BY_NAME if pattern.search(expr)), "text")


@dataclass(frozen=True, slots=True)
class Template:
    """A message cut at its holes.

    `segments[i]` is the literal before hole i, the last one what follows the last hole; any may be empty.
    """

    message: str
    segments: tuple[str, ...]
    holes: tuple[Hole, ...]

    @classmethod
    def parse(cls, message: str) -> Template:
        """Split a message; one that is no format string (a lone brace) is a single literal."""
        try:
            parts = parse(message)
        except ValueError:
            parts = (message,)
        segments, holes = [""], []
        for part in parts:
            if isinstance(part, Hole):
                holes.append(part)
                segments.append("")
            else:
                segments[-1] += part
        return cls(message, tuple(segments), tuple(holes))

    @property
    def pattern(self) -> str:
        """The record's `messagePattern`: only the characters special in a regular expression are escaped."""
        return HOLE_PATTERN.join(segment.translate(_ESCAPES) for segment in self.segments)

    @property
    def literals(self) -> tuple[str, ...]:
        return tuple(segment for segment in self.segments if segment)

    @property
    def literal_weight(self) -> int:
        """How many characters the literals have in the key domain: how much a match of all of them says."""
        return sum(len(key_of(segment)) for segment in self.segments)

    def capture(self, text: str) -> tuple[str, ...] | None:
        """What each hole printed when `text` is this message and nothing else; None when it is not."""
        first, last = self.segments[0], self.segments[-1]
        if not self.holes:
            return () if text == first else None
        if not text.startswith(first):
            return None
        values, start = [], len(first)
        for literal in self.segments[1:-1]:
            found = text.find(literal, start + 1)
            if found < 0:
                return None
            values.append(text[start:found])
            start = found + len(literal)
        end = len(text) - len(last)
        if end <= start or not text.endswith(last):
            return None
        return (*values, text[start:end])
