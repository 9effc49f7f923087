"""Raise, assert and log statements of a Python file, in order, by its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from catalog.scan import conditions
from catalog.scan.builders import class_builder, helper_builders
from catalog.scan.calls import may_raise, reported
from catalog.scan.expressions import MOST, Reader, percent
from catalog.scan.model import Argument, Builder, Found, Kind, Level, Parts, Scanned, literal_length
from catalog.scan.source import Source, dotted, shown, snippet

LEAST_SAID: Final = 8
"""Literal characters that make an argument of a helper a message."""
_HTTP: Final = frozenset({"HTTPException", "StarletteHTTPException"})
_SAID_BY: Final = ("detail", "message", "msg", "reason", "error", "explanation")

End = Literal["raises", "leaves"] | None
"""How a block ends: by raising, by leaving in another way, or by running on."""
Texts = dict[str, list[Parts]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where statements stand. `names` are dotted: classes and functions around them."""

    function: str | None = None
    owner: str | None = None
    conditions: tuple[str, ...] = ()

    def under(self, *more: str) -> Place:
        return replace(self, conditions=(*self.conditions, *more))


def scan(path: str, data: bytes) -> Scanned:
    """All sites of a file; SyntaxError, ValueError, RecursionError or MemoryError for what does not parse."""
    source = Source(data)
    tree = ast.parse(source.text)
    found = _File(source, tree)
    found.block(tree.body, {}, Place())
    helpers = {helper.name for helper in found.helpers}
    calls = [call for call in found.calls if call.exception in helpers or call.kind == "raise"]
    lines = source.text.encode().removesuffix(b"\n").split(b"\n")
    snippets = tuple(snippet(len(lines), site.line, site.end_line) for site in (*found.sites, *calls))
    return Scanned(
        path,
        tuple(found.sites),
        tuple(found.classes),
        tuple(found.helpers),
        tuple(calls),
        snippets,
        shown(lines, snippets),
    )


class _File:
    """One file's statements, walked once in order, with the texts that names hold where they are read."""

    def __init__(self, source: Source, tree: ast.Module) -> None:
        self.source = source
        self.read = Reader(source)
        self.sites: list[Found] = []
        self.calls: list[Found] = []
        self.classes: list[Builder] = []
        self.helpers: list[Builder] = []
        self._raised: dict[str, ast.Call] = {}
        """Exceptions that wait in a variable."""
        self._returns(tree)

    def _returns(self, tree: ast.Module) -> None:
        """Functions that do nothing but return a text, at the top level or in a class."""
        for node in tree.body:
            for function in node.body if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(function, ast.FunctionDef) and isinstance(function.body[-1], ast.Return):
                    value = function.body[-1].value
                    if value is not None and (texts := self.read.text(value, {})):
                        self.read.returns[function.name] = texts

    def block(self, statements: Sequence[ast.stmt], texts: Texts, place: Place) -> End:
        """Walk statements that follow one another; `texts` is kept up to date for what follows them."""
        for statement in statements:
            end, place = self._statement(statement, texts, place)
            if end is not None:
                return end
        return None

    def _statement(self, node: ast.stmt, texts: Texts, place: Place) -> tuple[End, Place]:
        """How it ends, and the place of what follows."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, texts, place)
            case ast.ClassDef():
                self._class(node, texts, place)
            case ast.If():
                return self._if(node, texts, place)
            case ast.Raise():
                self._raise(node, texts, place)
                return "raises", place
            case ast.Assert():
                self._assert(node, texts, place)
            case ast.Return():
                self._value(node.value, texts, place)
                return "leaves", place
            case ast.Continue() | ast.Break():
                return "leaves", place
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                self._assigned(node, texts, place)
            case ast.Expr():
                if self._value(node.value, texts, place) == "SystemExit":
                    return "raises", place
            case ast.For() | ast.AsyncFor() | ast.While():
                self._loop(node, texts, place)
            case ast.With() | ast.AsyncWith():
                return self.block(node.body, texts, place), place
            case ast.Try() | ast.TryStar():
                return self._try(node, texts, place), place
            case ast.Match():
                return self._match(node, texts, place), place
            case _:
                pass
        return None, place

    # --- what stands inside what

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, texts: Texts, place: Place) -> None:
        name = f"{place.function}.{node.name}" if place.function else node.name
        inside = {name: known for name, known in texts.items() if name not in _parameters(node.args)}
        self.helpers += helper_builders(node, self.read)
        self.block(node.body, inside, Place(name, place.owner))

    def _class(self, node: ast.ClassDef, texts: Texts, place: Place) -> None:
        name = f"{place.function}.{node.name}" if place.function else node.name
        inside = dict(texts)
        for statement in node.body:
            if isinstance(statement, ast.Assign) and (known := self.read.text(statement.value, texts)):
                inside.update(
                    {f".{target.id}": known for target in statement.targets if isinstance(target, ast.Name)}
                )
        builder = class_builder(node, self.read)
        if builder is not None:
            self.classes.append(builder)
        self.block(node.body, inside, Place(name, node.name))

    def _if(self, node: ast.If, texts: Texts, place: Place) -> tuple[End, Place]:
        true, false = conditions.holds(node.test, self.source), conditions.fails(node.test, self.source)
        self._walrus(node.test, texts)
        taken, other = dict(texts), dict(texts)
        first = self.block(node.body, taken, place.under(true))
        second = self.block(node.orelse, other, place.under(false))
        _merge(texts, *(known for known, end in ((taken, first), (other, second)) if end is None))
        if first is not None and second is not None:
            return "raises" if first == second == "raises" else "leaves", place
        # What raised before is a check of its own, not a condition of what follows.
        if first == "leaves":
            place = place.under(false)
        elif second == "leaves":
            place = place.under(true)
        return None, place

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, texts: Texts, place: Place) -> None:
        if isinstance(node, ast.While):
            inside = place if conditions.always(node.test) else place.under(self.source.of(node.test))
        else:
            inside = place.under(f"for {self.source.of(node.target)} in {self.source.of(node.iter)}")
        taken = dict(texts)
        self.block(node.body, taken, inside)
        _merge(texts, texts.copy(), taken)
        self.block(node.orelse, texts, place)

    def _try(self, node: ast.Try | ast.TryStar, texts: Texts, place: Place) -> End:
        before = dict(texts)
        end = self.block(node.body, texts, place)
        if end is None:
            end = self.block(node.orelse, texts, place)
        ends = [end]
        outcomes = [texts.copy()] if end is None else []
        for handler in node.handlers:
            caught = self.source.of(handler.type) if handler.type is not None else "any exception"
            inside = before | texts
            if handler.name is not None:
                inside.pop(handler.name, None)
            ended = self.block(handler.body, inside, place.under(f"{caught} was caught"))
            ends.append(ended)
            outcomes += [inside] if ended is None else []
        _merge(texts, *outcomes)
        final = self.block(node.finalbody, texts, place)
        if final is not None:
            return final
        if None in ends:
            return None
        return "raises" if all(end == "raises" for end in ends) else "leaves"

    def _match(self, node: ast.Match, texts: Texts, place: Place) -> End:
        subject = self.source.of(node.subject)
        ends: list[End] = []
        outcomes: list[Texts] = []
        for case in node.cases:
            inside = dict(texts)
            pattern = ast.unparse(case.pattern)
            more = [f"{subject} matches {pattern}"] if pattern != "_" else [f"{subject} matches nothing else"]
            more += [self.source.of(case.guard)] if case.guard is not None else []
            ends.append(self.block(case.body, inside, place.under(*more)))
            outcomes += [inside] if ends[-1] is None else []
        last = node.cases[-1]
        whole = last.guard is None and ast.unparse(last.pattern) == "_"
        _merge(texts, *outcomes, *([] if whole else [texts.copy()]))
        if not whole or None in ends:
            return None
        return "raises" if all(end == "raises" for end in ends) else "leaves"

    # --- what names hold

    def _assigned(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, texts: Texts, place: Place) -> None:
        value = node.value
        if value is None:
            return
        self._value(value, texts, place)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if isinstance(node, ast.AugAssign):
            if not isinstance(node.op, ast.Add) or not names or names[0] not in texts:
                known: list[Parts] = []
            else:
                more = self.read.read(value, texts)
                known = [(*old, *new) for old in texts[names[0]] for new in more][:MOST]
        else:
            known = self.read.text(value, texts)
        for name in names:
            self._raised.pop(name, None)
            if known:
                texts[name] = known
            else:
                texts.pop(name, None)
            if isinstance(value, ast.Call) and _is_class(dotted(value.func)):
                self._raised[name] = value

    def _walrus(self, test: ast.expr, texts: Texts) -> None:
        if isinstance(test, ast.NamedExpr):
            texts.pop(test.target.id, None)

    # --- what reports

    def _raise(self, node: ast.Raise, texts: Texts, place: Place) -> None:
        raised = node.exc
        if raised is None:
            return
        # `raise X(...).with_traceback(tb)`
        while (
            isinstance(raised, ast.Call)
            and isinstance(raised.func, ast.Attribute)
            and raised.func.attr in ("with_traceback", "with_note")
        ):
            raised = raised.func.value
        if isinstance(raised, ast.Name) and raised.id in self._raised:
            raised = self._raised[raised.id]
        if not isinstance(raised, ast.Call):
            name = dotted(raised)
            if _is_class(name):
                self._add(node, "raise", name, "error", None, texts, place)
            return
        name = dotted(raised.func)
        if not name:
            return
        last = name.rpartition(".")[2]
        status = _status(raised) if last in _HTTP else None
        arguments = tuple(self._arguments(raised, texts))
        message = _said(raised, last)
        kind: Kind = "http" if last in _HTTP else "raise"
        if not raised.args and message is None:
            self._add(node, kind, name, "error", None, texts, place, arguments=arguments, status=status)
        elif message is not None:
            self._add(node, kind, name, "error", message, texts, place, arguments=arguments, status=status)
        else:
            parts = tuple(self._tuple(raised.args, texts, last))
            self._put(node, kind, name, "error", parts, place, arguments, status)

    def _assert(self, node: ast.Assert, texts: Texts, place: Place) -> None:
        inside = place.under(conditions.fails(node.test, self.source))
        self._add(node, "assert", "AssertionError", "error", node.msg, texts, inside)

    def _value(self, node: ast.expr | None, texts: Texts, place: Place) -> str | None:
        """Look at the call that a statement is or takes its value from; the exception it raises, if known."""
        if isinstance(node, ast.Await):
            node = node.value
        if not isinstance(node, ast.Call):
            return None
        report = reported(node)
        if report is None:
            self._candidate(node, texts, place)
            return None
        if report.condition is not None:
            place = place.under(conditions.fails(report.condition, self.source))
        if report.values and report.message is not None:
            values = [self.read.hole(value) for value in report.values]
            for parts in self.read.read(report.message, texts):
                self._put(node, report.kind, report.exception, report.level, percent(parts, values), place)
        else:
            self._add(node, report.kind, report.exception, report.level, report.message, texts, place)
        return report.exception

    def _candidate(self, node: ast.Call, texts: Texts, place: Place) -> None:
        """Remember a call that may be a helper's, with the texts it is given."""
        name = dotted(node.func).rpartition(".")[2]
        if not name or name == "super":
            return
        if not (may_raise(node) or any(helper.name == name for helper in self.helpers)):
            return
        arguments = tuple(self._arguments(node, texts))
        if max((literal_length(item.parts) for item in arguments), default=0) >= LEAST_SAID:
            expression = self.source.of(node)
            self.calls.append(
                Found(
                    "raise",
                    name,
                    "error",
                    None,
                    expression,
                    node.lineno,
                    node.end_lineno or node.lineno,
                    place.function,
                    place.owner,
                    place.conditions,
                    arguments,
                )
            )

    def _arguments(self, call: ast.Call, texts: Texts) -> Iterator[Argument]:
        for value in call.args:
            yield Argument(None, self.read.read(value, texts)[0])
        for keyword in call.keywords:
            if keyword.arg is not None:
                yield Argument(keyword.arg, self.read.read(keyword.value, texts)[0])

    def _tuple(self, values: Sequence[ast.expr], texts: Texts, name: str) -> Iterator[object]:
        """What an exception with several arguments prints: the tuple of them, or the system's own form."""
        read = [self.read.read(value, texts)[0] for value in values]
        if name.endswith("OSError") or name in ("IOError", "FileNotFoundError", "PermissionError"):
            yield from ("[Errno ", *read[0], "] ", *read[1])
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
        kind: Kind,
        exception: str,
        level: Level,
        message: ast.expr | None,
        texts: Texts,
        place: Place,
        *,
        arguments: tuple[Argument, ...] = (),
        status: int | None = None,
    ) -> None:
        """One site for each text that the message may be."""
        options = [None] if message is None else self.read.read(message, texts)
        for parts in dict.fromkeys(options):
            self._put(node, kind, exception, level, parts, place, arguments, status)

    def _put(
        self,
        node: ast.stmt | ast.expr,
        kind: Kind,
        exception: str,
        level: Level,
        parts: object,
        place: Place,
        arguments: tuple[Argument, ...] = (),
        status: int | None = None,
    ) -> None:
        built_in = exception in _BUILT_IN
        self.sites.append(
            Found(
                kind,
                exception,
                level,
                parts,  # type: ignore[arg-type]
                self.source.of(node),
                node.lineno,
                node.end_lineno or node.lineno,
                place.function,
                place.owner,
                place.conditions[-conditions.MOST :],
                () if built_in else arguments,
                status,
            )
        )


_BUILT_IN: Final = frozenset(
    name
    for name, value in vars(__import__("builtins")).items()
    if isinstance(value, type) and issubclass(value, BaseException)
)


def _merge(texts: Texts, *outcomes: Texts) -> None:
    """After branches: each name holds what any of them left in it, nothing where one left it unknown."""
    if not outcomes:
        return
    kept = set(outcomes[0]).intersection(*outcomes[1:])
    merged = {
        name: list(dict.fromkeys(parts for known in outcomes for parts in known[name]))[:MOST]
        for name in kept
    }
    texts.clear()
    texts.update(merged)


def _parameters(arguments: ast.arguments) -> set[str]:
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    named += [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]
    return {argument.arg for argument in named}


def _is_class(name: str) -> bool:
    """Whether a dotted name is spelled as a class is, rather than as a variable that holds one caught."""
    last = name.rpartition(".")[2].lstrip("_")
    return last[:1].isupper() and not last.isupper()


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
