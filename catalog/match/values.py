"""What a message's holes printed: by the template's spelling and the looks of each kind, else by place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from catalog.match.clean import Pasted
from catalog.match.literals import Member
from catalog.match.model import Capture
from catalog.match.redact import redact

if TYPE_CHECKING:
    from catalog.match.extent import Extent

_DTYPES: Final = (
    r"bfloat16|bool|q?u?int(?:1|2|4|8|16|32|64)|complex(?:32|64|128)|float(?:16|32|64)"
    r"|float8_e(?:4m3fn(?:uz)?|5m2(?:fnuz)?|8m0fnu)|float4_e2m1fn_x2"
    r"|BF16|BOOL|[FIU](?:4|8|16|32|64)|F8_E(?:4M3|5M2|8M0)"
)
VALUES: Final = {
    kind: re.compile(pattern)
    for kind, pattern in {
        "dtype": rf"(?:torch\.)?(?:{_DTYPES})(?!\w)",
        "int": r"-?\d+",
        "float": r"-?(?:\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|inf|nan)%?",
        "bool": r"[Tt]rue|[Ff]alse",
        "device": r"[a-z]{2,12}(?::\d{1,4})?",
        "shape": r"torch\.Size\(\[[^\[\]]*\]\)|\([^()]*\)|\[[^\[\]]*\]|-?\d+(?:(?:, ?|x|×)-?\d+)*",
    }.items()
}
# How a value may look, to tell it from what follows it; free text may hold a list or be a quoted string.
_SPELLINGS: Final = {
    **VALUES,
    "name": re.compile(r"'[^'\s]*'|\"[^\"\s]*\"|[^\s'\"]+"),
    "path": re.compile(r"'[^'\s]*'|\"[^\"\s]*\"|[^\s'\"]+"),
    "text": re.compile(r"'[^']*'|\"[^\"]*\"|\[[^\[\]]*\]|\([^()]*\)|\{[^{}]*\}"),
}


def values(pasted: Pasted, found: Extent, member: Member) -> tuple[str, ...]:
    """What each hole of a member's template printed, as printed; line breaks of a hard wrap are undone."""
    text = pasted.shown(found.start, found.end)
    spellings = [text] if "\n" not in text or "\n" in member.template.message else [*_unwrapped(text), text]
    readings = [captured for spelling in spellings if (captured := read(member, spelling)) is not None]
    if readings:
        return (
            max(readings, key=lambda captured: _plausible(member, captured)) if readings[1:] else readings[0]
        )
    return tuple(_from_pieces(pasted, found, member))


def read(member: Member, text: str) -> tuple[str, ...] | None:
    """What each hole printed when `text` is the member's message and nothing else; None when it is not."""
    return _typed(member, text) or member.template.capture(text)


def _typed(member: Member, text: str) -> tuple[str, ...] | None:
    """As `Template.capture`, but a value that looks like its kind is taken whole: a shape with its commas."""
    first, *literals = member.template.segments
    if not text.startswith(first):
        return None
    captured: list[str] = []
    start = len(first)
    for at, (literal, kind) in enumerate(zip(literals, member.entry.hole_kinds, strict=True)):
        last = at == len(literals) - 1
        value = _SPELLINGS[kind].match(text, start)
        if value is not None and _follows(text, value.end(), literal, last=last):
            end = value.end()
            if not literal and not last and kind not in VALUES:
                end = _touching(member, at + 1, text, start) or end
        elif last:
            end = len(text) - len(literal) if text.endswith(literal) else -1
        else:
            end = text.find(literal, start + 1)
        if end <= start:
            return None
        captured.append(text[start:end])
        start = end + len(literal)
    return tuple(captured) if start == len(text) else None


def _follows(text: str, end: int, literal: str, *, last: bool) -> bool:
    """Whether a literal follows a value that ends there, the last one with nothing behind it."""
    return text.startswith(literal, end) and (not last or end + len(literal) == len(text))


def _touching(member: Member, at: int, text: str, start: int) -> int | None:
    """Where a value without looks of its own ends, no word between it and hole `at`, whose kind has looks."""
    kind, literal = member.entry.hole_kinds[at], member.template.segments[at + 1]
    last = at == len(member.template.holes) - 1
    places = _SPELLINGS[kind].finditer(text, start + 1) if kind in (*VALUES, "text") else ()
    return next((found.start() for found in places if _follows(text, found.end(), literal, last=last)), None)


def _plausible(member: Member, captured: tuple[str, ...]) -> int:
    """How many values look like their kind."""
    pairs = zip(member.entry.hole_kinds, captured, strict=True)
    return sum(_SPELLINGS[kind].fullmatch(value) is not None for kind, value in pairs)


def _unwrapped(text: str) -> Iterator[str]:
    """A message put together again: first the likelier way of the two it may have been wrapped."""
    lines = text.split("\n")
    # A terminal cuts at a column, inside words; an editor breaks at spaces.
    cut, broken = "".join(lines), " ".join(line.strip() for line in lines)
    yield from (cut, broken) if len(lines) > 2 and len({*map(len, lines[1:-1])}) == 1 else (broken, cut)


def _from_pieces(pasted: Pasted, found: Extent, member: Member) -> Iterator[str]:
    """The values by the literals' places, for a text whose spelling is not quite the template's."""
    segments = member.template.segments
    order = found.found.group.order
    edges = ([0] if found.found.group.leading_hole else []) + order
    edges += [len(segments) - 1] if found.found.group.trailing_hole else []
    for (left, right), (start, end) in zip(pairwise(edges), found.pieces, strict=True):
        piece = " ".join(pasted.shown(start, end).split())
        for sign in reversed(segments[left][len(segments[left].rstrip(" \"'`")) :].strip()):
            piece = piece.removeprefix(sign).lstrip()
        marks = " \"'`." if right == len(segments) - 1 else " \"'`"
        head = segments[right][: len(segments[right]) - len(segments[right].lstrip(marks))]
        for sign in reversed(head.strip()):
            piece = piece.removesuffix(sign).rstrip()
        for index in range(left + 1, right):
            separator = segments[index].strip() or " "
            value, _, piece = piece.partition(separator)
            yield value
            piece = piece.lstrip()
        yield piece


def rendered(member: Member, captured: tuple[str, ...]) -> str:
    """The message in upstream's spelling with the captured values."""
    first, *rest = member.template.segments
    return first + "".join(value + segment for value, segment in zip(captured, rest, strict=True))


def captures(
    member: Member, captured: tuple[str, ...], shown: Callable[[str], str] = redact
) -> tuple[Capture, ...]:
    """The values as they are given out: named, typed, without the quotes of a `!r` hole, redacted."""
    if not captured:
        return ()
    holes = zip(member.template.holes, captured, member.entry.hole_kinds, strict=True)
    return tuple(
        [
            Capture(hole.expr or str(number), shown(plain(value, hole.conversion)), kind)
            for number, (hole, value, kind) in enumerate(holes)
        ]
    )


def plain(value: str, conversion: str) -> str:
    """A value whose hole printed its `repr`: a string without the quotes and their escapes."""
    if conversion == "r" and len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1].replace("\\" + value[0], value[0]).replace("\\\\", "\\")
    return value
