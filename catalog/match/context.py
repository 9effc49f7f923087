"""What stands around a message: its exception class, stack frames, launcher prefix.

Works on cleaned text. Every search is bounded to a window around its place, so the cost per place is
constant."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple

from catalog.match.clean import REACH, Pasted

FRAME_LINES: Final = 400
FRAME_REACH: Final = 1 << 16
CHAINS: Final = 500
"""Links of chained tracebacks looked at."""
SENTENCES: Final = 20_000
"""Sentences around exceptions that are known as such in one text."""
HEADER: Final = b"Traceback (most recent call last)"


def _sentences(*sentences: bytes) -> re.Pattern[bytes]:
    """Any of some sentences, wherever a terminal or a logger has broken them between two words."""
    return re.compile(
        rb"|".join(rb"[\x00\x01\s]{1,64}".join(map(re.escape, each.split())) for each in sentences)
    )


_CHAINS: Final = (
    b"During handling of the above exception, another exception occurred:",
    b"The above exception was the direct cause of the following exception:",
)
_CHAIN: Final = _sentences(*_CHAINS)
_AROUND: Final = _sentences(
    *_CHAINS,
    b"Exception Group Traceback (most recent call last):",
    b"Traceback (most recent call last):",
    b"Stack (most recent call last):",
    b"terminate called after throwing an instance of",
    b"terminate called without an active exception",
    b"terminate called recursively",
)
_IN_AROUND: Final = (b"above", b"most recent", b"terminate")
_SPACE: Final = b"\x00\x01 \t"
_NAME: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_."
_RAISED: Final = re.compile(rb"(?:E(?:rror|xception|xit)|OutOfResources|Interrupt|Expired)(?![\w.])")
# What C++ prints of an exception that nobody caught, behind its class.
_THROWN: Final = re.compile(
    rb"terminate called after throwing an instance of '(?P<thrown>[^'\n]{1,200})'"
    rb"[\x00\x01\s]{1,400}what\(\):[\x00\x01 ]{0,8}"
)
_CLASS_BEFORE: Final = re.compile(
    rb"(?<![\w.])([A-Za-z_][\w.]{1,120}):[\x00\x01\s]{0,8}\Z|"
    rb"(?<![\w.])([A-Za-z_][\w.]{1,120})\([\"']\Z"
)
_CLASS: Final = re.compile(
    r"(?:Error|Exception|Exit|Interrupt|Warning|Resources|Expired|Failure)$|^[A-Z]\w*[a-z][A-Z]"
)
_STATEMENT: Final = re.compile(rb"[\x00\x01\s>+-]*(?:raise|assert)\b")
_SOURCE_ENDS: Final = b"\"'(fFrR"
_SOURCE: Final = re.compile(rb"\braise [\w.]{1,120}\([fFrR]{0,2}[\"']{0,3}\Z|(?<!\w)[fFrR]{1,2}[\"']{1,3}\Z")
_SOURCE_REACH: Final = 140
PROMISING: Final = (
    b"Error",
    b"Exception",
    b"Failed at ",
    b"Exit",
    b"OutOfResources",
    b"Interrupt",
    b"Expired",
    b"terminate called ",
)
_FRAME: Final = re.compile(
    rb"(\.(?:pyx?|cuh?|cc|cpp|hpp|h|rs))[\x00\x01]*+\"?(?:, line |:)(\d{1,7})(?![\d\]])"
    rb"(?:(?:,|:)? in ([\w.<>]{1,120}))?"
)
_LOCATION: Final = re.compile(rb"[^\s:]{1,400}:\d{1,7}: [\w.]{1,120}\Z")  # pytest's, below the message
_INSTALLED: Final = re.compile(r"(?:site|dist)-packages/([A-Za-z_]\w{0,80})[/.]")
_EXCEPTION_LINE: Final = re.compile(rb"[\w.]{1,160}(?:Error|Exception)(?::|\Z)")
_AT: Final = re.compile(rb"([^\s:]{1,400}):(\d{1,7})")
_LAUNCHER: Final = re.compile(rb"Failed at ([^\s:]{1,400}):(\d{1,7})(?: in [^\n]{0,400}?)?:\s{0,8}\Z")
_LAUNCHER_START: Final = re.compile(rb"\A[\x00\x01\s]{0,64}Failed at [^\s:]{1,400}:\d{1,7}:?")

# What Python itself raises: the text says nothing about the package whose frame is above it.
_OWN: Final = {
    "KeyError": re.compile(r""),  # whatever the key is
    "ZeroDivisionError": re.compile(r".*\b(by zero|modulo|negative power)"),
    "AttributeError": re.compile(
        r".*has no attribute '|.*object attribute '.*' is read-only|.*partially initialized"
    ),
    "IndexError": re.compile(r".*index out of range$|pop from empty"),
    "TypeError": re.compile(
        r"unsupported operand|'.*' object (is not|does not|cannot)|.*\b(missing|takes) .*argument"
        r"|.*got an unexpected keyword|.*not supported between|can only concatenate|must be real number"
        r"|.*argument must be "
    ),
    "NameError": re.compile(r"(free variable |name )'"),
    "UnboundLocalError": re.compile(r".*(referenced before assignment|not associated with a value)"),
    "ModuleNotFoundError": re.compile(r"No module named "),
    "ImportError": re.compile(r"cannot import name |attempted relative import"),
    "RecursionError": re.compile(r"maximum recursion"),
    "UnicodeDecodeError": re.compile(r"'.*' codec can't"),
    "UnicodeEncodeError": re.compile(r"'.*' codec can't"),
    "FileNotFoundError": re.compile(r"\[Errno "),
    "PermissionError": re.compile(r"\[Errno "),
    "OSError": re.compile(r"\[Errno "),
    "ValueError": re.compile(
        r"(too many|not enough) values to unpack|invalid literal for int|could not convert string"
    ),
}


def is_promising(data: bytes) -> bool:
    """Whether a text has a word by which it may hold an exception or a launcher's message."""
    return any(word in data for word in PROMISING)


def without_launcher(message: bytes) -> bytes:
    """A message without the `Failed at file:line: ` before it."""
    return _LAUNCHER_START.sub(b"", message, 1)


def after_launcher(data: bytes, start: int, stop: int) -> int:
    """Where a message begins behind the `Failed at file:line: ` before it, if there is one."""
    found = _LAUNCHER_START.match(data[start:stop])
    return start + found.end() if found else start


def chain_markers(pasted: Pasted) -> Iterator[int]:
    """Offsets of the sentences between the blocks of a chained traceback."""
    for start, stop in pasted.regions:
        if pasted.data.find(b"above", start, stop) < 0:
            continue
        for found in islice(_CHAIN.finditer(pasted.data, start, stop), CHAINS):
            yield found.start()


def around(pasted: Pasted) -> Iterator[tuple[int, int]]:
    """Where the sentences stand that are printed around exceptions: no message, nor a part of one."""
    for start, stop in pasted.regions:
        if any(pasted.data.find(word, start, stop) >= 0 for word in _IN_AROUND):
            for found in islice(_AROUND.finditer(pasted.data, start, stop), SENTENCES):
                yield found.span()


def tracebacks_between(pasted: Pasted, start: int, stop: int) -> int:
    """How many tracebacks begin between two offsets; 2 for any more, or when they are far apart."""
    if stop - start > FRAME_REACH:
        return 2
    return min(2, pasted.data.count(HEADER, start, max(start, stop)))


def python_own(exception: str, message: str) -> bool:
    """Whether Python itself, and no raise statement of a package, wrote this message."""
    pattern = _OWN.get(exception.rpartition(".")[2])
    return pattern is not None and pattern.match(message[:500]) is not None


def names_exception(data: bytes, start: int) -> bool:
    """Whether a word that ends as exceptions' names do stands behind an offset."""
    return _RAISED.search(data, start) is not None


@dataclass(frozen=True, slots=True)
class Frame:
    """A place named in the text. `source` is the line of code printed below it, "" when there is none."""

    path: str
    line: int
    function: str | None
    source: str

    @property
    def place(self) -> str:
        return f"{self.path.rpartition('/')[2]}:{self.line}"


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception in the text: its class at `start`, its message from `message` to `end` (offsets)."""

    exception: str
    start: int
    message: int
    end: int


class Head(NamedTuple):
    """What stands before a message. `starts`: the message begins here and not in the middle of a sentence."""

    exception: str | None
    launcher: Frame | None
    starts: bool
    source: bool


def _frames_in(line: bytes, source: str) -> Iterator[Frame]:
    for found in _FRAME.finditer(line):
        path = line[max(0, found.start() - 400) : found.end(1)]
        for delimiter in (b'"', b"(", b"'", b"[", b",", b" at "):
            path = path[path.rfind(delimiter) + len(delimiter) if delimiter in path else 0 :]
        function = found[3].decode("latin-1") if found[3] else None
        yield Frame(_spelled(path.strip(_SPACE)), int(found[2]), function, source)


def _spelled(path: bytes) -> str:
    return path.decode("latin-1").replace("\\", "/")


def frames_inside(data: bytes, start: int, end: int) -> list[Frame]:
    """The places that a message itself names, as a launcher's does."""
    return list(_frames_in(data[start : min(end, start + REACH)], ""))


def frames_above(data: bytes, offset: int) -> list[Frame]:
    """The frames of the traceback that a message ends, innermost first."""
    frames: list[Frame] = []
    source, strange = "", 0
    floor = max(0, offset - FRAME_REACH)
    end = data.rfind(b"\n", floor, offset)
    for _ in range(FRAME_LINES):
        if end <= floor:
            break
        begin = data.rfind(b"\n", floor, end) + 1 or floor
        line = data[begin : min(end, begin + REACH)].strip(_SPACE)
        end = begin - 1
        if found := list(_frames_in(line, source)):
            frames.extend(found)
            source, strange = "", 0
        elif (
            HEADER in line
            or _CHAIN.search(line)
            or (_EXCEPTION_LINE.match(line) and b"Tensor match failed" not in line)
        ):
            break
        elif line.strip(b"^~ "):
            source = line.decode("latin-1")
            strange += 1
            # A statement may be printed over several lines; prose and log lines have no end of them.
            if strange > 12:
                break
    return frames


def package_of(exception: str, frames: Sequence[Frame]) -> str | None:
    """The importable name of the installed package that raised an exception, by its innermost frame, else by
    the class's own module; None for a program of the user's own, or Python's.
    """
    if frames:
        found = _INSTALLED.search(frames[0].path)
        return found[1] if found is not None else None
    if exception.startswith(("c10::", "at::", "torch::")):
        return "torch"
    module = exception.partition(".")[0] if "." in exception else ""
    return module if module.islower() and module not in sys.stdlib_module_names else None


def frames_below(data: bytes, offset: int) -> list[Frame]:
    """Frames printed after the message: pytest's location, or the traceback that its line announces."""
    first, *lines = data[offset : offset + REACH].split(b"\n")
    if HEADER in first:
        return [frame for line in reversed(lines) for frame in _frames_in(line, "")]
    return [
        frame for line in lines[:3] if _LOCATION.match(line.strip(_SPACE)) for frame in _frames_in(line, "")
    ]


def head(pasted: Pasted, start: int) -> Head:
    """What stands before the message that starts at an offset."""
    data = pasted.data
    window = data[max(0, start - 900) : start].replace(b"\x00", b"").replace(b"\x01", b"")
    launcher, window = _launcher(window)
    before = window.rpartition(b"\n")[2]
    name = None
    if found := _CLASS_BEFORE.search(window, max(0, len(window) - 140)):
        name = (found[1] or found[2]).decode("latin-1")
    if name is None or not _CLASS.search(name.rpartition(".")[2]):
        name = None
        # A wrapper's words may stand between the class and the message.
        for raised in _RAISED.finditer(before):
            if before[raised.end() : raised.end() + 1] in (b":", b"("):
                name = _name_before(before, raised.end()).decode("latin-1")
    tail = before.rstrip(_SPACE)
    return Head(
        exception=name,
        launcher=launcher,
        starts=launcher is not None or not tail or tail[-1:] in b":\"'`-(]>|",
        source=in_source(pasted, start),
    )


def in_source(pasted: Pasted, start: int) -> bool:
    """Whether a message is a string in a line of code: a traceback's, a diff's."""
    window = pasted.data[max(pasted.line_start(start), start - 700) : start]
    if _STATEMENT.match(window):
        return True
    return window[-1:] in _SOURCE_ENDS and _SOURCE.search(window[-_SOURCE_REACH:]) is not None


def _launcher(window: bytes) -> tuple[Frame | None, bytes]:
    """The launcher's prefix at the end of a window: the place it names, and what is before it."""
    # The prefix itself may have been wrapped, inside its path too.
    for text in (window, window.replace(b"\n", b"")):
        at = text.rfind(b"Failed at ")
        if at >= 0 and (found := _LAUNCHER.search(text, at)):
            return Frame(_spelled(found[1]), int(found[2]), None, ""), text[:at]
    return None, window


def _name_before(data: bytes, end: int) -> bytes:
    begin = max(0, end - 160)
    part = data[begin:end]
    return part[len(part.rstrip(_NAME)) :].lstrip(b".0123456789")


def raised(pasted: Pasted, start: int, stop: int) -> Iterator[Raised]:
    """The exceptions printed between two offsets: `SomeError: message`, `SomeError("message")`, a bare class,
    or what ended a C++ program."""
    named = _named(pasted, start, stop)
    if pasted.data.find(b"terminate called", start, stop) < 0:
        return named
    return merge(named, _thrown(pasted, start, stop), key=lambda raised: raised.start)


def _thrown(pasted: Pasted, start: int, stop: int) -> Iterator[Raised]:
    for found in _THROWN.finditer(pasted.data, start, stop):
        name = found["thrown"].decode("latin-1")
        yield Raised(name, found.start(), found.end(), pasted.line_end(found.end()))


def _named(pasted: Pasted, start: int, stop: int) -> Iterator[Raised]:
    data = pasted.data
    for found in _RAISED.finditer(data, start, stop):
        end = found.end()
        name = _name_before(data, end)
        begin = end - len(name)
        last = name.rpartition(b".")[2]
        if not last[:1].isupper() or data[max(0, begin - 16) : begin].rstrip(_SPACE).endswith(
            (b"raise", b"except", b"class", b"import", b",", b"|", b"isinstance(")
        ):
            continue
        follow = data[end : end + 2]
        line_end = pasted.line_end(end)
        if follow[:1] == b":" and follow[1:] != b":":
            yield Raised(name.decode("latin-1"), begin, end + 1, line_end)
        elif follow in (b'("', b"('"):
            close = data.find(follow[1:] + b")", end + 2, line_end + 1)
            yield Raised(name.decode("latin-1"), begin, end + 2, close if close >= 0 else line_end)
        elif not data[end:line_end].strip(_SPACE + b"\r") and not data[
            pasted.line_start(begin) : begin
        ].strip(_SPACE):
            yield Raised(name.decode("latin-1"), begin, line_end, line_end)


def places(data: bytes, start: int, stop: int) -> Iterator[tuple[int, int, Frame]]:
    """`Failed at file:line` without a message between two offsets: (start, end, place)."""
    at = data.find(b"Failed at ", start, stop)
    while at >= 0:
        found = _AT.match(data, at + 10)
        if found is not None:
            rest = data[found.end() : found.end() + 400].split(b"\n")[0]
            if not rest.strip(_SPACE + b":\r\"'`),}]") or rest.startswith(b" in "):
                yield at, found.end(), Frame(_spelled(found[1]), int(found[2]), None, "")
        at = data.find(b"Failed at ", at + 10, stop)
