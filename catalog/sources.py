"""Where a check stands in our own files, and its source."""

from __future__ import annotations

import inspect
import re
import sys
from functools import cache
from typing import Any, Final

from kernels.checking import Check

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
