"""Conditions as text: their negation, and what is kept of them."""

from __future__ import annotations

import ast
from typing import Final

from catalog.scan.source import Source

MOST: Final = 12
"""Conditions of one statement that are kept, the innermost."""

_OPPOSITE: Final[dict[type[ast.cmpop], str]] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: ">=",
    ast.LtE: ">",
    ast.Gt: "<=",
    ast.GtE: "<",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


def holds(node: ast.expr, source: Source) -> str:
    """The condition as upstream wrote it; "" for `True`, which says nothing."""
    if always(node):
        return ""
    return source.of(node)


def fails(node: ast.expr, source: Source) -> str:
    """Its negation, in the shortest form; "" for that of `False`, which says nothing."""
    if isinstance(node, ast.Constant) and not node.value:
        return ""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return source.of(node.operand)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = source.of(node.left), source.of(node.comparators[0])
        return f"{left} {_OPPOSITE[type(node.ops[0])]} {right}"
    text = source.of(node)
    return f"not {text}" if isinstance(node, ast.Name | ast.Attribute | ast.Call) else f"not ({text})"


def always(node: ast.expr) -> bool:
    """Whether it says nothing: `while True`."""
    return isinstance(node, ast.Constant) and bool(node.value)


def joined(conditions: tuple[str, ...]) -> str:
    """All of them as one sentence's worth of text; loops and handlers are words, not operands."""
    return " and ".join(
        f"({text})" if len(conditions) > 1 and (" or " in text or " if " in text) else text
        for text in conditions[-MOST:]
    )
