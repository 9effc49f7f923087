"""Lines that are JSON objects around a message: docker's and containerd's, structured loggers',
torchelastic's error files.

Found in the text as pasted, before its escapes are undone; only places are told, so that every character
keeps its own."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from catalog.match.stamps import Stamp, epoch, stamp

LONGEST: Final = 1 << 20
"""Characters of one object that are read."""
PREFIXES: Final = 400
"""Characters before an object in which its line begins."""
SMALLEST: Final = 1 << 8
"""Values up to this long are looked at for ranks, hosts and times."""

_PAIR: Final = re.compile(
    r'"(?P<name>[^"\\\n]{1,60})"\s{0,4}:\s{0,4}(?:"(?P<text>[^"\\]*+(?:\\.[^"\\]*+)*+)(?:"|\Z)|(?P<number>\d{1,20}(?:\.\d{1,9})?))',
    re.DOTALL,
)
_FIRST: Final = ('"', " ", "\n", "\r")
"""What an object's opening bracket has behind it."""
_MESSAGES: Final = frozenset(
    (
        *("log", "message", "msg", "line", "text", "event", "body", "textpayload"),
        *("short_message", "full_message", "error_message", "detail", "details", "reason", "stringvalue"),
        *("error", "err", "exception", "exc_info", "exc_text"),
        *("traceback", "stack", "stacktrace", "stack_trace", "error_stack_trace", "error_stack"),
        *("exception_message", "exception_stacktrace"),
    )
)
_STACK: Final = "py_callstack"
"""What torchelastic keeps of an exception; the message beside it only repeats its end."""
_NUMBER: Final = re.compile(r"\d{9,20}(?:\.\d{1,9})?")
_TIMES: Final = frozenset(("time", "timestamp", "ts", "@timestamp", "asctime", "datetime", "created"))
_RANKS: Final = frozenset(("rank", "global_rank"))
_HOSTS: Final = frozenset(
    ("host", "hostname", "host_name", "node", "nodename", "node_name", "pod", "pod_name", "instance")
)


@dataclass(frozen=True, slots=True)
class Wrapped:
    """One object from `start` to `end`: the places of its messages, and what it says of their origin."""

    start: int
    end: int
    messages: tuple[tuple[int, int], ...]
    rank: int | None
    host: str | None
    time: str | None

    @property
    def stamp(self) -> Stamp | None:
        """Its time; a number counts from 1970."""
        if self.time is None:
            return None
        return epoch(self.time) if _NUMBER.fullmatch(self.time) else stamp(self.time)


def wrapped(text: str, start: int, stop: int, is_prefix: Callable[[int, int], bool]) -> Iterator[Wrapped]:
    """The objects with a message that lines between two offsets consist of, behind prefixes that loggers and
    launchers put before a line.
    """
    at = start
    while (at := text.find("{", at, stop)) >= 0:
        end = text.find("\n", at, stop)
        end = stop if end < 0 else end
        if text[at + 1 : at + 2] not in _FIRST:
            at = end
            continue
        begin = max(start, text.rfind("\n", start, at) + 1, at - PREFIXES)
        # A region may begin inside a line: what is before it there is unknown.
        whole = text[begin - 1 : begin] in ("", "\n")
        if whole and (begin == at or is_prefix(begin, at)):
            if text[at:end].strip() == "{":  # printed over several lines
                end = _closing(text, end, stop)
            if (found := _read(text, at, min(end, at + LONGEST))) is not None:
                yield found
        at = end


def _closing(text: str, at: int, stop: int) -> int:
    """The end of an object printed over several lines: where its closing bracket stands alone."""
    found = text.find("\n}", at, min(stop, at + LONGEST))
    return found + 2 if found >= 0 else at


def _read(text: str, start: int, end: int) -> Wrapped | None:
    messages: dict[str, tuple[int, int]] = {}
    rank: int | None = None
    host: str | None = None
    time: str | None = None
    for pair in _PAIR.finditer(text, start, end):
        name = pair["name"].lower().replace(".", "_")
        value = pair["text"] if pair["text"] is not None else pair["number"]
        if (name in _MESSAGES or name == _STACK) and pair["text"]:
            messages[f"{name}{len(messages)}"] = pair.span("text")
        elif len(value) > SMALLEST:
            continue
        elif name in _TIMES and time is None:
            time = value
        elif name in _RANKS and rank is None and value.isdigit():
            rank = int(value)
        elif name in _HOSTS and host is None and pair["text"]:
            host = value
    places = [place for name, place in messages.items() if name.startswith(_STACK)] or messages.values()
    return Wrapped(start, end, tuple(places), rank, host, time) if messages else None


class Wraps:
    """The objects of one text, by place."""

    def __init__(self, found: Sequence[Wrapped]) -> None:
        self._found = sorted(found, key=lambda each: each.start)
        self._starts = [each.start for each in self._found]

    def __bool__(self) -> bool:
        return bool(self._found)

    def at(self, offset: int) -> Wrapped | None:
        """The object around an offset."""
        number = bisect_right(self._starts, offset) - 1
        if number >= 0 and offset <= self._found[number].end:
            return self._found[number]
        return None
