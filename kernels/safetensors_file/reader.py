"""serde_json's reader, as far as its errors show it: every text, and the index that it had read up to."""

from __future__ import annotations

import json
import re
from math import inf, isinf
from typing import Any

from kernels.safetensors_file.wording import Pairs, Part, Refused, invalid_type

METADATA = "__metadata__"
USIZE = 2**64 - 1
DEPTH = 128
"""Nesting at which serde_json gives up."""
EXACT = 256 * 1024
"""Bytes of a header up to which a syntax fault gets the library's own text."""
OMITTED = "…"
"""Stands for a text that was not computed."""

_BLANKS = re.compile(rb"[ \t\n\r]*")
_DIGITS = re.compile(rb"[0-9]*")
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]*')
_HEX = re.compile(rb"[0-9a-fA-F]{4}")
_EOF_VALUE = "EOF while parsing a value"
_EOF_STRING = "EOF while parsing a string"


class Reader:
    """serde_json's reader of a slice: `at` is its index, and what messages count from."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.left = DEPTH

    def here(self, text: str) -> Refused:
        """A syntax error behind the last byte taken."""
        return Refused(Part.SYNTAX, text, self.at)

    def ahead(self, text: str) -> Refused:
        """A syntax error at the next byte, which is only looked at."""
        return Refused(Part.SYNTAX, text, min(self.at + 1, len(self.data)))

    def peek(self) -> bytes:
        return self.data[self.at : self.at + 1]

    def blanks(self) -> bytes:
        """Skip white space; the next byte, empty at the end. Every value and key passes here."""
        if self.at > EXACT:
            raise Refused(Part.SYNTAX, OMITTED)
        self.at = _end(_BLANKS, self.data, self.at)
        return self.peek()

    def take(self) -> bytes:
        byte = self.peek()
        self.at += len(byte)
        return byte

    def header(self) -> tuple[dict[str, str], Pairs]:
        """Metadata, and the other members without types, to the closing brace."""
        found = self.blanks()
        if not found:
            raise self.ahead(_EOF_VALUE)
        if found != b"{":
            raise self.unexpected(Part.ENTRY, "struct HashMetadata")
        self.descend()
        metadata: dict[str, str] | None = None
        seen = False
        collected = Pairs()
        first = True
        while self.another_key(first):
            first = False
            key = self.string()
            if key != METADATA:
                self.colon()
                collected.append((key, self.value()))
            elif seen:
                self.leave(b"}")
                raise Refused(Part.METADATA, f"duplicate field `{METADATA}`")
            else:
                seen = True
                self.colon()
                metadata = self.metadata()
        self.at += 1
        return metadata or {}, collected

    def finish(self) -> None:
        """Refuse whatever follows the header's object."""
        if self.blanks():
            raise self.ahead("trailing characters")

    def metadata(self) -> dict[str, str] | None:
        found = self.blanks()
        if not found:
            raise self.ahead(_EOF_VALUE)
        if found == b"n":
            self.word(b"null")
            return None
        if found != b"{":
            raise self.unexpected(Part.METADATA, "a map")
        self.descend()
        members: dict[str, str] = {}
        while self.another_key(not members):
            key = self.string()
            self.colon()
            found = self.blanks()
            if not found:
                raise self.ahead(_EOF_VALUE)
            if found != b'"':
                raise self.unexpected(Part.METADATA, "a string", key)
            self.at += 1
            members[key] = self.string()
        self.ascend()
        return members

    def descend(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.ahead("recursion limit exceeded")
        self.at += 1

    def ascend(self) -> None:
        self.left += 1
        self.at += 1

    def leave(self, bracket: bytes) -> None:
        """What serde_json still does after a member failed: it looks for the end."""
        if self.blanks() == bracket:
            self.at += 1

    def another_key(self, first: bool) -> bool:
        """Whether a key follows; its opening quote is taken then."""
        found = self.blanks()
        if not found:
            raise self.ahead("EOF while parsing an object")
        if found == b"}":
            return False
        if not first:
            if found != b",":
                raise self.ahead("expected `,` or `}`")
            self.at += 1
            found = self.blanks()
            if found == b"}":
                raise self.ahead("trailing comma")
            if not found:
                raise self.ahead(_EOF_VALUE)
        if found != b'"':
            raise self.ahead("key must be a string")
        self.at += 1
        return True

    def another_item(self, first: bool) -> bool:
        found = self.blanks()
        if not found:
            raise self.ahead("EOF while parsing a list")
        if found == b"]":
            return False
        if first:
            return True
        if found != b",":
            raise self.ahead("expected `,` or `]`")
        self.at += 1
        found = self.blanks()
        if found == b"]":
            raise self.ahead("trailing comma")
        if not found:
            raise self.ahead(_EOF_VALUE)
        return True

    def colon(self) -> None:
        found = self.blanks()
        if found != b":":
            raise self.ahead("expected `:`" if found else "EOF while parsing an object")
        self.at += 1

    def value(self) -> Any:
        """Any value, collected without a type."""
        found = self.blanks()
        if found == b"{":
            self.descend()
            pairs = Pairs()
            while self.another_key(not pairs):
                key = self.string()
                self.colon()
                pairs.append((key, self.value()))
            self.ascend()
            return pairs
        if found == b"[":
            self.descend()
            items: list[Any] = []
            while self.another_item(not items):
                items.append(self.value())
            self.ascend()
            return items
        return self.scalar()

    def scalar(self) -> Any:
        found = self.peek()
        if found == b'"':
            self.at += 1
            return self.string()
        if found == b"-" or found.isdigit():
            return self.number()
        for word, value in ((b"null", None), (b"true", True), (b"false", False)):
            if found == word[:1]:
                self.word(word)
                return value
        raise self.ahead("expected value" if found else _EOF_VALUE)

    def word(self, word: bytes) -> None:
        self.at += 1
        for wanted in word[1:]:
            found = self.take()
            if not found:
                raise self.here(_EOF_VALUE)
            if found[0] != wanted:
                raise self.here("expected ident")

    def number(self) -> int | float:
        start = self.at
        if self.peek() == b"-":
            self.at += 1
        first = self.take()
        if not first.isdigit():
            raise self.here("invalid number" if first else _EOF_VALUE)
        if first != b"0":
            self.digits()
        elif self.peek().isdigit():
            raise self.ahead("invalid number")
        whole = self.data[start : self.at].lstrip(b"-")
        fraction, exponent = b"", b""
        integer = True
        if self.peek() == b".":
            integer = False
            self.at += 1
            fraction = self.digits()
            if not fraction:
                raise self.ahead("invalid number" if self.peek() else _EOF_VALUE)
        if self.peek() in (b"e", b"E"):
            integer = False
            self.at += 1
            sign = self.take() if self.peek() in (b"+", b"-") else b""
            if not self.peek().isdigit():
                raise self.here("invalid number" if self.take() else _EOF_VALUE)
            begin = self.at
            exponent = sign + self.digits()
            if sign != b"-" and (whole + fraction).strip(b"0"):
                self.exponent_overflow(begin)
        negative = self.data[start : start + 1] == b"-"
        if integer and len(whole) <= 20:
            value = -int(whole) if negative else int(whole)
            if -(2**63) <= value <= USIZE and not (negative and value == 0):
                return value
        number = _double(whole, fraction, exponent)
        if isinf(number):
            raise self.here("number out of range")
        return -number if negative else number

    def exponent_overflow(self, begin: int) -> None:
        """Refuse an exponent beyond 32 bits at the digit that takes it there."""
        for length in range(10, min(self.at - begin, 400) + 1):
            if int(self.data[begin : begin + length]) > 2**31 - 1:
                self.at = begin + length
                raise self.here("number out of range")

    def digits(self) -> bytes:
        start = self.at
        self.at = _end(_DIGITS, self.data, start)
        return self.data[start : self.at]

    def string(self) -> str:
        """The rest of a string whose opening quote has been taken."""
        start = self.at - 1
        while True:
            self.at = _end(_PLAIN, self.data, self.at)
            found = self.take()
            if found == b'"':
                text: str = json.loads(self.data[start : self.at].decode())
                return text
            if not found:
                raise self.here(_EOF_STRING)
            if found != b"\\":
                raise self.here("control character (\\u0000-\\u001F) found while parsing a string")
            self.escape()

    def escape(self) -> None:
        if self.at > EXACT:
            raise Refused(Part.SYNTAX, OMITTED)
        found = self.take()
        if not found:
            raise self.here(_EOF_STRING)
        if found != b"u":
            if found not in b'"\\/bfnrt':
                raise self.here("invalid escape")
            return
        code = self.hexadecimal()
        if 0xD800 <= code < 0xDC00:
            for wanted in (b"\\", b"u"):
                found = self.take()
                if found != wanted:
                    raise self.here("unexpected end of hex escape" if found else _EOF_STRING)
            if not 0xDC00 <= self.hexadecimal() < 0xE000:
                raise self.here("lone leading surrogate in hex escape")
        elif 0xDC00 <= code < 0xE000:
            raise self.here("lone leading surrogate in hex escape")

    def hexadecimal(self) -> int:
        digits = self.data[self.at : self.at + 4]
        self.at += len(digits)
        if len(digits) < 4:
            raise self.here(_EOF_STRING)
        if not _HEX.fullmatch(digits):
            raise self.here("invalid escape")
        return int(digits, 16)

    def unexpected(self, part: Part, expected: str, owner: str | None = None) -> Refused:
        """A value of the wrong kind where one is known; scalars are taken, containers not."""
        found = self.peek()
        value: Any = {b"{": Pairs(), b"[": []}[found] if found in (b"{", b"[") else self.scalar()
        return Refused(part, invalid_type(value, expected), self.at, owner)


def _double(whole: bytes, fraction: bytes, exponent: bytes) -> float:
    """A number as serde_json rounds it: 64 bits of digits, then a power of ten; inf where it overflows."""
    digits = whole + fraction
    zeros = len(digits) - len(digits.lstrip(b"0"))
    kept = min(len(digits), zeros + 20)
    if int(digits[zeros:kept] or b"0") > USIZE:
        kept -= 1
    power = int(exponent[:12] or b"0") + max(len(whole) - kept, 0)
    power -= max(kept - len(whole), 0)
    number = float(int(digits[zeros:kept] or b"0"))
    while power < -308 and number:
        number /= 1e308
        power += 308
    if number == 0:
        return 0.0
    if power > 308:
        return inf
    return number * float(f"1e{power}") if power >= 0 else number / float(f"1e{-power}")


def _end(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    found = pattern.match(data, at)
    assert found, "these patterns match the empty text"
    return found.end()
