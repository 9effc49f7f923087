"""Cython as Python: what it raises is read by Python's own parser once its types are taken out.

Statement by statement, each at its own line: one that Python understands stays, a typed head becomes a plain
one, and what is left (declarations, mostly) does nothing. Blocks keep their depth, so that conditions and
functions are those of the source.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from catalog.scan import python
from catalog.scan.model import Scanned
from catalog.scan.source import shown

# Strings, comments, joined lines, brackets and line ends. Nothing is tried twice; a string that is never
# closed goes on to the end.
_TOKEN: Final = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+(?:"""|\Z)'
    r"|'''(?:[^'\\]|\\.|'(?!''))*+(?:'''|\Z)"
    r'|"(?:[^"\\\n]|\\.)*+"?|' + r"'(?:[^'\\\n]|\\.)*+'?"
    r"|#[^\n]*|\\\n|[()\[\]{}]|\n",
    re.DOTALL,
)
_COMMENT: Final = re.compile(r"\s*#[^\n]*\Z")
_FUNCTION: Final = re.compile(
    r"(?:cdef|cpdef|def|async\s+def)\b[^(=]*?\b([A-Za-z_]\w*)\s*(?:\[[^\]\n]*\]\s*)?\("
)
_CLASS: Final = re.compile(
    r"(?:cdef\s+)?(?:public\s+|api\s+|final\s+)*class\s+([A-Za-z_]\w*)\s*(\([\w., ]*\))?"
)
_CAST: Final = re.compile(r"<[A-Za-z_][\w\s.*&:,\[\]]{0,100}\??>(?=\s?[\w(\"'&-])")
_ADDRESS: Final = re.compile(r"(?<![\w)\]\s])\s*&(?=[A-Za-z_])|(?<=[(,=])\s*&(?=[A-Za-z_])")
_RAISED: Final = re.compile(r"raise\s+([A-Za-z_][\w.]*)")
_HEADS: Final = {
    "if": "if _condition:",
    "elif": "elif _condition:",
    "else": "else:",
    "while": "while _condition:",
    "for": "for _item in _items:",
    "except": "except _error:",
}
"""Blocks whose first line is not understood, by its first word; another is entered without a condition."""
_BEFORE: Final = {
    "elif": "if 1: pass\n",
    "else": "if 1: pass\n",
    "except": "try: pass\n",
    "finally": "try: pass\n",
}
"""What must stand before a statement that is none alone, by its first word."""


def scan(path: str, data: bytes) -> Scanned:
    """All sites of a Cython file; raises what `python.scan` does where too little of it is understood."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    text = data.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    found = python.scan(path, python_of(text).encode())
    lines = text.encode().removesuffix(b"\n").split(b"\n")
    return replace(found, code=shown(lines, found.snippets))


def python_of(text: str) -> str:
    """The same statements, as far as Python has them, at the same lines."""
    return "".join(map(_line, _logical(text)))


def _logical(text: str) -> Iterator[str]:
    """Lines with those that belong to them: inside brackets and strings, behind a backslash."""
    start = depth = 0
    for found in _TOKEN.finditer(text):
        sign = found[0]
        if sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth = max(0, depth - 1)
        elif sign == "\n" and not depth:
            yield text[start : found.end()]
            start = found.end()
    if start < len(text):
        yield text[start:]


def _line(line: str) -> str:
    bare = line.strip()
    if not bare or bare.startswith("#"):
        return line
    stated = _statement(bare)
    if stated is bare:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    return f"{indent}{stated}{chr(10) * line.count(chr(10))}"


def _statement(bare: str) -> str:
    """A statement as Python has it, on one line where it is another."""
    if _parses(bare):
        return bare
    plain = _ADDRESS.sub(" ", _CAST.sub("", bare))
    if plain != bare and _parses(plain) and ("\n" not in plain or not _opens(plain)):
        return plain if "\n" not in plain else ast.unparse(ast.parse(plain))
    if _opens(bare):
        return _head(bare)
    if (found := _RAISED.match(bare)) is not None:
        return f"raise {found[1]}"
    return "return" if _word(bare) == "return" else "pass"


def _head(bare: str) -> str:
    """The first line of a block whose own Python does not understand."""
    if (found := _CLASS.match(bare)) is not None:
        return f"class {found[1]}{found[2] or ''}:"
    if (found := _FUNCTION.match(bare)) is not None:
        return f"def {found[1]}(*_args, **_kwargs):"
    return _HEADS.get(_word(bare).lower(), "with _block:")


def _word(statement: str) -> str:
    return re.split(r"\W", statement, maxsplit=1)[0]


def _opens(statement: str) -> bool:
    """Whether a statement has its block on the lines below it."""
    return _COMMENT.sub("", statement.rpartition("\n")[2]).endswith(":")


def _parses(statement: str) -> bool:
    word = _word(statement)
    body = "\n pass" if _opens(statement) else "\ndef f(): pass" if statement.startswith("@") else ""
    last = "\nfinally: pass" if word == "try" and body else ""
    try:
        ast.parse(f"{_BEFORE.get(word, '')}{statement}{body}{last}")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
