"""Texts of CUDA, cuBLAS, NCCL, Triton and launchers that no package's raise statement writes, and what they
are.

A record explains one raise site; these come from a driver, a compiled library or another process, and say the
same wherever they are printed. They are told as what they are and never as a match. known.toml holds them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

import re2

from catalog.match.model import Told

LINES: Final = 10_000
"""Places of these texts that are looked at in one paste."""
SOURCE: Final = Path(__file__).with_suffix(".toml")

_NUMBER: Final = re.compile(r"\d[\d.]*")


@dataclass(frozen=True, slots=True)
class Known:
    """One such text: `phrases` in lower case, any of which tells it; whether it follows from another
    failure."""

    phrases: tuple[str, ...]
    secondary: bool
    told: Told


@cache
def known() -> tuple[Known, ...]:
    """All of them."""
    tables = tomllib.loads(SOURCE.read_text("utf-8"))["text"]
    return tuple(
        Known(
            tuple(phrase.lower() for phrase in table["phrases"]),
            table.get("secondary", False),
            Told(table["name"], table["meaning"].strip(), table["advice"].strip()),
        )
        for table in tables
    )


def known_in(message: str) -> Known | None:
    """Which of them a message is; of several, what is a cause."""
    if _any().search(message.encode("latin-1", "replace")) is None:
        return None
    lower = message.lower()
    found = [each for each in known() if any(phrase in lower for phrase in each.phrases)]
    return min(found, key=lambda each: each.secondary, default=None)


def phrases() -> tuple[str, ...]:
    """All words by which they are known, in lower case."""
    return tuple(phrase for each in known() for phrase in each.phrases)


def is_told(data: bytes) -> bool:
    """Whether any of them is in a text."""
    return _any().search(data) is not None


def without_numbers(message: str) -> str:
    """A message that is known, without the sizes, addresses and thread numbers that differ from rank to
    rank."""
    return _NUMBER.sub("#", message)


def known_places(data: bytes, start: int, stop: int) -> Iterator[int]:
    """Where any of them stands between two offsets of a cleaned text, in order."""
    return (found.start() for found in islice(_any().finditer(data, start, stop), LINES))


@cache
def _any() -> Any:
    options = re2.Options()
    options.case_sensitive = False
    options.encoding = re2.Options.Encoding.LATIN1
    return re2.compile(b"|".join(re2.escape(phrase.encode()) for phrase in phrases()), options)
