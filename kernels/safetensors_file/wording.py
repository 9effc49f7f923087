"""What serde_json calls a value that it did not expect, and a header's refusal."""

from __future__ import annotations

from enum import Enum
from typing import Any


class Part(Enum):
    """Where in a header a fault lies."""

    SYNTAX = "syntax"
    METADATA = "metadata"
    ENTRY = "entry"
    DTYPE = "dtype"


class Pairs(list[tuple[str, Any]]):
    """A JSON object with its repeated keys."""


class Refused(ValueError):
    """The library refuses the header; `owner` is the tensor or metadata key concerned, where there is one."""

    def __init__(self, part: Part, text: str, at: int | None = None, owner: str | None = None) -> None:
        super().__init__(text)
        self.part, self.text, self.at, self.owner = part, text, at, owner


def invalid_type(value: Any, expected: str) -> str:
    """A value of the wrong kind."""
    return f"invalid type: {_kind(value)}, expected {expected}"


def _kind(value: Any) -> str:
    """A value as serde names what it did not expect."""
    match value:
        case None:
            return "null"
        case bool():
            return f"boolean `{str(value).lower()}`"
        case int():
            return f"integer `{value}`"
        case float():
            return f"floating point `{_float(value)}`"
        case str():
            return f"string {_quoted(value)}"
        case Pairs():
            return "map"
        case _:
            return "sequence"


def _float(value: float) -> str:
    """Shortest digits, without an exponent from 1e-5 up to 1e16."""
    digits, _, exponent = repr(value).partition("e")
    if not exponent:
        return digits
    power = int(exponent)
    if power == -5:
        sign = "-" if value < 0 else ""
        return f"{sign}0.0000{digits.lstrip('-').replace('.', '')}"
    return f"{digits}e{power:+d}" if power > 0 else f"{digits}e{power}"


_ESCAPES = {"\t": "\\t", "\r": "\\r", "\n": "\\n", '"': '\\"', "\\": "\\\\", "\0": "\\0"}


def _quoted(text: str) -> str:
    """Rust's debug form of a text; which characters count as printable is Python's opinion."""
    shown = (
        _ESCAPES.get(character) or (character if character.isprintable() else f"\\u{{{ord(character):x}}}")
        for character in text
    )
    return f'"{"".join(shown)}"'
