"""A user's regular expression over error messages: RE2 only, so linear time, of bounded size and duration."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from time import monotonic
from typing import Any, Final

import re2

MAX_PATTERN: Final = 1000
"""Bytes of a pattern."""
MAX_MEMORY: Final = 1 << 20
"""Bytes that RE2 may use for a pattern and its automaton."""
SECONDS: Final = 2.0
"""How long a search may take."""
PIECE: Final = 1 << 16
"""Bytes searched between two looks at the clock."""

# Where an anchor stands, or may stand, a row has to be searched alone.
_ANCHOR: Final = re.compile(rb"[\^$]|\\[Az]")
_SWAPPED: Final = re.compile(r"\{(\d+),(\d+)\}")


class BadPattern(ValueError):
    """Not a regular expression of RE2's dialect: `reason`, and the character `position` where it fails."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"{reason} at position {position}")
        self.reason = reason
        self.position = position


class TooCostly(ValueError):
    """A regular expression, but a longer, larger or slower one than this service searches with."""


def search_messages(pattern: str, messages: Sequence[str]) -> list[int]:
    """Indexes of the messages in which the pattern is found, in order. Raises BadPattern or TooCostly."""
    encoded = pattern.encode("utf-8", "replace")
    compiled = _compile(pattern, encoded)
    rows = [message.encode("utf-8", "replace") for message in messages]
    alone = _ANCHOR.search(encoded) is not None
    found: list[int] = []
    deadline = monotonic() + SECONDS
    for first, piece in _pieces(rows):
        found.extend(
            first + index for index in (_singly(compiled, piece) if alone else _together(compiled, piece))
        )
        if monotonic() > deadline:
            raise TooCostly(f"the search takes longer than {SECONDS:g} s")
    return found


def _compile(pattern: str, encoded: bytes) -> Any:
    if len(encoded) > MAX_PATTERN:
        raise TooCostly(f"a pattern has at most {MAX_PATTERN} bytes, this one has {len(encoded)}")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_MEMORY
    options.never_capture = True
    try:
        return re2.compile(encoded, options)
    except re2.error as error:
        raise _refused(pattern, error.args[0].decode("utf-8", "replace")) from None


def _refused(pattern: str, said: str) -> BadPattern | TooCostly:
    """What RE2 says about a pattern; it names the part that is wrong, not where that part is."""
    reason, _, part = said.partition(": ")
    if "too large" in reason:
        return TooCostly("the pattern needs too much memory")
    if reason == "invalid repetition size" and not any(
        int(low) > int(up) for low, up in _SWAPPED.findall(part)
    ):
        return TooCostly(f"too many repetitions: {part}")
    if reason == "missing )":
        return BadPattern("missing )", len(pattern))
    if not part:
        return BadPattern(reason, max(0, len(pattern) - 1))
    return BadPattern(f"{reason}: {part}", max(0, pattern.rfind(part)))


def _pieces(rows: Sequence[bytes]) -> Iterator[tuple[int, Sequence[bytes]]]:
    """Consecutive rows of about PIECE bytes, with the index of the first."""
    first = size = 0
    for index, row in enumerate(rows):
        size += len(row)
        if size >= PIECE:
            yield first, rows[first : index + 1]
            first, size = index + 1, 0
    yield first, rows[first:]


def _singly(compiled: Any, rows: Sequence[bytes]) -> Iterator[int]:
    return (index for index, row in enumerate(rows) if compiled.search(row) is not None)


def _together(compiled: Any, rows: Sequence[bytes]) -> Iterator[int]:
    """As `_singly`, in one search over all rows joined, which is some hundred times faster when few match.

    A pattern that runs over the end of a row would start over in every one; the rest is then searched singly.
    """
    buffer = b"\n".join(rows)
    starts = list(accumulate((len(row) + 1 for row in rows), initial=0))
    at = 0
    while at < len(rows) and (found := compiled.search(buffer, starts[at])) is not None:
        index = bisect_right(starts, found.start(), hi=len(rows)) - 1
        if found.end() >= starts[index + 1]:
            yield from (index + rest for rest in _singly(compiled, rows[index:]))
            return
        yield index
        at = index + 1
