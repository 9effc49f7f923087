"""Message templates: upstream's text with its holes, letter by letter.

A template is what upstream wrote between the quotes of an f-string. Its holes are opaque text here: they are
printed as they stand in a record, filled with a violation's fields when rendered, and never evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from string import Formatter


@dataclass(frozen=True, slots=True)
class Hole:
    """One `{expr}` of a template; `conversion` is "r", "s", "a" or "" as upstream wrote it."""

    expr: str
    conversion: str = ""
    format_spec: str = ""

    @property
    def text(self) -> str:
        """The hole's expression and conversion, without braces: `scale_name!r`."""
        conversion = f"!{self.conversion}" if self.conversion else ""
        spec = f":{self.format_spec}" if self.format_spec else ""
        return f"{self.expr}{conversion}{spec}"

    def fill(self, value: object) -> str:
        """The value as this hole prints it."""
        converted: object = {"r": repr, "a": ascii}.get(self.conversion, lambda v: v)(value)
        return format(converted, self.format_spec)


@lru_cache(maxsize=4096)
def parse(message: str) -> tuple[str | Hole, ...]:
    """Split a template into literals and holes, in order; empty literals are left out."""
    parts: list[str | Hole] = []
    for literal, expr, spec, conversion in Formatter().parse(message):
        if literal:
            parts.append(literal)
        if expr is not None:
            parts.append(Hole(expr, conversion or "", spec or ""))
    return tuple(parts)


def holes(message: str) -> tuple[Hole, ...]:
    """The holes of a template, in order."""
    return tuple(part for part in parse(message) if isinstance(part, Hole))


def render(message: str, values: Iterable[object]) -> str:
    """Fill a template's holes in order; raises ValueError when the counts differ."""
    remaining = list(values)
    out: list[str] = []
    for part in parse(message):
        if isinstance(part, Hole):
            if not remaining:
                raise ValueError(f"too few values for {message!r}")
            out.append(part.fill(remaining.pop(0)))
        else:
            out.append(part)
    if remaining:
        raise ValueError(f"{len(remaining)} values too many for {message!r}")
    return "".join(out)
