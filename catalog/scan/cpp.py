"""Checks and throws of a C++ or CUDA file, with their texts, by a real parser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final

import tree_sitter_cpp
from tree_sitter import Language, Node, Parser, Query, QueryCursor

from catalog.scan.expressions import percent
from catalog.scan.macros import THROWN, Macro, Macros
from catalog.scan.model import Found, Parts, Scanned
from catalog.scan.source import LONGEST, shown, snippet
from kernels.message import Hole

_QUERY: Final = """
(call_expression function: (_) @callee arguments: (argument_list) @arguments) @call
(throw_statement) @throw
"""
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "'": "'", "\\": "\\", "0": ""}
_FORMATTERS: Final = frozenset({"format", "fmt", "StrFormat"})
_JOINERS: Final = frozenset({"str", "StrCat", "concat", "fmtstr"})
_BRACES: Final = re.compile(r"\{[^{}]*\}")
_SPACE: Final = re.compile(r"\s+")
_COMMENT: Final = re.compile(r"(?<!:)//[^\n]*\n|/\*[^*]*\*/")


@cache
def _tools() -> tuple[Parser, Query]:
    language = Language(tree_sitter_cpp.language())
    return Parser(language), Query(language, _QUERY)


def scan(path: str, data: bytes, macros: Macros) -> Scanned:
    """All sites of a file; what the parser does not understand is passed over."""
    if macros.mentioned.search(data) is None:
        return Scanned(path, language="cpp")
    parser, query = _tools()
    tree = parser.parse(data)
    sites = sorted(_sites(tree.root_node, query, macros), key=lambda site: site.line)
    lines = data.removesuffix(b"\n").split(b"\n")
    snippets = tuple(snippet(len(lines), site.line, site.end_line) for site in sites)
    return Scanned(
        path,
        tuple(sites),
        snippets=snippets,
        code=shown(lines, snippets),
        language="cpp",
    )


def _sites(root: Node, query: Query, macros: Macros) -> Iterator[Found]:
    for _, captured in QueryCursor(query).matches(root):
        if "throw" in captured:
            found = _throw(captured["throw"][0])
        else:
            callee = _text(captured["callee"][0])
            name = callee.split("<")[0].rpartition("::")[2].rpartition(".")[2].rpartition(">")[2]
            macro = macros.by_name.get(name.strip())
            if macro is None:
                continue
            found = _check(captured["call"][0], captured["arguments"][0], macro)
        if found is not None:
            yield found


def _check(call: Node, arguments: Node, macro: Macro) -> Found | None:
    given = [node for node in arguments.named_children if node.type != "comment"]
    if macro.name == "LOG" and (not given or _text(given[0]) != "FATAL"):
        return None
    exception = macro.exception
    if macro.names_class:
        if not given:
            return None
        named = _text(given[0]).rpartition("::")[2].removeprefix("PyExc_")
        exception = THROWN.get(named, named if named.endswith("Error") else "RuntimeError")
        given = given[1:]
    condition = given[: macro.condition]
    texts = given[macro.condition :]
    parts = _format(texts, formatted=macro.formatted)
    whole = call
    while (parent := whole.parent) is not None:
        if parent.type == "binary_expression" and _is_first(parent, whole) and _operator(parent) == "<<":
            right = parent.child_by_field_name("right")
            parts += _part(right) if right is not None else ()
        elif not (
            macro.textless
            and parent.type in ("field_expression", "call_expression")
            and _is_first(parent, whole)
        ):
            break
        whole = parent
    failing = f" {macro.comparison} ".join(map(_text, condition)) if macro.comparison else None
    if failing is None and condition:
        failing = _text(condition[0])
    more = (f"not ({failing})",) if failing and macro.name != "LOG" and not macro.textless else ()
    said = None if macro.textless or not any(isinstance(part, str) for part in parts) else parts
    return _found(whole, exception, said, more)


def _throw(node: Node) -> Found | None:
    raised = next((child for child in node.named_children if child.type != "comment"), None)
    if raised is None or raised.type not in ("call_expression", "compound_literal_expression"):
        return None
    callee = raised.child_by_field_name("function") or raised.child_by_field_name("type")
    arguments = raised.child_by_field_name("arguments") or raised.child_by_field_name("value")
    if callee is None or arguments is None:
        return None
    name = _text(callee).split("<")[0].rpartition("::")[2]
    given = [child for child in arguments.named_children if child.type != "comment"]
    parts = _format(given)
    said = parts if any(isinstance(part, str) for part in parts) else None
    return _found(node, THROWN.get(name, "RuntimeError"), said, ())


def _found(node: Node, exception: str, parts: Parts | None, more: tuple[str, ...]) -> Found:
    function, owner, conditions = _around(node)
    return Found(
        "check",
        exception,
        "error",
        parts,
        _text(node).removesuffix(";"),
        node.start_point.row + 1,
        node.end_point.row + 1,
        function,
        owner,
        (*conditions, *more),
    )


def _around(node: Node) -> tuple[str | None, str | None, tuple[str, ...]]:
    """The function and class a node stands in, and the conditions that lead to it."""
    conditions: list[str] = []
    names: list[str] = []
    owner = None
    inside = node
    current = node.parent
    while current is not None:
        if current.type == "if_statement":
            condition = current.child_by_field_name("condition")
            branch = current.child_by_field_name("alternative")
            if condition is not None and inside != condition:
                text = _text(condition).removeprefix("constexpr").strip()
                text = text[1:-1].strip() if text.startswith("(") and text.endswith(")") else text
                conditions.append(f"not ({text})" if branch is not None and inside == branch else text)
        elif current.type in ("for_statement", "for_range_loop", "while_statement", "case_statement"):
            value = current.child_by_field_name("value" if current.type == "case_statement" else "condition")
            if value is not None:
                conditions.append(("case " if current.type == "case_statement" else "") + _text(value))
        elif current.type == "function_definition":
            declarator = current.child_by_field_name("declarator")
            while declarator is not None and declarator.type != "function_declarator":
                declarator = declarator.child_by_field_name("declarator")
            name = declarator.child_by_field_name("declarator") if declarator is not None else None
            if name is not None:
                names.append(_text(name))
        elif current.type in ("class_specifier", "struct_specifier"):
            name = current.child_by_field_name("name")
            if name is not None:
                names.append(_text(name).split("<")[0])
                owner = owner or names[-1]
        inside, current = current, current.parent
    function = "::".join(reversed(names)) or None
    if owner is None and function and "::" in function:
        owner = function.rpartition("::")[0]
    return function, owner, tuple(reversed(conditions))


def _format(arguments: list[Node], *, formatted: bool = False) -> Parts:
    parts: list[str | Hole] = []
    if formatted and arguments:
        return percent(_part(arguments[0]), [_hole(node) for node in arguments[1:]])
    for node in arguments:
        parts += _part(node)
    return tuple(parts)


def _part(node: Node) -> Parts:
    """What one operand of a message prints."""
    if node.type in ("string_literal", "raw_string_literal", "char_literal"):
        return (_literal(node),)
    if node.type == "concatenated_string":
        # Format macros between the literals (PRId64) are names.
        return tuple(
            _literal(child) if "string" in child.type else _hole(child) for child in node.named_children
        )
    if node.type == "parenthesized_expression" and node.named_children:
        return _part(node.named_children[0])
    if node.type == "binary_expression" and _operator(node) in ("+", "<<"):
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        if left is not None and right is not None:
            return (*_part(left), *_part(right))
    if node.type == "conditional_expression":
        return (_hole(node),)
    if node.type == "call_expression":
        return _called(node)
    return (_hole(node),)


def _called(node: Node) -> Parts:
    function = node.child_by_field_name("function")
    arguments = node.child_by_field_name("arguments")
    if function is None or arguments is None:
        return (_hole(node),)
    name = _text(function).split("<")[0].rpartition("::")[2].rpartition(".")[2]
    given = [child for child in arguments.named_children if child.type != "comment"]
    if name in ("c_str", "str", "data") and function.type == "field_expression":
        inner = function.child_by_field_name("argument")
        return _part(inner) if inner is not None else (_hole(node),)
    if name in ("string", "to_string", "String", "Twine") and len(given) == 1:
        return _part(given[0])
    if name in _JOINERS and given:
        return _format(given)
    if name in _FORMATTERS and given and "string" in given[0].type:
        text = "".join(part for part in _part(given[0]) if isinstance(part, str))
        values = iter(given[1:])
        parts: list[str | Hole] = []
        at = 0
        for found in _BRACES.finditer(text):
            parts.append(text[at : found.start()])
            value = next(values, None)
            parts.append(_hole(value) if value is not None else found[0])
            at = found.end()
        parts.append(text[at:])
        return tuple(part for part in parts if part != "")
    return (_hole(node),)


def _hole(node: Node) -> Hole:
    return Hole(_text(node))


def _literal(node: Node) -> str:
    if node.type == "raw_string_literal":
        return next((_raw(child) for child in node.children if child.type == "raw_string_content"), "")
    parts = []
    for child in node.children:
        if child.type in ("string_content", "character"):
            parts.append(_raw(child))
        elif child.type == "escape_sequence":
            sign = _raw(child)[1:]
            parts.append("" if sign[:1] == "\n" else _ESCAPES.get(sign, ""))
    return "".join(parts)


def _raw(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _text(node: Node) -> str:
    text = _raw(node)
    if "\n" in text or "/*" in text:
        text = _COMMENT.sub(" ", text).replace("\\\n", " ")
    text = _SPACE.sub(" ", text).replace(" .", ".").strip()
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _is_first(parent: Node, child: Node) -> bool:
    return bool(parent.children) and parent.children[0] == child


def _operator(node: Node) -> str:
    operator = node.child_by_field_name("operator")
    return _raw(operator) if operator is not None else ""
