"""What the scanner finds: sites with their templates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from catalog.template import Template
from kernels.message import Hole

Parts = tuple[str | Hole, ...]
"""A message as literals and holes, in order."""
Kind = Literal["raise", "assert", "log", "warning", "check", "exit", "http"]
Level = Literal["critical", "error", "warning"]


ANY: Final = "**"
"""Keyword of an argument that is a mapping of some."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a call: its keyword, None by position, what it prints, and its source."""

    keyword: str | None
    parts: Parts
    text: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """One statement that reports an error.

    parts       the message; None where it has none
    expression  the statement's source on one line, which names a site without a message
    conditions  what must hold to reach it, outermost first
    arguments   of an exception class or helper that may build the message itself
    """

    kind: Kind
    exception: str
    level: Level
    parts: Parts | None
    expression: str
    line: int
    end_line: int
    function: str | None
    owner: str | None
    conditions: tuple[str, ...]
    arguments: tuple[Argument, ...] = ()
    http_status: int | None = None


@dataclass(frozen=True, slots=True)
class Builder:
    """What an exception class or a helper makes of its parameters.

    `exception` is None for a class, whose own name it is. `defaults` are what parameters print that are not
    given; `condition`, of a C++ macro, is what must hold, in its parameters.
    """

    name: str
    parameters: tuple[str, ...]
    parts: Parts
    exception: str | None = None
    level: Level = "error"
    defaults: tuple[tuple[str, Parts], ...] = ()
    condition: str = ""
    kind: Kind = "raise"


@dataclass(frozen=True, slots=True)
class Scanned:
    """One file: its sites, what it defines for others, and calls that may raise elsewhere."""

    path: str
    sites: tuple[Found, ...] = ()
    classes: tuple[Builder, ...] = ()
    helpers: tuple[Builder, ...] = ()
    calls: tuple[Found, ...] = ()
    snippets: tuple[tuple[int, int], ...] = ()
    """Per site, then per call: the first and the last line to show."""
    code: bytes = b""
    """Those lines at their places, compressed."""
    language: Literal["python", "cpp"] = "python"
    makers: tuple[Builder, ...] = ()
    """Functions that return the exception they are called for."""
    bases: tuple[tuple[str, str], ...] = ()
    """(class, the class it is made of first)."""
    constants: tuple[tuple[str, Parts], ...] = ()
    """Texts of upper-case names of the module, for those who import them."""
    includes: tuple[str, ...] = ()
    """Of a C++ file, the files that it includes, as it names them."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that could not be scanned, and why."""

    path: str
    reason: str


def template_of(parts: Iterable[str | Hole]) -> Template:
    """The template; braces of literals are doubled where it has holes, as in the f-string it stands for."""
    merged = list(_merged(parts))
    holes = tuple(part for part in merged if isinstance(part, Hole))
    segments = [""]
    for part in merged:
        if isinstance(part, Hole):
            segments.append("")
        else:
            segments[-1] += part
    if not holes:
        return Template(segments[0], (segments[0],), ())
    spelled = "".join(
        f"{{{part.text}}}" if isinstance(part, Hole) else part.replace("{", "{{").replace("}", "}}")
        for part in merged
    )
    return Template(spelled, tuple(segments), holes)


def literal_length(parts: Iterable[str | Hole]) -> int:
    """Characters of its literals, white space left out."""
    return sum(len("".join(part.split())) for part in parts if isinstance(part, str))


def _merged(parts: Iterable[str | Hole]) -> Iterator[str | Hole]:
    text = ""
    for part in parts:
        if isinstance(part, str):
            # NUL and lone surrogates are in no text that is stored or served.
            text += part.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")
            continue
        if text:
            yield text
        text = ""
        yield part
    if text:
        yield text
