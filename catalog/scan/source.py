"""A file's text by the positions of its syntax tree; the source of an f-string's holes."""

from __future__ import annotations

import ast
import io
import tokenize
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kernels.message import Hole

AROUND: Final = 18
"""Lines of a snippet before and after a site, as the public dataset shows them."""
MOST_LINES: Final = 40
LONGEST: Final = 300
"""Characters of a condition or expression that are kept."""

_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}


class Source:
    """Decoded text and its lines; columns of the syntax tree count UTF-8 bytes."""

    def __init__(self, data: bytes) -> None:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
        self.text = text.replace("\r\n", "\n").replace("\r", "\n")
        self._lines = self.text.encode().split(b"\n")

    def raw(self, node: ast.expr | ast.stmt) -> str:
        """The source of a node, as written."""
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        end = node.end_col_offset
        if first == last:
            return self._lines[first][node.col_offset : end].decode()
        middle = self._lines[first + 1 : last]
        parts = [self._lines[first][node.col_offset :], *middle, self._lines[last][:end]]
        return b"\n".join(parts).decode()

    def of(self, node: ast.expr | ast.stmt, limit: int = LONGEST) -> str:
        """The source of a node on one line, white space collapsed, comments left out."""
        text = self.raw(node)
        if "\n" in text:
            # Written anew, so that neither comments nor line breaks inside brackets are left.
            text = ast.unparse(node) if "#" in text else " ".join(text.split())
            for bracket, closing in _CLOSING.items():
                text = text.replace(f"{bracket} ", bracket).replace(f", {closing}", closing)
                text = text.replace(f" {closing}", closing)
        return text if len(text) <= limit else text[: limit - 1] + "…"


def printable(text: str) -> str:
    """A path or word as it can be stored and shown: what is no UTF-8, and control characters, as escapes."""
    encodable = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if encodable.isprintable():
        return encodable
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in encodable)


def snippet(lines: int, line: int, end_line: int) -> tuple[int, int]:
    """First and last line of what is shown around a site, at most MOST_LINES."""
    first = max(1, line - AROUND)
    return first, min(lines, max(end_line, line + AROUND), first + MOST_LINES - 1)


def shown(lines: Sequence[bytes], snippets: Iterable[tuple[int, int]]) -> bytes:
    """The lines of all snippets of a file, compressed together; those between them are left empty."""
    kept = [b""] * len(lines)
    for first, last in snippets:
        kept[first - 1 : last] = lines[first - 1 : last]
    return zlib.compress(b"\n".join(kept), 3)


def dotted(node: ast.expr) -> str:
    """`a.b.c` of names and attributes, the last part alone where it hangs on something else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


def holes_of(node: ast.JoinedStr, source: Source) -> list[Hole]:
    """The holes of an f-string in upstream's letters.

    Positions inside f-strings are not to be trusted before Python 3.12, so the literal's own source is read;
    where that does not come to the same number of holes, the tree is written out instead.
    """
    values = [value for value in node.values if isinstance(value, ast.FormattedValue)]
    written = list(_written(source.raw(node)))
    if len(written) != len(values):
        written = [ast.unparse(value.value) for value in values]
    return [_hole(text, value) for text, value in zip(written, values, strict=True)]


def _hole(text: str, value: ast.FormattedValue) -> Hole:
    conversion = chr(value.conversion) if value.conversion != -1 else ""
    expr, spec = text, ""
    if value.format_spec is not None:
        at = _top_level(text, ":")
        expr, spec = (text[:at], text[at + 1 :]) if at >= 0 else (text, "")
    expr = expr.strip()
    if conversion and expr.endswith("!" + conversion):
        expr = expr[:-2]
    if expr.endswith("=") and not expr.endswith(("==", "!=", "<=", ">=")):
        expr = expr[:-1]  # f"{x=}": the tree has `x=` as a literal of its own
    return Hole(" ".join(expr.split()), conversion, spec)


def _top_level(text: str, sign: str) -> int:
    """Where a sign stands outside brackets and quotes, the first place; -1 for nowhere."""
    return next((at for at, char, depth in _outside_quotes(text) if char == sign and depth == 0), -1)


def _outside_quotes(text: str) -> Iterator[tuple[int, str, int]]:
    """(index, character, bracket depth) of what stands outside string literals."""
    at, depth = 0, 0
    while at < len(text):
        char = text[at]
        if char in "\"'":
            quote = char * 3 if text.startswith(char * 3, at) else char
            at += len(quote)
            while at < len(text) and not text.startswith(quote, at):
                at += 2 if text[at] == "\\" else 1
            at += len(quote)
            continue
        if char in ")]}":
            depth -= 1
        yield at, char, depth
        if char in "([{":
            depth += 1
        at += 1


def _written(text: str) -> Iterator[str]:
    """The holes' texts of adjacent string literals, in order."""
    at = 0
    while at < len(text):
        if text[at] == "#":
            at = text.find("\n", at) % (len(text) + 1)
            continue
        if not (text[at].isalpha() or text[at] in "\"'"):
            at += 1
            continue
        start = at
        while at < len(text) and text[at].isalpha():
            at += 1
        prefix = text[start:at].lower()
        if at == len(text) or text[at] not in "\"'":
            return
        quote = text[at] * 3 if text.startswith(text[at] * 3, at) else text[at]
        at += len(quote)
        while at < len(text) and not text.startswith(quote, at):
            escaped = text[at] == "\\" and "r" not in prefix
            if escaped or ("f" in prefix and text.startswith(("{{", "}}"), at)):
                at += 2
            elif "f" in prefix and text[at] == "{":
                end = next(
                    (
                        at + 1 + place
                        for place, char, depth in _outside_quotes(text[at + 1 :])
                        if char == "}" and depth < 0
                    ),
                    -1,
                )
                if end < 0:
                    return
                yield text[at + 1 : end]
                at = end + 1
            else:
                at += 1
        at += len(quote)
