"""The files of a target, each with the path that it has in the public repository."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from catalog.scan.model import Unreadable
from catalog.scan.packages import Upstream
from catalog.scan.source import printable

PYTHON: Final = (".py",)
CYTHON: Final = (".pyx", ".pxi")
CPP: Final = (
    *(".cu", ".cuh", ".hip", ".c", ".cc", ".cpp", ".cxx", ".c++", ".h", ".hh", ".hpp", ".hxx"),
    *(".inl", ".ipp", ".tpp", ".tcc", ".mm"),
)
SUFFIXES: Final = (*PYTHON, *CYTHON, *CPP)
SOURCES: Final = "src/"
"""Where a repository may have its packages."""
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


Found = tuple[str, Path | bytes | Unreadable]


def as_installed(found: Iterable[Found]) -> Iterator[Found]:
    """The files of a source tree whose repository's layout is not known, as its wheel has them.

    A wheel does not tell whether its packages lie in `src/`: without it in both, one place has one id. What
    is no part of a Python package keeps its path.
    """
    files = list(found)
    taken = {path for path, _ in files}
    inside = [path.removeprefix(SOURCES) for path, _ in files if path.startswith(SOURCES)]
    packages = {path.partition("/")[0] for path in inside if path.endswith(PYTHON)}
    if "__init__.py" in packages:  # a package that is called so
        packages.clear()
    for path, content in files:
        bare = path.removeprefix(SOURCES)
        moved = bare not in taken and bare.partition("/")[0] in packages
        yield bare if moved else path, content


def listing(upstream: Upstream | None, found: Iterable[Found]) -> Listing:
    """Put files, by the path that they are installed at, where they lie in the repository; without an
    upstream they lie there already.

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
