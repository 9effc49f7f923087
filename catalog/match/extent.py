"""From the literals of a template to the message around them: where it starts and ends, and what its holes
hold.

A message ends at the end of its line or at the quote it stands in; a hard wrap or an open bracket carries
it on."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final, NamedTuple

from catalog.match.clean import Chunk, Pasted
from catalog.match.literals import Found, Group
from catalog.match.values import VALUES

MAX_LINES: Final = 8
"""Lines a message is followed over when it is wrapped."""
MAX_QUOTES: Final = 16
"""Quotes inside a quoted message that are looked at to find the one that closes it."""
MAX_STARTS: Final = 8
"""Places of a first literal that are looked at to find one that begins a word."""
NEAR: Final = 400
"""Characters from a line's start in which its message is looked for once more."""
MAX_BROKEN: Final = 200
"""Longest value that a line break may divide while the template has little text of its own."""

_SPACE: Final = b"\x00\x01 \t"
_RAISED_AT_END: Final = re.compile(rb"[\w.]{1,120}(?:Error|Exception)(?::[\x00\x01 \t]{0,8}|\([\"'])")
_NEW_RECORD: Final = re.compile(
    rb"[\x00\x01 \t]*(?:Traceback \(|File \"|During handling|The above exception"
    rb"|[\w.]{1,120}(?:Error|Exception)\b|[-=~^]{3})"
)
_AFTER: Final = re.compile(
    rb"[.,]*[\x00\x01 \t]*(?:Traceback \(most recent call last\):?|\[repeated \d+x across cluster\])"
    rb"|(?:</\w{1,12}>)+\Z"
)
_NAMED: Final = re.compile(rb"([A-Za-z_][\w.]{1,120}):[\x00\x01 ]{1,8}")
_CLOCK: Final = re.compile(r"\d:\d\d:\d\d")
_AFTER_WORDS: Final = (b"Traceback (", b" across cluster]", b"</")
REPEATED: Final = re.compile(rb"\[repeated (\d{1,6})x across cluster\]")

_VALUE_ENDS: Final = re.compile(r"\Z|[^\w.+-]|\.(?!\w)")


class Extent(NamedTuple):
    """A message in the text (offsets). `pieces` are the holes' stretches between non-empty literals.

    `ends`: nothing of the same sentence follows it.
    """

    found: Found
    start: int
    end: int
    pieces: tuple[tuple[int, int], ...]
    ends: bool

    def holds(self, other: Extent) -> bool:
        """Whether another message lies inside one of this one's values."""
        return any(start <= other.start and other.end <= end for start, end in self.pieces)


def extent(pasted: Pasted, chunk: Chunk, found: Found) -> Extent | None:
    """The message around a group's literals, None when they are only part of other words."""
    data, group = pasted.data, found.group
    if not group.members:
        return None  # the snapshot that they are in has turned out to be damaged
    spots = [_spot(chunk, place) for place in found.places]
    start = spots[0][0]
    if group.leading_hole:
        start = _message_start(pasted, start + data.startswith(b":", start))
        first = group.members[0].template.segments[1]
        for _ in range(len(first) - len(first.lstrip("\n"))):
            start = _message_start(pasted, pasted.line_start(start) - 1) if start else start
        start = behind_own_class(data, start, group)
        if start > spots[0][0]:
            # The colon behind an exception's class is no word of its message; a log line may print the class.
            if not group.members[0].entry.logged:
                return None
            line = pasted.line_start(start)
            start = max(found.start() for found in _RAISED_AT_END.finditer(data, line, start))
    else:
        # The first literal may be short and stand inside the value behind it, too.
        if len(spots) > 1 and (place := _at_the_start(pasted, chunk, found, start)) is not None:
            spots[0] = _spot(chunk, place)
            start = spots[0][0]
        for _ in range(MAX_STARTS):
            if not start or not (_is_word(data[start - 1 : start]) and _is_word(data[start : start + 1])):
                break
            if group.keys[-1] and chunk.key.endswith(group.keys[-1], 0, chunk.key_index(start)):
                break  # the same message again
            if len(spots) == 1 or (place := chunk.rfind(group.keys[0], start)) is None:
                return None
            spots[0] = _spot(chunk, place)
            start = spots[0][0]
        else:
            return None
    quote = pasted.open_quote(start)
    if group.trailing_hole:
        end = _message_end(pasted, found, quote, start, spots[-1][1])
    else:
        if len(spots) > 1:
            spots[-1] = _last(pasted, chunk, found, spots, quote)
        end = spots[-1][1]
        if _is_word(data[end - 1 : end]) and _is_word(data[end : end + 1]):
            again = group.keys[0] and chunk.key.startswith(group.keys[0], chunk.key_index(end))
            if not again:
                return None
    bounds = [(start, start)] * group.leading_hole + spots + [(end, end)] * group.trailing_hole
    pieces = tuple((left, right) for (_, left), (right, _) in pairwise(bounds))
    if group.weight < 40 and any(_broken(data[left:right]) for left, right in pieces):
        return None
    tail = group.members[0].tail
    if tail and data.startswith(tail, end) and not data.endswith(tail, spots[-1][1], end):
        end += len(tail)
    rest = data[end : end + 64].split(b"\n")[0].strip(_SPACE)
    ends = not rest or rest[:1] in b"\"'`)]}<.," or REPEATED.match(rest) is not None
    return Extent(found, start, end, pieces, ends)


def _spot(chunk: Chunk, place: tuple[int, int]) -> tuple[int, int]:
    return chunk.offset(place[0]), chunk.offset(place[1] - 1) + 1


def _is_word(byte: bytes) -> bool:
    return byte.isalnum() or byte == b"_"


def _broken(value: bytes) -> bool:
    return len(value) > MAX_BROKEN and b"\n" in value


def _message_start(pasted: Pasted, offset: int) -> int:
    """Where a message that starts with a value starts: behind the exception's class, or at the line's
    start."""
    line = pasted.line_start(offset)
    before = pasted.data[line:offset]
    starts = [found.end() for found in _RAISED_AT_END.finditer(before)]
    begin = starts[-1] if starts else len(before) - len(before.lstrip(_SPACE))
    return line + begin


def _at_the_start(pasted: Pasted, chunk: Chunk, found: Found, offset: int) -> tuple[int, int] | None:
    """The first literal where the text or an exception's message begins, if what was taken for it is in the
    value behind that."""
    literal = found.group.keys[0]
    if offset - pasted.line_start(offset) > NEAR or chunk.rfind(literal, offset) is None:
        return None
    start = _message_start(pasted, offset)
    if start < chunk.start or (start and not _is_behind_class(pasted, start)):
        return None
    at = chunk.key_index(start)
    return (at, at + len(literal)) if chunk.key.startswith(literal, at) else None


def _is_behind_class(pasted: Pasted, offset: int) -> bool:
    """Whether an exception's class and a colon stand right before an offset."""
    before = pasted.data[max(0, offset - 140) : offset]
    return any(found.end() == len(before) for found in _RAISED_AT_END.finditer(before))


def behind_own_class(data: bytes, start: int, group: Group) -> int:
    """Where a message begins behind the class that its record is raised as, whatever that is called; else
    `start`.
    """
    found = _NAMED.match(data, start)
    if found is None:
        return start
    name = found[1].rpartition(b".")[2].decode("latin-1")
    return found.end() if any(name in member.raised_as for member in group.members) else start


def _last(
    pasted: Pasted, chunk: Chunk, found: Found, spots: list[tuple[int, int]], quote: bytes
) -> tuple[int, int]:
    """The last literal: where the message's line ends with it, else the first one after the value."""
    literal = found.group.keys[-1]
    stop = _stop(pasted, quote, spots[-2][1])
    if stop <= spots[-1][1]:
        return spots[-1]
    at = chunk.key_index(min(stop, chunk.stop))
    while at > found.places[-2][1] and chunk.key[at - 1 : at] == b".":
        at -= 1
    if chunk.key.endswith(literal, found.places[-2][1], at):
        return _spot(chunk, (at - len(literal), at))
    return spots[-1]


def _stop(pasted: Pasted, quote: bytes, offset: int) -> int:
    """The end of the line, or the quote that closes the message before it."""
    data = pasted.data
    end = pasted.line_end(offset)
    if quote:
        at = offset - 1
        for _ in range(MAX_QUOTES):
            at = data.find(quote, at + 1, end)
            if at < 0:
                break
            follow = data[at + len(quote) : at + len(quote) + 1]
            if data[at - 1] != 1 and (not follow or follow in b" \t\n\r,)]}:;.<?!\x00\x01"):
                return at
    return end


def _message_end(pasted: Pasted, found: Found, quote: bytes, start: int, offset: int) -> int:
    """The end of a message whose last hole begins at `offset`."""
    data = pasted.data
    member = found.group.members[0]
    # Of several last values with blanks between them alone, none ends the message by its looks.
    several = len(member.template.segments) - found.group.order[-1] > 2
    kind = "text" if several else member.entry.hole_kinds[-1]
    literal_break = "\n" in member.template.message
    end = _stop(pasted, quote, offset)
    last = member.template.segments[-2]
    for _ in range(last[len(last.rstrip()) :].count("\n")):
        if data[end : end + 1] == b"\n" and not data[offset:end].strip(_SPACE + b"\n"):
            end = pasted.line_end(end + 1)  # the value stands on a line of its own
    # Nothing but a line break stands between two values: the last one is on a further line.
    for _ in range("".join(member.template.segments[found.group.order[-1] + 1 : -1]).count("\n")):
        if data[end : end + 1] == b"\n":
            end = pasted.line_end(end + 1)
    for _ in range(MAX_LINES):
        follow = pasted.line_end(end + 1)
        line = data[end + 1 : follow]
        value = data[offset:end].strip(_SPACE)
        if data[end : end + 1] != b"\n" or value.endswith(b"...") or _is_record(pasted, end + 1, line):
            break
        word = line.split(None, 1)[0].strip(_SPACE)
        if kind == "dtype" and _cut_inside(value, word):
            end = data.index(word, end) + len(word)
            break
        if value and not _open(value) and not (not literal_break and _wrapped(pasted, start, end, word)):
            break
        end = follow
    value = data[offset:end]
    if any(word in value for word in _AFTER_WORDS) and (after := _AFTER.search(value)):
        end = offset + after.start()
    return _typed_end(pasted, kind, offset, end)


def _is_record(pasted: Pasted, offset: int, line: bytes) -> bool:
    """Whether a line is empty or begins something of its own: a log record, a traceback, another
    exception."""
    blanks = len(line) - len(line.lstrip(_SPACE))
    stamp = _CLOCK.search(pasted.text, offset, offset + blanks)
    return blanks == len(line) or stamp is not None or _NEW_RECORD.match(line) is not None


def _wrapped(pasted: Pasted, start: int, end: int, word: bytes) -> bool:
    """Whether the message was broken before and `word` would not have fitted into its last line either."""
    first, *middle = pasted.data[start:end].split(b"\n")
    if not middle:
        return False
    widths = [start - pasted.line_start(start) + len(first), *map(len, middle[:-1])]
    return len(middle[-1]) + 1 + len(word) > max(widths)


def _cut_inside(value: bytes, word: bytes) -> bool:
    """Whether a line break cut the name of an element type in two."""
    text, joined = value.decode("latin-1"), (value + word).decode("latin-1")
    dtype = VALUES["dtype"]
    return dtype.fullmatch(text) is None and dtype.fullmatch(joined) is not None


def _open(value: bytes) -> bool:
    """Whether a bracket, or the quote that a value begins with, is still open."""
    quoted = value[:1] in (b"'", b'"') and value.count(value[:1]) == 1
    return quoted or any(value.count(pair[:1]) > value.count(pair[1:]) for pair in (b"()", b"[]", b"{}"))


def _typed_end(pasted: Pasted, kind: str, start: int, end: int) -> int:
    """A value of a known kind ends where its kind does; others lose trailing blanks and an ellipsis."""
    data = pasted.data
    text = data[start:end].decode("latin-1")
    if (stop := typed_end(text, kind, 0)) < len(text):
        return start + stop
    kept = start + len(text.rstrip("\x00\x01 \t\n"))
    if data[start:kept].endswith(b"..."):
        kept -= 3
    while kept > start and pasted.text[kept - 1] in "…\ufffd":
        kept -= 1
    return max(start, kept)


def typed_end(text: str, kind: str, start: int) -> int:
    """Where a value of a known kind ends that begins behind the blanks at `start`; else the text's end."""
    if kind in VALUES:
        begin = len(text) - len(text[start:].lstrip("\x00\x01 \t\n"))
        found = VALUES[kind].match(text, begin)
        if found is not None and _VALUE_ENDS.match(text, found.end()):
            return found.end()
    return len(text)
