"""What was pasted, with everything that is not the message blanked out in place.

Every step keeps the length: one byte per character of the pasted text, so an offset found here is an offset
there. Blanks are NUL (colours, line prefixes) or SOH (the backslash of an escape, so that an escaped quote
stays known as one); the key domain drops both."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from html import unescape
from itertools import accumulate, compress
from typing import Final

from catalog.match import streams
from catalog.match.wrapped import Wrapped, Wraps, wrapped
from catalog.template import DROPPED, LOWER

SMALL: Final = 1 << 18
"""Up to this many characters a text is examined whole; of a longer one only the pieces that promise
something."""
PIECE: Final = 1 << 13
MARGIN: Final = 256
"""Characters a piece looks beyond its end, so that no anchor is cut in two."""
CHUNK: Final = 1 << 20
"""Most characters examined at a time."""
OVERLAP: Final = 1 << 13
"""Characters a chunk looks beyond its end: the longest message found whole across a cut."""
REACH: Final = 4096
"""How far a line is followed to either side of a place; keeps all work per hit constant."""

AROUND: Final = b"\x00\x01 \t\r\n"
"""Characters around a message that are none of it."""
_BLOCK: Final = 512
_KEPT: Final = bytes(b not in DROPPED for b in range(256))
_ANSI: Final = re.compile(
    rb"\x1b(?:\[[0-9;?]{0,32}[ -/]{0,2}[@-~]|\][^\x07\x1b\n]{0,256}(?:\x07|\x1b\\)|[@-Z\\^_])"
)
# The same sequences after a log shipper printed the escape character as text, or lost it.
_ANSI_TEXT: Final = re.compile(rb"(?:\\u001[bB]|\\x1[bB]|\\0?33|\^\[|\?)\[[0-9;]{0,32}m")
_ANSI_REST: Final = re.compile(rb"\[[0-9;]{1,32}m")
# A path with a drive letter keeps its backslashes.
_ESCAPE: Final = re.compile(
    rb"(?<![A-Za-z0-9_])[A-Za-z]:\\[\w.\\ -]{1,200}|(?<!\\)\\{1,8}+(u[0-9a-fA-F]{4}|[nrt\"'/])"
)
_ESCAPED: Final = {b"n": b"\n", b"r": b"\x00", b"t": b"\t"}
_ENTITY: Final = re.compile(rb"&#(?:[0-9]{1,5}|x[0-9a-fA-F]{1,4});")
_ENTITIES: Final = {
    b"&quot;": b'"',
    b"&apos;": b"'",
    b"&lt;": b"<",
    b"&gt;": b">",
    b"&nbsp;": b" ",
    b"&amp;": b"&",
}

# In an address that holds a message, such as the one that opens a new issue.
_PERCENT: Final = re.compile(rb"%(0[AaDd]|[2-7][0-9A-Fa-f])")
# What stands among ideographs, or in text that a word processor has set: letters and signs as wide as they
# are, quotes of all kinds, and the marks that end a sentence, which no message goes on behind.
_NARROW: Final = {
    **{code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)},
    **dict.fromkeys(map(ord, "“”„«»「」『』〝〞"), ord('"')),
    **dict.fromkeys(map(ord, "‘’‚"), ord("'")),
    **dict.fromkeys(map(ord, "。，；！？"), ord("\n")),
}
_WIDE: Final = re.compile(f"[{''.join(map(chr, _NARROW))}]")
_BREAK: Final = re.compile(rb"<br {0,2}/?>", re.IGNORECASE)

_QUOTED: Final = (b'"', b"'", b"`")
_OPENING: Final = tuple(bytes((sign,)) for sign in b"([{=:, ")
"""What stands before a quote that opens a text inside another."""
_QUOTES: Final = re.compile(rb"\x01?[\"'`]")
_LEVEL: Final = rb"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|TRACE)"
_DATE: Final = rb"\d{4}[-/]\d\d[-/]\d\d[T ,_]\d\d:\d\d:\d\d[^\n\]| ]{0,20}"
_TIME: Final = rb"(?:\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
# Each alternative is one part that a logger, launcher or test runner puts before a line. Nothing is tried
# twice (`+` after a repetition), so a line costs its length at most.
_PREFIX: Final = re.compile(
    rb"(?:[\x00 ]*+(?:"
    rb"[(][\w.:-]{1,80} pid=\d{1,10}(?:, ip=[\w.:]{1,45})?[)]"  # Ray, vLLM workers
    rb"|\[(?:" + _DATE + rb"(?: [A-Z]{2}\d+){0,6}\]"  # time and sglang's ranks
    rb"|(?:\d\d/\d\d/\d\d )?" + _TIME + rb"\]|" + _LEVEL + rb"\]:?"  # time, rich's too; level
    rb"|[\w./-]{1,160}+:\d{1,6}\]:?"  # origin
    rb"|(?:rank|default|worker|trainer)?\d{1,5}\]:|[Rr]ank \d{1,5}\]:?"  # torchrun, NCCL's watchdog
    rb"|(?:[\w.-]{1,80}@)?\d{1,5},\d{1,5}\]<std(?:err|out)>:"  # mpirun
    rb"|pod/[\w./-]{1,300}+\]"  # kubectl
    rb"|[IWEF]\d{4} " + _TIME + rb" [\w./-]{1,160}+:\d{1,6}\])"  # c10's glog
    rb"|" + _DATE + rb" [\w.-]{1,64} [\w.@-]{1,64}+\[\d{1,10}\]:"  # journald
    rb"|" + _DATE + rb":?|" + _TIME + rb"|\d{1,4}:(?= )"  # time; srun
    rb"|\d{1,3}+(?:\.\d{1,3}){3}:(?= )"  # pdsh
    rb"|std(?:out|err) [FP](?= )"  # containerd
    rb"|[\w.-]{1,64}+:\d{1,10}:\d{1,10} \[\d{1,3}\](?= NCCL)"
    rb"|[A-Z](?:(?<=[IWEF])\d{4} " + _TIME + rb" +\d{1,10}(?= )"  # glog
    rb"|[a-z]{2} [ \d]\d " + _TIME + rb" [\w.-]{1,64} [\w.-]{1,64}+(?:\[\d{1,10}\])?:)"  # syslog
    rb"|" + _LEVEL + rb"(?::[\w.]{1,80}+:|:| -|(?=[\x00 |]))"
    rb"|- (?:[\w.]{1,100}+ - )?(?=" + _LEVEL + rb")"  # logging's usual format
    rb"|[\w./-]{1,160}+(?:(?::[\w.<>]{1,60}+)?:\d{1,6}(?:\]| -)| {1,24}\|(?= ))"  # origins; compose
    rb"|[+-]\d{4} [\w.*/-]{1,300}+:(?= \{)"  # fluentd
    rb"|\|(?= )|[E>](?=   )|(?:> ?){1,16}+(?=[^ >])"  # CI tables, loguru; pytest; quoted mail
    rb")){1,10}"
)


def _blank(found: re.Match[bytes]) -> bytes:
    return b"\x00" * len(found[0])


def _escape(found: re.Match[bytes]) -> bytes:
    code = found[1]
    if code is None:
        return found[0]
    char = _ESCAPED.get(code, code)
    if code[:1] == b"u":
        char = chr(int(code[1:], 16)).encode("latin-1", "replace")
    return char.rjust(len(found[0]), b"\x01")


def _entity(found: re.Match[bytes]) -> bytes:
    return _char_of(found[0])


@lru_cache(4096)
def _char_of(entity: bytes) -> bytes:
    """A numbered entity's character behind as many empty ones as keep the length."""
    return unescape(entity.decode("ascii"))[:1].encode("latin-1", "replace").rjust(len(entity), b"\x00")


def _line_break(found: re.Match[bytes]) -> bytes:
    return b"\n".rjust(len(found[0]), b"\x00")


def _percent(found: re.Match[bytes]) -> bytes:
    return bytes((int(found[1], 16),)).rjust(3, b"\x00")


def _unprefixed(line: bytes) -> bytes:
    found = _PREFIX.match(line)
    return line if found is None else b"\x00" * found.end() + line[found.end() :]


def clean(text: str) -> bytes:
    """The text without colours, escapes, entities and carriage returns; same length, see above."""
    small = len(text) <= SMALL  # what authors of mails and pages do to a text, no large log has
    if small and not text.isascii() and _WIDE.search(text):
        text = text.translate(_NARROW)
    data = text.encode("latin-1", "replace")
    if b"\x1b" in data:
        data = _ANSI.sub(_blank, data)
    if _ANSI_REST.search(data):
        data = _ANSI_TEXT.sub(_blank, data)
    if b"\\" in data:
        if b"\\\\" not in data and not _has_drive(data):
            # Nothing nested and no path with a drive letter: the common case, at a copy's cost.
            for code in b"nrt\"'/":
                char = bytes((code,))
                data = data.replace(b"\\" + char, b"\x01" + _ESCAPED.get(char, char))
        if b"\\" in data:
            data = _ESCAPE.sub(_escape, data)
    if b"&" in data:
        data = _ENTITY.sub(_entity, data)
        for entity, char in _ENTITIES.items():
            data = data.replace(entity, char.rjust(len(entity), b"\x00"))
    if small and (b"<br" in data or b"<BR" in data):
        data = _BREAK.sub(_line_break, data)
    if small and b"%20" in data:
        data = _PERCENT.sub(_percent, data)
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\x00\n").replace(b"\r", b"\n")
    return data


def _has_drive(data: bytes) -> bool:
    """Whether a path with a drive letter may be there: `C:\\`, and not the end of a word before an escape."""
    at = data.find(b":\\")
    while at >= 0:
        if data[at - 1 : at].isalpha() and not data[max(0, at - 2) : at - 1].isalnum():
            return True
        at = data.find(b":\\", at + 2)
    return False


def has_prefix(line: bytes) -> bool:
    """Whether something stands before the message of a line."""
    return _PREFIX.match(line) is not None


def without_prefixes(data: bytes) -> bytes:
    """Cleaned text with what stands before the message of each line blanked; same length."""
    return b"\n".join(map(_unprefixed, data.split(b"\n")))


def without_wrappers(data: bytes, found: Sequence[Wrapped]) -> bytes:
    """Cleaned text in which of JSON objects only their messages are left, each on lines of its own."""
    bare = bytearray(data)
    for each in found:
        at = each.start
        for start, end in each.messages:
            bare[at:start] = b"\n"[: at > each.start] + bytes(start - at - (at > each.start))
            ends = len(data[start:end].rstrip(b"\x00\x01\n"))
            bare[start + ends : end] = bytes(end - start - ends)
            at = end
        bare[at : each.end] = bytes(each.end - at)
    return bytes(bare)


def key(data: bytes) -> bytes:
    """Cleaned text in the key domain."""
    return data.translate(LOWER, DROPPED)


class Chunk:
    """A stretch of cleaned text and its key, with the way from a place in the one to the other and back."""

    def __init__(self, data: bytes, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop
        self._data = data[start:stop]
        self.key = key(self._data)
        self._offsets: dict[int, list[int]] = {}
        self._counted: list[int] | None = None if len(self._data) > _BLOCK else [0, len(self.key)]

    @property
    def _before(self) -> list[int]:
        """How many key characters lie before each block."""
        if self._counted is None:
            blocks = range(0, len(self._data), _BLOCK)
            counts = (len(self._part(at, at + _BLOCK)) for at in blocks)
            self._counted = list(accumulate(counts, initial=0))
        return self._counted

    def _part(self, start: int, stop: int) -> bytes:
        return key(self._data[start:stop])

    def offset(self, at: int) -> int:
        """The offset in the text of the key's character `at`."""
        block = bisect_right(self._before, at) - 1 if len(self._data) > _BLOCK else 0
        if (offsets := self._offsets.get(block)) is None:
            data = self._data[block * _BLOCK : (block + 1) * _BLOCK]
            offsets = self._offsets[block] = list(compress(range(len(data)), data.translate(_KEPT)))
        return self.start + block * _BLOCK + offsets[at - self._before[block]]

    def rfind(self, literal: bytes, offset: int) -> tuple[int, int] | None:
        """The last place of a literal in the key that begins before an offset, at most REACH away."""
        end = self.key_index(offset)
        at = self.key.rfind(literal, max(0, end - REACH), end + len(literal) - 1)
        return None if at < 0 else (at, at + len(literal))

    def key_index(self, offset: int) -> int:
        """How many of the key's characters lie before an offset in the text."""
        block, rest = divmod(offset - self.start, _BLOCK)
        return self._before[block] + len(self._part(block * _BLOCK, block * _BLOCK + rest))


def _cuts(data: bytes, start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Consecutive parts of about `size`, cut behind a newline where there is one near."""
    while start < stop:
        end = min(start + size, stop)
        if end < stop and (line := data.rfind(b"\n", max(start, end - OVERLAP), end)) >= start:
            end = line + 1
        yield start, end
        start = end


def _is_apostrophe(data: bytes, at: int) -> bool:
    """Whether a quote stands inside a word, and not behind a literal's prefix (`b'…'`)."""
    if not (data[at - 1 : at].isalnum() and data[at + 1 : at + 2].isalnum()):
        return False
    return data[at - 1 : at] not in b"brfu" or data[at - 2 : at - 1].isalnum()


class Pasted:
    """A pasted text and its cleaned form. Nothing of it is kept beyond the object, and nothing is logged."""

    def __init__(self, text: str | bytes, promising: Callable[[bytes], bool]) -> None:
        """`promising` says of a piece of a cleaned text whether it may hold anything of interest."""
        self.text = text if isinstance(text, str) else bytes(text).decode("utf-8", "replace")
        data = clean(self.text)
        self._quoted = (-1, b"", b"")
        self._lines = [(0, 1)]
        self._pasted = ""
        self._moved: list[tuple[int, int]] = []
        """Where lines changed places: (offset here, offset as pasted)."""
        self.wraps = Wraps(())
        """The JSON objects that lines consist of."""
        if len(data) <= SMALL:
            self.regions = [(0, len(data))]
            self.data = self._put_together(data)
            return
        cuts = list(_cuts(data, 0, len(data), PIECE))
        wanted: set[int] = set()
        for number, (start, end) in enumerate(cuts):
            if promising(data[start : end + MARGIN]):
                # With its neighbours: a message may begin before the piece or end after it.
                wanted.update((number - 1, number, number + 1))
        self.regions = []
        for number, (start, end) in enumerate(cuts):
            if number in wanted:
                begin = self.regions.pop()[0] if self.regions and self.regions[-1][1] == start else start
                self.regions.append((begin, end))
        self.data = self._put_together(data)

    def _put_together(self, data: bytes) -> bytes:
        """The cleaned text without wrappers and prefixes in its regions, each process's lines together."""
        if b"\n" in data:
            data = self._separated(data)

        def is_prefix(start: int, end: int) -> bool:
            known = _PREFIX.match(data, start)
            return known is not None and known.end() <= end and not data[known.end() : end].strip(b"\x00 ")

        found = [each for region in self.regions for each in wrapped(self.text, *region, is_prefix)]
        if found:
            self.wraps = Wraps(found)
            data = without_wrappers(data, found)
        parts: list[bytes] = []
        done = 0
        for start, stop in self.regions:
            parts += (data[done:start], without_prefixes(data[start:stop]))
            done = stop
        return b"".join((*parts, data[done:]))

    def _separated(self, data: bytes) -> bytes:
        """The cleaned text with lines of processes that alternate in each region put together; `text` too."""
        texts: list[str] = []
        cleaned: list[bytes] = []
        done = 0
        for start, stop in self.regions:
            if not streams.may_alternate(data, start, stop):
                continue
            begin = start if start == 0 or self.text[start - 1] == "\n" else self.text.find("\n", start) + 1
            end = stop if stop == len(data) else self.text.rfind("\n", start, stop) + 1
            if not 0 < begin + 1 <= end:
                continue
            lines = self.text[begin:end].split("\n")
            last = [lines.pop()] if not lines[-1] else []
            starts = list(accumulate((len(line) + 1 for line in lines), initial=begin))
            heads = (
                data[at : min(at + len(line), at + streams.READ)].split(b"\n", 1)[0].translate(None, b"\0\1")
                for at, line in zip(starts, lines, strict=False)
            )
            order = streams.separated([streams.tag(*pair) for pair in zip(heads, lines, strict=True)])
            if order is None:
                continue
            moved = [data[starts[number] : starts[number] + len(lines[number])] for number in order]
            texts += (self.text[done:begin], "\n".join([*(lines[number] for number in order), *last]))
            cleaned += (data[done:begin], b"\n".join([*moved, *(b"" for _ in last)]))
            done = end
            at = begin
            for number in order:
                self._moved.append((at, starts[number]))
                at += len(lines[number]) + 1
            self._moved.append((end, end))
        if not self._moved:
            return data
        self._pasted = self.text
        self.text = "".join((*texts, self.text[done:]))
        return b"".join((*cleaned, data[done:]))

    def chunks(self) -> Iterator[tuple[Chunk, int]]:
        """Chunks to examine, each with the offset from which a message belongs to the next; they overlap."""
        for begin, stop in self.regions:
            for start, end in _cuts(self.data, begin, stop, CHUNK):
                yield Chunk(self.data, start, min(end + OVERLAP, len(self.data))), end

    def place(self, offset: int) -> int:
        """The offset in the text as it was pasted."""
        at = bisect_right(self._moved, offset, key=lambda pair: pair[0]) - 1
        return offset if at < 0 else self._moved[at][1] + offset - self._moved[at][0]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Two offsets in the text as it was pasted; lines of other processes may lie between them."""
        return (
            (start, end)
            if not self._moved
            else (self.place(start), self.place(max(start, end - 1)) + (end > start))
        )

    def line_of(self, offset: int) -> int:
        """The 1-based line of a character of the text as it was pasted."""
        offset = self.place(offset)
        at = bisect_right(self._lines, (offset, len(self.text)))
        known, line = self._lines[at - 1]
        line += (self._pasted or self.text).count("\n", known, offset)
        self._lines.insert(at, (offset, line))
        return line

    def line_start(self, offset: int) -> int:
        return max(self.data.rfind(b"\n", max(0, offset - REACH), offset) + 1, offset - REACH, 0)

    def line_end(self, offset: int) -> int:
        stop = min(offset + REACH, len(self.data))
        end = self.data.find(b"\n", offset, stop)
        return stop if end < 0 else end

    def open_quote(self, offset: int) -> bytes:
        """The quote that will end what stands at an offset, on its line as pasted; empty outside quotes.

        Inside a quoted text an escaped quote opens a text of its own, such as JSON in JSON. An apostrophe
        is no quote. Goes on from where the last call ended, so that calls in order cost the text's length
        together."""
        begin = max(self.text.rfind("\n", max(0, offset - REACH), offset) + 1, offset - REACH, 0)
        outer = inner = b""
        if begin <= self._quoted[0] <= offset:
            begin, outer, inner = self._quoted
        data = self.data
        for found in _QUOTES.finditer(data, begin, offset):
            quote, at = found[0], found.end() - 1
            if found.group().endswith(b"'") and _is_apostrophe(data, at):
                continue
            if quote[:1] == b"\x01":
                inner = b"" if inner == quote else inner or quote
            elif not outer:
                outer, inner = quote, b""
            elif outer == quote:
                outer = inner = b""
        self._quoted = (offset, outer, inner)
        last = data[max(begin, offset - 1) : offset]
        if (
            outer
            and not inner
            and last in _QUOTED
            and last != outer
            and data[offset - 2 : offset - 1] in _OPENING
        ):
            return last  # what stands right behind a quote of its own, inside another text's
        return inner or outer

    def shown(self, start: int, end: int) -> str:
        """The text between two offsets as its author saw it: escapes undone, blanks left out."""
        text, data = self.text[start:end], self.data[start:end]
        if text.isascii():
            return data.translate(None, b"\x00\x01").decode("latin-1")
        pairs = zip(text, data, strict=True)
        return "".join(char if ord(char) > 127 else chr(byte) for char, byte in pairs if byte > 1)
