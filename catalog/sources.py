"""Where a check stands in our own files, and its source."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

from catalog.commit import ROOT, built_from
from kernels.checking import Check

MADE_OF: Final = ("kernels/**/*.py", "catalog/*.py", "catalog/records/*/*.toml")
"""The files that decide what is in a curated record."""

_CLASS: Final = re.compile(r"class (\w+)")


def record_path(check: type[Check[Any]]) -> str:
    """The file that a record of ours names: its folder's checks.py, from whichever module that takes the
    class. Ids are made of it, so a class may move within its folder.
    """
    return "/".join([*check.__module__.split(".")[:-1], "checks.py"])


def record_line(check: type[Check[Any]]) -> int | None:
    """The line of its `class` statement in that file; None where the class stands beside it."""
    return line_of(check) if check.__module__.endswith(".checks") else None


def line_of(check: type[Check[Any]]) -> int:
    """The line of its `class` statement."""
    return _classes(check.__module__)[check.__name__] + 1


def source_of(check: type[Check[Any]]) -> str:
    """The class with its decorators.

    `inspect.getsource` parses the whole file for every class of it, which adds up over a catalog.
    """
    lines = _lines(check.__module__)
    start = line_of(check) - 1
    while start > 0 and lines[start - 1].startswith("@"):
        start -= 1
    return "".join(inspect.getblock(list(lines[start:]))).rstrip() + "\n"


@cache
def _lines(module: str) -> tuple[str, ...]:
    return tuple(inspect.getsource(sys.modules[module]).splitlines(keepends=True))


@cache
def _classes(module: str) -> dict[str, int]:
    """Class → index of its line; top-level classes only, as checks are."""
    return {
        found[1]: index
        for index, line in enumerate(_lines(module))
        if (found := _CLASS.match(line)) is not None
    }


def digest(root: Path = ROOT) -> str:
    """Of the files that curated records are made of, and of the commit that they name."""
    content = hashlib.sha256(built_from().encode())
    for pattern in MADE_OF:
        for path in sorted(root.glob(pattern)):
            content.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return content.hexdigest()
