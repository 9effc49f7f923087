"""The files of a target, each with the path that it has in the public repository."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from catalog.scan.model import Unreadable
from catalog.scan.packages import Upstream
from catalog.scan.source import printable

PYTHON: Final = (".py",)
CPP: Final = (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp", ".hh", ".inl", ".hip")
SUFFIXES: Final = (*PYTHON, *CPP)
LARGEST: Final = 8 << 20
"""Bytes of a file that is scanned; a larger one is generated data, and is reported."""


def too_large() -> str:
    """Why a file above LARGEST is not scanned."""
    return f"larger than {LARGEST >> 20} MiB"


class TargetError(Exception):
    """What was named cannot be scanned; the message says why and what to name instead."""


class NoTarget(TargetError):
    """What was named is no name of a target at all."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One file of a target: its path in the repository, and where it is or what is in it."""

    path: str
    content: Path | bytes


@dataclass(frozen=True, slots=True)
class Listing:
    """The files that can be scanned, in path order, and those that cannot even be opened."""

    files: tuple[Listed, ...]
    unreadable: tuple[Unreadable, ...] = ()


def listing(upstream: Upstream | None, found: Iterable[tuple[str, Path | bytes | Unreadable]]) -> Listing:
    """Put files, by the path that they are installed at, where they lie in the repository.

    What is moved may fall on another's place: it then keeps its own. None of them is lost without a word.
    """
    listed: dict[str, Listed] = {}
    unreadable: list[Unreadable] = []
    for installed, content in found:
        own = printable(installed)
        moved = upstream.path(own) if upstream is not None else own
        path = moved if moved not in listed else own
        if isinstance(content, Unreadable):
            unreadable.append(Unreadable(moved, content.reason))
        elif path in listed:
            unreadable.append(Unreadable(path, "a second file of this path"))
        else:
            listed[path] = Listed(path, content)
    return Listing(tuple(listed[path] for path in sorted(listed)), tuple(unreadable))
