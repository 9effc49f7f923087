"""Exception classes that word their own message, and functions that raise what they are given."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from catalog.scan.calls import reported
from catalog.scan.expressions import Reader
from catalog.scan.model import Builder, Level, Parts, literal_length
from catalog.scan.source import dotted
from catalog.scan.texts import without
from kernels.message import Hole

_EXCEPTION: Final = ("Error", "Exception", "Warning", "Exit", "Interrupt", "Failure", "Failed", "Abort")
_SAYS: Final = frozenset({"message", "msg", "args", "detail"})


Known = Mapping[str, list[Parts]]


def class_builder(node: ast.ClassDef, read: Reader, known: Known) -> Builder | None:
    """What an exception class prints: its `__str__`, else what its `__init__` hands on.

    `known` are the texts of the class's own names and of those around it.
    """
    if not any(dotted(base).endswith(_EXCEPTION) for base in node.bases):
        return None
    methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
    init = methods.get("__init__")
    parameters = tuple(argument.arg for argument in init.args.args[1:]) if init is not None else ()
    defaults = tuple(_defaults(init, read, known)) if init is not None else ()
    if (written := methods.get("__str__")) is not None:
        for value in _returned(written):
            for parts in read.text(value, known):
                if literal_length(parts):
                    return Builder(node.name, parameters, parts, defaults=defaults)
    for parts in _handed_on(init, read, without(known, init.args)) if init is not None else ():
        return Builder(node.name, parameters, parts, defaults=defaults)
    return None


def _defaults(function: ast.FunctionDef, read: Reader, known: Known) -> Iterator[tuple[str, Parts]]:
    """(parameter, what it prints) of those that need not be given."""
    given = function.args
    named = [*given.posonlyargs, *given.args]
    late = given.defaults
    pairs: list[tuple[ast.arg, ast.expr | None]] = []
    pairs += zip(named[len(named) - len(late) :], late, strict=True)
    pairs += zip(given.kwonlyargs, given.kw_defaults, strict=True)
    for name, value in pairs:
        if value is not None and (texts := read.text(value, known)):
            yield name.arg, texts[0]


def _returned(function: ast.FunctionDef) -> Iterator[ast.expr]:
    for item in ast.walk(function):
        if isinstance(item, ast.Return) and item.value is not None:
            yield item.value


def _handed_on(init: ast.FunctionDef, read: Reader, around: Known) -> Iterator[Parts]:
    """What `__init__` makes its base class print."""
    known: dict[str, list[Parts]] = dict(around)
    for statement in ast.walk(init):
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            if texts := read.text(statement.value, known):
                known[statement.targets[0].id] = texts
        elif (
            isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Attribute)
            and statement.targets[0].attr in _SAYS
            and (texts := read.text(statement.value, known))
        ):
            known[statement.targets[0].attr] = texts
            known[f".{statement.targets[0].attr}"] = texts
    for item in ast.walk(init):
        if not isinstance(item, ast.Call) or not isinstance(item.func, ast.Attribute):
            continue
        if item.func.attr != "__init__":
            continue
        inherited = isinstance(item.func.value, ast.Call)
        arguments = item.args if inherited else item.args[1:]
        if len(arguments) == 1 and not isinstance(arguments[0], ast.Starred):
            yield from read.read(arguments[0], known)


def helper_builders(
    node: ast.FunctionDef | ast.AsyncFunctionDef, read: Reader, known: Known
) -> Iterator[Builder]:
    """The ways in which a function raises or logs a text that it was given."""
    parameters = tuple(argument.arg for argument in (*node.args.posonlyargs, *node.args.args))
    keywords = {argument.arg for argument in node.args.kwonlyargs}
    given = ({*parameters} | keywords) - {"self", "cls"}
    if not given:
        return
    if parameters[:1] in (("self",), ("cls",)):
        parameters = parameters[1:]
    for item in statements(node.body):
        said: ast.expr | None = None
        exception, level = "", "error"
        if isinstance(item, ast.Raise) and isinstance(item.exc, ast.Call) and len(item.exc.args) == 1:
            said, exception = item.exc.args[0], dotted(item.exc.func)
        elif (
            isinstance(item, ast.Expr)
            and isinstance(item.value, ast.Call)
            and (report := reported(item.value)) is not None
            and not report.values
        ):
            said, exception, level = report.message, report.exception, report.level
        if said is None or not exception[:1]:
            continue
        for parts in read.read(said, known):
            # A text with words of its own is a site by itself; this one says what the caller says.
            if literal_length(parts) < 8 and any(
                isinstance(part, Hole) and part.expr in given for part in parts
            ):
                yield Builder(node.name, parameters, parts, exception, _level(level))


def maker(node: ast.FunctionDef | ast.AsyncFunctionDef, read: Reader, known: Known) -> Builder | None:
    """A function that returns a new exception for its caller to raise."""
    parameters = tuple(argument.arg for argument in (*node.args.posonlyargs, *node.args.args))
    if parameters[:1] in (("self",), ("cls",)):
        parameters = parameters[1:]
    for item in statements(node.body):
        made = item.value if isinstance(item, ast.Return) else None
        if isinstance(made, ast.Call) and dotted(made.func).endswith(_EXCEPTION) and len(made.args) == 1:
            parts = read.read(made.args[0], known)[0]
            return Builder(node.name, parameters, parts, dotted(made.func))
    return None


def statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body and of the blocks in it, without those of functions defined in it."""
    for node in body:
        yield node
        match node:
            case ast.If() | ast.For() | ast.AsyncFor() | ast.While():
                yield from statements(node.body)
                yield from statements(node.orelse)
            case ast.With() | ast.AsyncWith():
                yield from statements(node.body)
            case ast.Try() | ast.TryStar():
                for block in (node.body, node.orelse, node.finalbody, *(item.body for item in node.handlers)):
                    yield from statements(block)
            case ast.Match():
                for case in node.cases:
                    yield from statements(case.body)
            case _:
                pass


def _level(level: str) -> Level:
    return "critical" if level == "critical" else "warning" if level == "warning" else "error"
