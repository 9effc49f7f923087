"""Words and measures that violations of several checkpoint formats share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Listing(tuple[str, ...]):
    """Names that print as a list does."""

    def __str__(self) -> str:
        return str(list(self))


def count(names: Iterable[str], one: str, many: str = "") -> str:
    """`one 'name'` or `12 ones`."""
    names = list(names)
    return f"{one} {names[0]!r}" if len(names) == 1 else f"{len(names)} {many or one + 's'}"


def short(text: str) -> str:
    """A text in quotes, cut where it is long."""
    return repr(text) if len(text) <= 60 else f"{text[:40]!r}… ({len(text)} characters)"


def json_kind(value: Any) -> str:
    """A JSON value in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f"the text {short(value)}"
        case list():
            return f"a list of {len(value)}"
        case dict():
            return f"an object of {len(value)}"
        case _:
            return f"the number {value}"


def deeper(value: Any, limit: int) -> bool:
    """Whether containers lie within containers more than `limit` times."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(limit):
        if not level:
            return False
        level = [
            member
            for container in level
            for member in (container.values() if isinstance(container, dict) else container)
            if isinstance(member, (dict, list))
        ]
    return bool(level)
