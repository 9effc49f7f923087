"""What the text of a C++ check prints: literals, streams, format functions, and variables that hold one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from tree_sitter import Node

from catalog.scan.around import before, raw, text_of
from catalog.scan.expressions import percent
from catalog.scan.model import Parts
from kernels.message import Hole

MOST_BEFORE: Final = 60
"""Statements in front of a check that are looked through for what a variable holds."""
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "'": "'", "\\": "\\", "0": ""}
_FORMATTERS: Final = frozenset({"format", "fmt", "StrFormat", "fmtstr"})
_PRINTF: Final = frozenset({"StrPrintf", "stringPrintf", "Fmtstr"})
_JOINERS: Final = frozenset({"str", "StrCat", "concat"})
_SAME: Final = frozenset({"string", "to_string", "String", "Twine", "string_view", "move"})
_BRACES: Final = re.compile(r"\{(\d*)(?::[^{}]*)?\}")


def given(arguments: Node) -> list[Node]:
    """The arguments of a call."""
    return [node for node in arguments.named_children if node.type != "comment"]


def printed(arguments: Sequence[Node], *, formatted: bool = False) -> Parts:
    """What the arguments print one after another; with `formatted` the first is a printf format."""
    if formatted and arguments:
        return percent(part(arguments[0]), [hole(node) for node in arguments[1:]])
    return tuple(item for node in arguments for item in part(node))


def part(node: Node) -> Parts:
    """What one operand of a message prints."""
    kind = node.type
    if kind in ("string_literal", "raw_string_literal", "char_literal"):
        return (_literal(node),)
    if kind == "concatenated_string":
        # Format macros between the literals (PRId64), and stringified parameters, are names.
        return tuple(
            _literal(child) if "string" in child.type else hole(child) for child in node.named_children
        )
    if kind == "parenthesized_expression" and node.named_children:
        return part(node.named_children[0])
    if kind == "binary_expression" and operator(node) in ("+", "<<"):
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        if left is not None and right is not None:
            return (*part(left), *part(right))
    if kind == "call_expression":
        return _called(node)
    if kind == "identifier":
        return _held(node) or (hole(node),)
    return (hole(node),)


def hole(node: Node) -> Hole:
    """A value printed as a whole."""
    return Hole(text_of(node))


def operator(node: Node) -> str:
    """The operator of a binary expression."""
    found = node.child_by_field_name("operator")
    return raw(found) if found is not None else ""


def _called(node: Node) -> Parts:
    function = node.child_by_field_name("function")
    arguments = node.child_by_field_name("arguments")
    if function is None or arguments is None:
        return (hole(node),)
    name = text_of(function).split("<")[0].rpartition("::")[2].rpartition(".")[2]
    items = given(arguments)
    if name in ("c_str", "str", "data") and function.type == "field_expression":
        inner = function.child_by_field_name("argument")
        return part(inner) if inner is not None else (hole(node),)
    if name in _SAME and len(items) == 1:
        return part(items[0])
    if name in _JOINERS and items:
        return printed(items)
    if name in _PRINTF or (name == "fmtstr" and items):
        return printed(items, formatted=True)
    if name in _FORMATTERS and items and "string" in items[0].type:
        return _braces("".join(item for item in part(items[0]) if isinstance(item, str)), items[1:])
    return (hole(node),)


def _braces(text: str, values: Sequence[Node]) -> Parts:
    """`format("{} of {0}", …)`; doubled braces are single ones."""
    parts: list[str | Hole] = []
    at = 0
    text = text.replace("{{", "\ue000").replace("}}", "\ue001")
    for number, found in enumerate(_BRACES.finditer(text)):
        parts.append(text[at : found.start()])
        index = int(found[1][:4]) if found[1] else number
        parts.append(hole(values[index]) if index < len(values) else found[0])
        at = found.end()
    parts.append(text[at:])
    whole = (
        item.replace("\ue000", "{").replace("\ue001", "}") if isinstance(item, str) else item
        for item in parts
    )
    return tuple(item for item in whole if item != "")


def _held(node: Node) -> Parts:
    """What a string or stream of this function holds, by the statements in front of it; () for no text."""
    name = text_of(node)
    found: list[Parts] = []
    for number, statement in enumerate(before(node)):
        if number == MOST_BEFORE:
            return ()
        if statement.type == "declaration":
            declared = _declared(statement, name)
            if declared is not None:
                found.append(declared)
                parts = tuple(item for piece in reversed(found) for item in piece)
                return parts if any(isinstance(item, str) and item.strip() for item in parts) else ()
        elif statement.type == "expression_statement" and statement.named_children:
            said = _appended(statement.named_children[0], name)
            if said is not None:
                found.append(said)
    return ()


def _declared(statement: Node, name: str) -> Parts | None:
    """What a declaration puts into a variable: () for an empty one, None where it declares another."""
    for child in statement.named_children:
        declarator = child
        value = None
        if child.type == "init_declarator":
            declarator = child.child_by_field_name("declarator") or child
            value = child.child_by_field_name("value")
        if declarator.type == "identifier" and text_of(declarator) == name:
            if value is None:
                return ()
            if value.type in ("argument_list", "initializer_list"):
                return printed(given(value))
            return part(value)
    return None


def _appended(expression: Node, name: str) -> Parts | None:
    """What `name << a << b` or `name += a` adds."""
    if expression.type == "assignment_expression" and operator(expression) == "+=":
        left, right = expression.child_by_field_name("left"), expression.child_by_field_name("right")
        if left is not None and right is not None and text_of(left) == name:
            return part(right)
        return None
    operands: list[Node] = []
    current = expression
    while current.type == "binary_expression" and operator(current) == "<<":
        left, right = current.child_by_field_name("left"), current.child_by_field_name("right")
        if left is None or right is None:
            return None
        operands.append(right)
        current = left
    if not operands or current.type != "identifier" or text_of(current) != name:
        return None
    return tuple(item for operand in reversed(operands) for item in part(operand))


def _literal(node: Node) -> str:
    if node.type == "raw_string_literal":
        return next((raw(child) for child in node.children if child.type == "raw_string_content"), "")
    parts = []
    for child in node.children:
        if child.type in ("string_content", "character"):
            parts.append(raw(child))
        elif child.type == "escape_sequence":
            sign = raw(child)[1:]
            parts.append("" if sign[:1] == "\n" else _ESCAPES.get(sign, ""))
    return "".join(parts)
