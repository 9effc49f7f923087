"""Messages that another definition completes: exception classes that word them, functions that raise them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Final

from catalog.scan.defines import expanded
from catalog.scan.model import ANY, Argument, Builder, Found, Kind, Parts, Scanned, literal_length
from kernels.message import Hole

MOST_DEEP: Final = 6
"""How far files that include each other are followed."""

Snippet = tuple[int, int]


class Definitions:
    """Exception classes and helpers of all files, by name; a file's own win over others'."""

    def __init__(self, scanned: Iterable[Scanned]) -> None:
        self._classes: dict[str, list[Builder]] = defaultdict(list)
        self._helpers: dict[str, list[Builder]] = defaultdict(list)
        self._macros: dict[str, dict[str, list[Builder]]] = defaultdict(dict)
        self._includes: dict[str, tuple[str, ...]] = {}
        self._named: dict[str, list[str]] = defaultdict(list)
        self._makers: dict[str, list[Builder]] = defaultdict(list)
        self._bases: dict[str, list[str]] = defaultdict(list)
        self._constants: dict[str, set[Parts]] = defaultdict(set)
        for file in scanned:
            for builder in file.makers:
                self._makers[builder.name].append(builder)
            for name, base in file.bases:
                self._bases[name].append(base.rpartition(".")[2])
            for name, parts in file.constants:
                self._constants[name].add(parts)
            if file.language == "cpp":
                self._includes[file.path] = file.includes
                self._named[file.path.rpartition("/")[2]].append(file.path)
            for builder in file.classes:
                self._classes[builder.name].append(builder)
            for builder in file.helpers:
                if file.language == "cpp":
                    self._macros[builder.name].setdefault(file.path, []).append(builder)
                else:
                    self._helpers[builder.name].append(builder)

    def sites(self, file: Scanned) -> Iterator[tuple[Found, Snippet]]:
        """The file's sites with their messages complete, and those of helpers it calls."""
        snippets = iter(file.snippets)
        own = {builder.name: builder for builder in file.classes}
        for site in file.sites:
            yield self._worded(site, own), next(snippets)
        if file.language == "cpp":
            for call in file.calls:
                kept = next(snippets)
                yield from ((site, kept) for site in self._expanded(file.path, call))
            return
        helpers = defaultdict(list)
        for builder in file.helpers:
            helpers[builder.name].append(builder)
        for call in file.calls:
            kept = next(snippets)
            for builder in helpers.get(call.exception) or self._only(self._helpers, call.exception):
                parts = filled(builder, call.arguments)
                if literal_length(parts) >= 8 and builder.exception is not None:
                    kind: Kind = "log" if builder.exception == "logging" else "raise"
                    yield (
                        replace(
                            call,
                            kind=kind,
                            exception=builder.exception,
                            level=builder.level,
                            parts=parts,
                            arguments=(),
                        ),
                        kept,
                    )
                    break

    def _expanded(self, path: str, call: Found) -> Iterator[Found]:
        """The checks that the package's own macro makes of a call, as the file or one it includes has it."""
        defined = self._macros.get(call.exception)
        if defined is None:
            return
        place = next((file for file in self._included(path) if file in defined), None)
        for builder in defined[place] if place is not None else ():
            parts, condition = expanded(builder, call.arguments)
            if literal_length(parts) >= 8 and builder.exception is not None:
                yield replace(
                    call,
                    kind=builder.kind,
                    exception=builder.exception,
                    level=builder.level,
                    parts=parts,
                    conditions=(*call.conditions, condition) if condition else call.conditions,
                    arguments=(),
                )

    def _included(self, path: str) -> Iterator[str]:
        """The file itself, then those that it includes, the nearest first."""
        seen = {path: None}
        waiting = [path]
        for _ in range(MOST_DEEP):
            yield from waiting
            found: dict[str, None] = {}
            for file in waiting:
                for name in self._includes.get(file, ()):
                    there = [
                        item for item in self._named.get(name.rpartition("/")[2], ()) if item not in seen
                    ]
                    fitting = [item for item in there if item.endswith(name.lstrip("./"))] or there
                    if fitting:
                        found[max(fitting, key=lambda item: _shared(file, item))] = None
            seen |= found
            waiting = list(found)

    def _worded(self, site: Found, own: Mapping[str, Builder]) -> Found:
        """A site with what an exception class, a function that makes one or a constant says of it."""
        site = self._spelled(site)
        if site.kind != "raise":
            return replace(site, arguments=())
        name = site.exception.rpartition(".")[2]
        builder = next((found for found in map(partial(self._class, own), self._line(name)) if found), None)
        if builder is None and (makers := self._only(self._makers, name)):
            [builder, *_] = makers
            site = replace(site, exception=builder.exception or site.exception)
        parts = filled(builder, site.arguments) if builder is not None else ()
        # Where nothing the class was given is a text, the arguments as they are say as much.
        if literal_length(parts):
            return replace(site, parts=parts, arguments=())
        return replace(site, arguments=())

    def _class(self, own: Mapping[str, Builder], name: str) -> Builder | None:
        return own.get(name) or next(iter(self._only(self._classes, name)), None)

    def _line(self, name: str) -> Iterator[str]:
        """A class and those that it is made of, where everybody means the same by their names."""
        for _ in range(MOST_DEEP):
            yield name
            bases = set(self._bases.get(name, ()))
            if len(bases) != 1:
                return
            [name] = bases

    def _spelled(self, site: Found) -> Found:
        """A site whose whole text is a constant of another module; a hole of a longer one stays as it is."""
        part = site.parts[0] if site.parts is not None and len(site.parts) == 1 else ""
        if isinstance(part, str) or part.conversion or part.format_spec or not part.expr.isupper():
            return site
        found = self._constants.get(part.expr, set())
        return replace(site, parts=next(iter(found))) if len(found) == 1 else site

    @staticmethod
    def _only(known: Mapping[str, list[Builder]], name: str) -> list[Builder]:
        """What a name means when everybody means the same by it."""
        found = known.get(name, [])
        return found if len({(builder.parts, builder.parameters) for builder in found}) == 1 else []


def _shared(path: str, other: str) -> int:
    """How many folders two files have in common."""
    return sum(
        1
        for _ in takewhile(
            lambda pair: pair[0] == pair[1], zip(path.split("/"), other.split("/"), strict=False)
        )
    )


def _starred(argument: Argument) -> bool:
    first = argument.parts[0] if argument.parts else ""
    return argument.keyword is None and isinstance(first, Hole) and first.expr.startswith("*")


def filled(builder: Builder, arguments: Sequence[Argument]) -> Parts:
    """The builder's text with the arguments in the place of its parameters."""
    given: dict[str, Parts] = {}
    if not any(argument.keyword == ANY or _starred(argument) for argument in arguments):
        given |= builder.defaults
    positional = iter(builder.parameters)
    for argument in arguments:
        name = next(positional, None) if argument.keyword is None else argument.keyword
        if name is not None:
            given[name] = argument.parts
    parts: list[str | Hole] = []
    for part in builder.parts:
        name = part.expr.removeprefix("self.") if isinstance(part, Hole) else ""
        if name in given and not (isinstance(part, Hole) and part.format_spec):
            parts += given[name]
        else:
            parts.append(part)
    return tuple(parts)
