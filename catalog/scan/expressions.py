"""What the expression of a message prints: its template, through the ways Python has to build a text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from string import Formatter
from typing import Final

from catalog.scan.model import Parts
from catalog.scan.source import LONGEST, Source, dotted, holes_of
from kernels.message import Hole

MOST: Final = 4
"""Alternative texts of one expression that are followed."""
_PERCENT: Final = re.compile(
    r"%(?:\((?P<name>[^)]*)\))?[#0\- +]*(?:\*|\d+)?(?:\.(?:\*|\d+))?[hlL]?(?P<type>[diouxXeEfFgGcrsa%])"
)
# Calls that give their argument back, as far as its words go.
_SAME: Final = frozenset({"str", "dedent", "cleandoc", "_", "gettext", "fill"})
_SAME_METHODS: Final = frozenset({"strip", "rstrip", "lstrip", "capitalize"})

Known = Mapping[str, Sequence[Parts]]
"""Name → the texts it may hold."""


class Reader:
    """Reads expressions of one file. `known` are names whose texts are known where the expression stands."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.returns: dict[str, list[Parts]] = {}
        """Functions of the file that return one text, by name."""

    def read(self, node: ast.expr, known: Known) -> list[Parts]:
        """What it prints, one entry per alternative; what is no text is one hole."""
        return self.text(node, known) or self._returned(node) or [(self.hole(node),)]

    def hole(self, node: ast.expr, conversion: str = "") -> Hole:
        """A value printed as a whole, spelled as the public dataset spells what is in no f-string."""
        return Hole(ast.unparse(node)[:LONGEST], conversion)

    def _returned(self, node: ast.expr) -> list[Parts]:
        """The text of a function of this file that makes the whole message."""
        if not isinstance(node, ast.Call):
            return []
        return list(self.returns.get(dotted(node.func).rpartition(".")[2], ()))

    def text(self, node: ast.expr, known: Known) -> list[Parts]:
        """As `read`, but empty for what is not known to be a text."""
        if isinstance(node, ast.Constant):
            return [(node.value,)] if isinstance(node.value, str) else []
        if isinstance(node, ast.JoinedStr):
            return [self._joined(node)]
        if isinstance(node, ast.Name):
            return list(known.get(node.id, ()))
        if isinstance(node, ast.Attribute):
            return list(known.get(f".{node.attr}", ()))
        if isinstance(node, ast.BinOp):
            return self._operator(node, known)
        if isinstance(node, ast.IfExp):
            options = [self.text(node.body, known), self.text(node.orelse, known)]
            return [parts for option in options for parts in option][:MOST] if all(options) else []
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            return self.text(node.values[-1], known)
        if isinstance(node, ast.Lambda):
            return self.text(node.body, known)
        if isinstance(node, ast.NamedExpr):
            return self.text(node.value, known)
        if isinstance(node, ast.Call):
            return self._call(node, known)
        return []

    def _joined(self, node: ast.JoinedStr) -> Parts:
        holes = iter(holes_of(node, self.source))
        return tuple(
            str(value.value) if isinstance(value, ast.Constant) else next(holes) for value in node.values
        )

    def _operator(self, node: ast.BinOp, known: Known) -> list[Parts]:
        if isinstance(node.op, ast.Mod):
            return [percent(parts, self.operands(node.right)) for parts in self.text(node.left, known)]
        if not isinstance(node.op, ast.Add):
            return []
        left, right = self.text(node.left, known), self.text(node.right, known)
        if not left and not right:
            return []
        pairs = product(left or [(self.hole(node.left),)], right or [(self.hole(node.right),)])
        return [(*first, *second) for first, second in pairs][:MOST]

    def operands(self, node: ast.expr) -> list[Hole] | dict[str, Hole]:
        """What stands right of `%`."""
        if isinstance(node, ast.Tuple):
            return [self.hole(item) for item in node.elts]
        if isinstance(node, ast.Dict):
            return {
                key.value: self.hole(value)
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            }
        return [self.hole(node)]

    def _call(self, node: ast.Call, known: Known) -> list[Parts]:
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if isinstance(function, ast.Attribute):
            if name == "format":
                return [self._formatted(parts, node) for parts in self.text(function.value, known)]
            if name in _SAME_METHODS:
                return self.text(function.value, known)
            if name == "join" and len(node.args) == 1:
                return self._join(function.value, node.args[0], known)
        if name in _SAME and len(node.args) == 1:
            return self.text(node.args[0], known)
        return []

    def _join(self, separator: ast.expr, items: ast.expr, known: Known) -> list[Parts]:
        if not isinstance(items, ast.List | ast.Tuple) or not isinstance(separator, ast.Constant):
            return []
        parts: list[str | Hole] = []
        for index, item in enumerate(items.elts):
            if index:
                parts.append(str(separator.value))
            parts += self.read(item, known)[0]
        return [tuple(parts)]

    def _formatted(self, parts: Parts, node: ast.Call) -> Parts:
        named = {item.arg: self.hole(item.value) for item in node.keywords if item.arg}
        given = [self.hole(item) for item in node.args]
        return tuple(
            part
            for literal in parts
            for part in (format_parts(literal, given, named) if isinstance(literal, str) else (literal,))
        )


def format_parts(literal: str, given: Sequence[Hole], named: Mapping[str, Hole]) -> Iterable[str | Hole]:
    """`literal.format(...)`; a literal that is no format string stays as it is."""
    try:
        fields = list(Formatter().parse(literal))
    except ValueError:
        return (literal,)
    parts: list[str | Hole] = []
    number = 0
    for text, field, spec, conversion in fields:
        if text:
            parts.append(text)
        if field is None:
            continue
        match = re.match(r"\w*", field)
        head = match[0] if match else ""
        if not head:
            index, number = number, number + 1
        else:
            index = int(head) if head.isdigit() else -1
        value = named.get(head) if index < 0 else given[index] if index < len(given) else None
        expr = (value.expr if value else head) + field[len(head) :]
        parts.append(Hole(expr, conversion or "", spec or ""))
    return parts


def percent(parts: Parts, values: Sequence[Hole] | Mapping[str, Hole]) -> Parts:
    """`literal % values`; a placeholder without a value keeps its own name."""
    filled: list[str | Hole] = []
    number = 0
    for part in parts:
        if isinstance(part, Hole):
            filled.append(part)
            continue
        at = 0
        for found in _PERCENT.finditer(part):
            filled.append(part[at : found.start()])
            at = found.end()
            kind = found["type"]
            if kind == "%":
                filled.append("%")
                continue
            value = None
            if isinstance(values, Mapping):
                value = values.get(found["name"] or "")
            elif number < len(values):
                value, number = values[number], number + 1
            conversion = kind if kind in "ra" else ""
            filled.append(Hole(value.expr if value else found["name"] or "", conversion))
        filled.append(part[at:])
    return tuple(part for part in filled if part != "")
