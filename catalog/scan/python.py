"""Raise, assert and log statements of a Python file, in order, by its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Literal

from catalog.scan import conditions
from catalog.scan.builders import class_builder, helper_builders, maker
from catalog.scan.expressions import MOST, Reader
from catalog.scan.model import Builder, Parts, Scanned
from catalog.scan.reports import Reports
from catalog.scan.source import Source, dotted, shown, snippet
from catalog.scan.texts import Place, Texts, merge, without

End = Literal["raises", "leaves"] | None
"""How a block ends: by raising, by leaving in another way, or by running on."""


def scan(path: str, data: bytes) -> Scanned:
    """All sites of a file; SyntaxError, ValueError, RecursionError or MemoryError for what does not parse."""
    source = Source(data)
    tree = ast.parse(source.text)
    found = _File(source, tree)
    texts: Texts = {}
    found.block(tree.body, texts, Place())
    helpers = {helper.name for helper in found.helpers}
    calls = [call for call in found.reports.calls if call.exception in helpers or call.kind == "raise"]
    sites = found.reports.sites
    lines = source.text.encode().removesuffix(b"\n").split(b"\n")
    snippets = tuple(snippet(len(lines), site.line, site.end_line) for site in (*sites, *calls))
    return Scanned(
        path,
        tuple(sites),
        tuple(found.classes),
        tuple(found.helpers),
        tuple(calls),
        snippets,
        shown(lines, snippets),
        makers=tuple(found.makers),
        bases=tuple(found.bases),
        constants=tuple(
            (name, known[0]) for name, known in texts.items() if name.isupper() and len(known) == 1
        ),
    )


class _File:
    """One file's statements, walked once in order, with the texts that names hold where they are read."""

    def __init__(self, source: Source, tree: ast.Module) -> None:
        self.source = source
        self.read = Reader(source)
        self.reports = Reports(source, self.read)
        self.classes: list[Builder] = []
        self.helpers: list[Builder] = []
        self.makers: list[Builder] = []
        self.bases: list[tuple[str, str]] = []
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
                self.reports.raised(node, texts, place)
                return "raises", place
            case ast.Assert():
                self.reports.asserted(node, texts, place)
            case ast.Return():
                self.reports.value(node.value, texts, place)
                return "leaves", place
            case ast.Continue() | ast.Break():
                return "leaves", place
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                self._assigned(node, texts, place)
            case ast.Expr():
                if self.reports.value(node.value, texts, place) == "SystemExit":
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

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, texts: Texts, place: Place) -> None:
        name = f"{place.function}.{node.name}" if place.function else node.name
        inside = without(texts, node.args)
        found = list(helper_builders(node, self.read, inside))
        self.helpers += found
        self.reports.helpers.update(helper.name for helper in found)
        if (made := maker(node, self.read, inside)) is not None:
            self.makers.append(made)
        self.block(node.body, inside, Place(name, place.owner))

    def _class(self, node: ast.ClassDef, texts: Texts, place: Place) -> None:
        name = f"{place.function}.{node.name}" if place.function else node.name
        inside = dict(texts)
        for statement in node.body:
            if isinstance(statement, ast.Assign) and (known := self.read.text(statement.value, texts)):
                inside.update(
                    {f".{target.id}": known for target in statement.targets if isinstance(target, ast.Name)}
                )
        self.bases += [(node.name, base) for base in map(dotted, node.bases[:1]) if base]
        builder = class_builder(node, self.read, inside)
        if builder is not None:
            self.classes.append(builder)
        self.block(node.body, inside, Place(name, node.name))

    def _if(self, node: ast.If, texts: Texts, place: Place) -> tuple[End, Place]:
        true, false = conditions.holds(node.test, self.source), conditions.fails(node.test, self.source)
        self._walrus(node.test, texts)
        taken, other = dict(texts), dict(texts)
        first = self.block(node.body, taken, place.under(true))
        second = self.block(node.orelse, other, place.under(false))
        merge(texts, *(known for known, end in ((taken, first), (other, second)) if end is None))
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
        merge(texts, texts.copy(), taken)
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
        merge(texts, *outcomes)
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
        merge(texts, *outcomes, *([] if whole else [texts.copy()]))
        if not whole or None in ends:
            return None
        return "raises" if all(end == "raises" for end in ends) else "leaves"

    def _assigned(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, texts: Texts, place: Place) -> None:
        value = node.value
        if value is None:
            return
        self.reports.value(value, texts, place)
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
            self.reports.assigned(name, value)
            if known:
                texts[name] = known
            else:
                texts.pop(name, None)

    def _walrus(self, test: ast.expr, texts: Texts) -> None:
        if isinstance(test, ast.NamedExpr):
            texts.pop(test.target.id, None)
