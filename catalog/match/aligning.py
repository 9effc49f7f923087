"""How well a template's literals lie in a text that is cut short, reworded or mistyped.

The longest common subsequence of both lays them side by side; what is left of the text beside a hole is a
value, what is left elsewhere, of either, is a slip. All in the key domain. The weights were fitted to cut,
reworded and mistyped messages of other draws than the lookup benchmark's; each can change by half with little
effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rapidfuzz.distance import LCSseq

from catalog.match.prepared import LONGEST

SLIP: Final = 0.5
"""What a character that one side lacks takes from those that both have."""
BEFORE: Final = 0.2
"""The same for what a text has before a template's beginning: a prefix."""
BEHEADED: Final = 0.04
"""The same for what a text lacks of a template's beginning."""
VALUE: Final = 0.05
"""The same for a character of a value."""
STRAY: Final = 0.5
"""What a character takes that both have alone: most are chance."""
CUT: Final = 4.5
"""What a text takes that ends in the middle of a template, wherever: one cut explains all that is missing."""


class Aligned(NamedTuple):
    """`worth` orders templates of one text; `said` is how many literal characters the text has of one, less
    what one of the two has alone."""

    worth: float
    said: int


class _Gap(NamedTuple):
    """What lies between two runs of common characters: of the template, of the text, and whether a hole is
    there."""

    missing: int
    extra: int
    hole: bool


def align(key: bytes, keys: Sequence[bytes]) -> Aligned:
    """A text and a template of these literals side by side; at most LONGEST characters of either."""
    key = key[:LONGEST]
    loose = _loose(key, b"\x00".join(keys)[:LONGEST])
    begins = begun(key, keys)
    if not begins:
        return loose
    cut = CUT if begins < sum(map(len, keys)) else 0.0
    return max(loose, Aligned(begins - VALUE * (len(key) - begins) - cut, begins))


def begun(key: bytes, keys: Sequence[bytes]) -> int:
    """How many literal characters of a template a text consists of that is its beginning, cut anywhere in a
    literal or a value; 0 where it is none.
    """
    first, *rest = keys
    if not key.startswith(first):
        return len(key) if first.startswith(key) else 0
    at = said = len(first)
    for literal in filter(None, rest):
        found = key.find(literal, at, at + LONGEST + len(literal))
        if found < 0:
            return said + _overlap(key, literal, at)
        said += len(literal)
        at = found + len(literal)
    return said


def _overlap(key: bytes, literal: bytes, at: int) -> int:
    """How many characters of a literal's beginning a text ends with, none of them before `at`."""
    place = key.find(literal[:1], max(at, len(key) - len(literal)))
    while place >= 0 and not literal.startswith(key[place:]):
        place = key.find(literal[:1], place + 1)
    return len(key) - place if place >= 0 else 0


def _loose(key: bytes, template: bytes) -> Aligned:
    gaps: list[_Gap] = []
    same = stray = missing = extra = 0
    hole = False
    for block in LCSseq.opcodes(template, key):
        if block.tag == "equal":
            gaps.append(_Gap(missing, extra, hole))
            same += (length := block.src_end - block.src_start)
            stray += length == 1
            missing = extra = 0
            hole = False
        else:
            holes = template.count(0, block.src_start, block.src_end)
            missing += block.src_end - block.src_start - holes
            extra += block.dest_end - block.dest_start
            hole = hole or holes > 0
    if not same:
        return Aligned(0.0, 0)
    first, *between = gaps
    slips = sum(gap.missing + (0 if gap.hole else gap.extra) for gap in between)
    values = sum(gap.extra for gap in (first, *between) if gap.hole)
    if hole:
        values += extra
    else:
        slips += extra
    worth = same - SLIP * slips - VALUE * values - STRAY * stray - BEHEADED * first.missing
    worth -= (0.0 if first.hole else BEFORE * first.extra) + (CUT if missing else 0.0)
    return Aligned(worth, max(0, same - slips))
