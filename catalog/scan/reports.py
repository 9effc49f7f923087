"""Statements of a Python file that report an error: raise, assert, and calls that do."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Final

from catalog.scan import conditions
from catalog.scan.calls import Report, handed, may_raise, reported
from catalog.scan.expressions import Reader, percent
from catalog.scan.model import ANY, Argument, Found, Kind, literal_length
from catalog.scan.source import Source, dotted
from catalog.scan.texts import BUILT_IN, Place, Texts, is_class

LEAST_SAID: Final = 8
"""Literal characters that make an argument of a helper a message."""
_HTTP: Final = frozenset({"HTTPException", "StarletteHTTPException"})
_COPIES: Final = frozenset({"copy", "deepcopy"})
"""What is raised is what they are given, as in `raise copy.deepcopy(error)`: told where it was made."""
_SAID_BY: Final = ("detail", "message", "msg", "reason", "error", "explanation")


class Reports:
    """The sites of one file, and calls that a helper may make one of."""

    def __init__(self, source: Source, read: Reader) -> None:
        self.source = source
        self.read = read
        self.sites: list[Found] = []
        self.calls: list[Found] = []
        self.helpers: set[str] = set()
        """Names of functions of the file that raise or log what they are given."""
        self._waiting: dict[str, ast.Call] = {}
        """Exceptions that wait in a variable."""

    def assigned(self, name: str, value: ast.expr) -> None:
        """A variable has been given a value, which may be an exception to be raised."""
        self._waiting.pop(name, None)
        if isinstance(value, ast.Call) and is_class(dotted(value.func)):
            self._waiting[name] = value

    def raised(self, node: ast.Raise, texts: Texts, place: Place) -> None:
        """A raise statement; what is raised again has been told where it was raised first."""
        if node.exc is not None:
            self._raised(node, node.exc, texts, place)

    def _raised(self, node: ast.Raise | ast.Call, raised: ast.expr, texts: Texts, place: Place) -> None:
        if isinstance(raised, ast.IfExp):
            held = conditions.holds(raised.test, self.source)
            self._raised(node, raised.body, texts, place.under(held))
            self._raised(node, raised.orelse, texts, place.under(conditions.fails(raised.test, self.source)))
            return
        # `raise X(...).with_traceback(tb)`
        while (
            isinstance(raised, ast.Call)
            and isinstance(raised.func, ast.Attribute)
            and raised.func.attr in ("with_traceback", "with_note")
        ):
            raised = raised.func.value
        if isinstance(raised, ast.Name) and raised.id in self._waiting:
            raised = self._waiting[raised.id]
        if not isinstance(raised, ast.Call):
            name = dotted(raised)
            if is_class(name):
                self._add(node, Report("raise", name, "error", None, []), texts, place)
            return
        name = dotted(raised.func)
        last = name.rpartition(".")[2]
        if not name or last in _COPIES:
            return
        kind: Kind = "http" if last in _HTTP else "raise"
        status = _status(raised) if kind == "http" else None
        arguments = tuple(self._arguments(raised, texts)) if name not in BUILT_IN else ()
        message = _said(raised, last)
        if message is None and raised.args:
            parts = tuple(self._tuple(raised.args, texts, last))
            self._put(node, Report(kind, name, "error", None, []), parts, place, arguments, status)
        else:
            report = Report(kind, name, "error", message, [])
            self._add(node, report, texts, place, arguments, status)

    def asserted(self, node: ast.Assert, texts: Texts, place: Place) -> None:
        """An assert statement."""
        inside = place.under(conditions.fails(node.test, self.source))
        self._add(node, Report("assert", "AssertionError", "error", node.msg, []), texts, inside)

    def value(self, node: ast.expr | None, texts: Texts, place: Place) -> str | None:
        """The call that a statement is or takes its value from; the exception that it raises, if known."""
        if isinstance(node, ast.Await):
            node = node.value
        if not isinstance(node, ast.Call):
            return None
        report = reported(node)
        if report is None:
            if (given := handed(node)) is not None:
                self._raised(node, given, texts, place)
            else:
                self._candidate(node, texts, place)
            return None
        if report.condition is not None:
            place = place.under(conditions.fails(report.condition, self.source))
        if report.values and report.message is not None:
            values = [self.read.hole(value) for value in report.values]
            for parts in self.read.read(report.message, texts):
                self._put(node, report, percent(parts, values), place)
        else:
            self._add(node, report, texts, place)
        return report.exception

    def _candidate(self, node: ast.Call, texts: Texts, place: Place) -> None:
        """Remember a call that may be a helper's, with the texts it is given."""
        name = dotted(node.func).rpartition(".")[2]
        if not name or name == "super" or not (may_raise(node) or name in self.helpers):
            return
        arguments = tuple(self._arguments(node, texts))
        if max((literal_length(item.parts) for item in arguments), default=0) >= LEAST_SAID:
            self.calls.append(
                self._found(node, Report("raise", name, "error", None, []), None, place, arguments)
            )

    def _arguments(self, call: ast.Call, texts: Texts) -> Iterator[Argument]:
        for value in call.args:
            yield Argument(None, self.read.read(value, texts)[0])
        for keyword in call.keywords:
            yield Argument(keyword.arg or ANY, self.read.read(keyword.value, texts)[0])

    def _tuple(self, values: Sequence[ast.expr], texts: Texts, name: str) -> Iterator[object]:
        """What an exception with several arguments prints: the tuple of them, or the system's own form."""
        read = [self.read.read(value, texts)[0] for value in values]
        if name.endswith("OSError") or name in ("IOError", "FileNotFoundError", "PermissionError"):
            yield from ("[Errno ", *read[0], "] ", *(read[1] if len(read) > 1 else ()))
            yield from (": '", *read[2], "'") if len(read) > 2 else ()
            return
        for index, (value, parts) in enumerate(zip(values, read, strict=True)):
            yield ", " if index else "("
            text = bool(self.read.text(value, texts))
            yield from ("'", *parts, "'") if text else parts
        yield ")"

    def _add(
        self,
        node: ast.stmt | ast.expr,
        report: Report,
        texts: Texts,
        place: Place,
        arguments: tuple[Argument, ...] = (),
        status: int | None = None,
    ) -> None:
        """One site for each text that the message may be."""
        options = [None] if report.message is None else self.read.read(report.message, texts)
        for parts in dict.fromkeys(options):
            self._put(node, report, parts, place, arguments, status)

    def _put(
        self,
        node: ast.stmt | ast.expr,
        report: Report,
        parts: object,
        place: Place,
        arguments: tuple[Argument, ...] = (),
        status: int | None = None,
    ) -> None:
        self.sites.append(self._found(node, report, parts, place, arguments, status))

    def _found(
        self,
        node: ast.stmt | ast.expr,
        report: Report,
        parts: object,
        place: Place,
        arguments: tuple[Argument, ...] = (),
        status: int | None = None,
    ) -> Found:
        return Found(
            report.kind,
            report.exception,
            report.level,
            parts,  # type: ignore[arg-type]
            self.source.of(node),
            node.lineno,
            node.end_lineno or node.lineno,
            place.function,
            place.owner,
            place.conditions[-conditions.MOST :],
            arguments,
            status,
        )


def _said(call: ast.Call, name: str) -> ast.expr | None:
    """The argument that is the message, where it is one argument."""
    if name in _HTTP:
        named = next((item.value for item in call.keywords if item.arg == "detail"), None)
        return named or (call.args[1] if len(call.args) > 1 else None)
    if len(call.args) == 1 and not isinstance(call.args[0], ast.Starred):
        return call.args[0]
    if call.args:
        return None
    return next((item.value for word in _SAID_BY for item in call.keywords if item.arg == word), None)


def _status(call: ast.Call) -> int | None:
    given = next((item.value for item in call.keywords if item.arg == "status_code"), None)
    node = given or (call.args[0] if call.args else None)
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and 100 <= node.value <= 599:
        return node.value
    if isinstance(node, ast.Attribute):
        # HTTPStatus.BAD_REQUEST, status.HTTP_400_BAD_REQUEST
        digits = [word for word in node.attr.split("_") if word.isdigit() and len(word) == 3]
        return int(digits[0]) if digits else None
    return None
