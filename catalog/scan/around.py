"""Where a node of a C++ file stands: its function, its class, and what must hold to reach it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from tree_sitter import Node

from catalog.scan.conditions import MOST
from catalog.scan.source import LONGEST

_SPACE: Final = re.compile(r"\s+")
_COMMENT: Final = re.compile(r"(?<!:)//[^\n]*\n|/\*[^*]*\*/")
_LEAVES: Final = frozenset({"return_statement", "break_statement", "continue_statement", "goto_statement"})
DEEPEST: Final = 500
"""Nodes around one that are looked at; code that people write has some dozens."""
_BLOCKS: Final = frozenset({"compound_statement", "case_statement"})


def raw(node: Node) -> str:
    """The source of a node, as written."""
    return (node.text or b"").decode("utf-8", "replace")


def text_of(node: Node) -> str:
    """The source of a node on one line, white space collapsed, comments left out."""
    text = raw(node)
    if "\n" in text or "/*" in text:
        text = _COMMENT.sub(" ", text).replace("\\\n", " ")
    text = _SPACE.sub(" ", text).replace(" .", ".").strip()
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


class Surroundings:
    """Where the nodes of one tree stand; what a block lets through is found once."""

    def __init__(self) -> None:
        self._passed: dict[int, tuple[list[int], list[str]]] = {}

    def of(self, node: Node) -> tuple[str | None, str | None, tuple[str, ...]]:
        """The function and class a node stands in, and the conditions that lead to it, outermost first."""
        conditions: list[str] = []
        names: list[str] = []
        owner = None
        for inside, current in outwards(node):
            if current.type == "function_definition":
                if (name := _function(current)) is not None:
                    names.append(name)
            elif current.type in ("class_specifier", "struct_specifier"):
                called = current.child_by_field_name("name")
                if called is not None:
                    names.append(text_of(called).split("<")[0])
                    owner = owner or names[-1]
            else:
                here = [*_conditions(current, inside)]
                if current.type in _BLOCKS:
                    here += self._let_through(current, inside)
                conditions += reversed(here)
        function = "::".join(reversed(names)) or None
        if owner is None and function and "::" in function:
            owner = function.rpartition("::")[0]
        return function, owner, tuple(reversed(conditions[:MOST]))

    def _let_through(self, block: Node, inside: Node) -> list[str]:
        """What earlier statements of a block let through: those that leave it under a condition.

        One that throws is a check of its own, not a condition of what follows.
        """
        if block.id not in self._passed:
            left = [statement for statement in block.named_children if _leaves_if(statement)]
            conditions = (statement.child_by_field_name("condition") for statement in left)
            self._passed[block.id] = (
                [statement.start_byte for statement in left],
                [f"not ({_bare(condition)})" for condition in conditions if condition is not None],
            )
        starts, texts = self._passed[block.id]
        end = bisect_left(starts, inside.start_byte)
        return texts[max(0, end - MOST) : end]


def before(node: Node) -> Iterator[Node]:
    """The statements in front of a node in its own block and in those around it, nearest first."""
    for inside, current in outwards(node):
        if current.type == "function_definition":
            return
        if current.type in _BLOCKS:
            sibling = inside.prev_named_sibling
            while sibling is not None:
                yield sibling
                sibling = sibling.prev_named_sibling


def outwards(node: Node) -> Iterator[tuple[Node, Node]]:
    """(node, what it stands in) from a node outwards, at most DEEPEST times: each step is a walk from the
    root.
    """
    inside = node
    for _ in range(DEEPEST):
        if (current := inside.parent) is None:
            return
        yield inside, current
        inside = current


def _conditions(current: Node, inside: Node) -> Iterator[str]:
    """What a node demands of what stands inside of it, in order."""
    kind = current.type
    if kind == "if_statement":
        yield from _branch(current, inside)
    elif kind in ("for_statement", "while_statement", "do_statement"):
        condition = current.child_by_field_name("condition")
        if (
            condition is not None
            and inside != condition
            and (text := _bare(condition)) not in ("true", "0", "1")
        ):
            yield text
    elif kind == "for_range_loop":
        right = current.child_by_field_name("right")
        if right is not None and inside == current.child_by_field_name("body"):
            yield f"for each of {text_of(right)}"
    elif kind == "case_statement":
        yield _case(current)
    elif kind == "catch_clause":
        caught = current.child_by_field_name("parameters")
        yield f"{_bare(caught)} was caught" if caught is not None else "an exception was caught"
    elif kind in ("preproc_if", "preproc_elif"):
        condition = current.child_by_field_name("condition")
        if condition is not None and inside not in (condition, current.child_by_field_name("alternative")):
            yield f"#if {text_of(condition)}"
    elif kind == "preproc_ifdef" and not _guards(current):
        name = current.child_by_field_name("name")
        if name is not None and inside not in (name, current.child_by_field_name("alternative")):
            yield f"#{'ifndef' if raw(current).startswith('#ifndef') else 'ifdef'} {text_of(name)}"


def _branch(current: Node, inside: Node) -> Iterator[str]:
    condition = current.child_by_field_name("condition")
    if condition is not None and inside != condition:
        text = _bare(condition)
        yield f"not ({text})" if inside == current.child_by_field_name("alternative") else text


def _leaves_if(statement: Node) -> bool:
    """Whether it is an `if` whose branch leaves the block, without another branch."""
    if statement.type != "if_statement" or statement.child_by_field_name("alternative") is not None:
        return False
    taken = statement.child_by_field_name("consequence")
    return taken is not None and statement.child_by_field_name("condition") is not None and _leaves(taken)


def _leaves(statement: Node) -> bool:
    if statement.type == "compound_statement":
        last = next((node for node in reversed(statement.named_children) if node.type != "comment"), None)
        return last is not None and _leaves(last)
    return statement.type in _LEAVES


def _case(current: Node) -> str:
    value = current.child_by_field_name("value")
    switch = current.parent
    while switch is not None and switch.type != "switch_statement":
        switch = switch.parent
    condition = switch.child_by_field_name("condition") if switch is not None else None
    subject = _bare(condition) if condition is not None else "the value"
    return f"{subject} == {text_of(value)}" if value is not None else f"{subject} is none of the cases"


def _guards(current: Node) -> bool:
    """Whether it is a header's guard against being included twice."""
    return (
        current.parent is not None
        and current.parent.type == "translation_unit"
        and raw(current).startswith("#ifndef")
    )


def _bare(condition: Node) -> str:
    """A condition without the brackets and `constexpr` of its statement."""
    text = text_of(condition).removeprefix("constexpr").strip()
    return text[1:-1].strip() if text.startswith("(") and text.endswith(")") else text


def _function(node: Node) -> str | None:
    declarator = node.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "function_declarator":
        declarator = declarator.child_by_field_name("declarator")
    name = declarator.child_by_field_name("declarator") if declarator is not None else None
    return text_of(name) if name is not None else None
