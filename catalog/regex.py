"""Regular expressions that a stranger sends: RE2 only, linear in the text whatever is asked."""

from __future__ import annotations

from typing import Final

import re2

MAX_LENGTH: Final = 1000
"""Characters of a pattern."""
MAX_MEMORY: Final = 1 << 20
"""Bytes that RE2 may use for one compiled pattern; bounds the cost of each character searched."""

_TOO_LARGE: Final = ("pattern too large", "invalid repetition size")


class PatternError(ValueError):
    """A pattern that is not searched with."""


class PatternSyntaxError(PatternError):
    """RE2 cannot read the pattern; `position` is the character at which it stops making sense."""

    def __init__(self, what: str, position: int) -> None:
        super().__init__(f"{what} at position {position}")
        self.position = position


class PatternTooCostlyError(PatternError):
    """The pattern is longer, or takes more memory, than a search is worth."""


class UserRegex:
    """A compiled pattern. Case-sensitive unless the pattern says `(?i)`; `.` does not match a line break."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_LENGTH:
            raise PatternTooCostlyError(f"the pattern is longer than {MAX_LENGTH:,} characters")
        options = re2.Options()
        options.max_mem = MAX_MEMORY
        options.log_errors = False  # the pattern is the user's, and not for our log
        options.never_capture = True
        try:
            self._compiled = re2.compile(pattern.encode("utf-8", "replace"), options)
        except re2.error as error:
            raise _explained(pattern, error) from None

    def search(self, text: str) -> bool:
        """Whether the pattern occurs in the text."""
        return self._compiled.search(text.encode("utf-8", "replace")) is not None


def _explained(pattern: str, error: Exception) -> PatternError:
    """RE2 says what is wrong and repeats the part that is; the position is where that part stands."""
    said = error.args[0].decode("utf-8", "replace") if error.args else "unknown error"
    if said.startswith(_TOO_LARGE):
        return PatternTooCostlyError(said)
    what, _, part = said.partition(": ")
    if what.startswith("missing"):  # noticed at the end only
        return PatternSyntaxError(what, len(pattern))
    return PatternSyntaxError(said, max(pattern.find(part), 0))
