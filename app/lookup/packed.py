"""What a log is stored as: packed or not, in which encoding. Its first bytes tell, whatever it is called."""

from __future__ import annotations

import bz2
import codecs
import gzip
import zlib
from typing import BinaryIO, Final, Protocol, cast

PIECE: Final = 1 << 16
LOOKED_AT: Final = 4096
"""Bytes by which an encoding, or a file of no text, is told."""

_GZIP: Final = b"\x1f\x8b"
_BZIP2: Final = b"BZh"
_OTHERS: Final = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"PK\x03\x04": "zip",
    b"\x04\x22\x4d\x18": "lz4",
}
_DAMAGE: Final = (EOFError, zlib.error, OSError)
"""What the readers of packed files raise where one is cut off or damaged."""


class Unpacked(Protocol):
    """A packed file's content, as far as one step of its reader brings it."""

    def read1(self, size: int, /) -> bytes: ...


class Stream:
    """The content of one file, from its beginning. `damage` says why it ended early."""

    def __init__(self, opened: BinaryIO) -> None:
        self._opened = opened
        self._left = opened.read(LOOKED_AT) or b""
        self.damage: str | None = None
        self.foreign = next((name for sign, name in _OTHERS.items() if self._left.startswith(sign)), None)
        """A packing that is known and not read."""
        self._unpacked: Unpacked | None = None
        if self._left.startswith(_GZIP):
            self._unpacked = cast(Unpacked, gzip.GzipFile(fileobj=cast(BinaryIO, _Again(self._left, opened))))
        elif self._left.startswith(_BZIP2):
            self._unpacked = cast(Unpacked, bz2.BZ2File(cast(BinaryIO, _Again(self._left, opened))))

    @property
    def packed(self) -> bool:
        return self._unpacked is not None

    def read(self, size: int) -> bytes:
        """The next bytes, fewer only at the end; of a damaged file what is whole."""
        parts: list[bytes] = []
        while size > 0 and (piece := self._piece(min(size, PIECE))):
            parts.append(piece)
            size -= len(piece)
        return b"".join(parts)

    def _piece(self, size: int) -> bytes:
        if self._unpacked is None:
            piece, self._left = self._left[:size], self._left[size:]
            return piece or self._opened.read(size)
        if self.damage is not None:
            return b""
        try:
            return self._unpacked.read1(size)
        except _DAMAGE as error:
            self.damage = str(error) or type(error).__name__
            return b""


class _Again:
    """A file of which the beginning was read already; its readers need no more than this."""

    def __init__(self, left: bytes, opened: BinaryIO) -> None:
        self._left = left
        self._opened = opened

    def read(self, size: int = -1) -> bytes:
        piece, self._left = (self._left, b"") if size < 0 else (self._left[:size], self._left[size:])
        return piece if 0 <= size <= len(piece) else piece + self._opened.read(size - len(piece))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


def encoding_of(content: bytes) -> str | None:
    """The encoding of a text that is not ASCII's kin: PowerShell's, with its mark or without; else None."""
    if content.startswith(codecs.BOM_UTF16_LE):
        return "utf-16-le"
    if content.startswith(codecs.BOM_UTF16_BE):
        return "utf-16-be"
    looked = content[: LOOKED_AT & ~1]
    for encoding, empty, other in (
        ("utf-16-le", looked[1::2], looked[::2]),
        ("utf-16-be", looked[::2], looked[1::2]),
    ):
        if len(empty) > 8 and empty.count(0) > 0.6 * len(empty) and not other.count(0):
            return encoding
    return None


def utf8(content: bytes, encoding: str | None) -> bytes:
    """A text of an encoding in the usual one."""
    if encoding is None:
        return content.removeprefix(codecs.BOM_UTF8)
    return content.decode(encoding, "replace").removeprefix("\ufeff").encode("utf-8", "replace")
