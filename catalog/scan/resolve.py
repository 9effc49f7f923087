"""Messages that another definition completes: exception classes that word them, functions that raise them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from catalog.scan.model import Argument, Builder, Found, Kind, Parts, Scanned, literal_length
from kernels.message import Hole

Snippet = tuple[int, int]


class Definitions:
    """Exception classes and helpers of all files, by name; a file's own win over others'."""

    def __init__(self, scanned: Iterable[Scanned]) -> None:
        self._classes: dict[str, list[Builder]] = defaultdict(list)
        self._helpers: dict[str, list[Builder]] = defaultdict(list)
        for file in scanned:
            for builder in file.classes:
                self._classes[builder.name].append(builder)
            for builder in file.helpers:
                self._helpers[builder.name].append(builder)

    def sites(self, file: Scanned) -> Iterator[tuple[Found, Snippet]]:
        """The file's sites with their messages complete, and those of helpers it calls."""
        snippets = iter(file.snippets)
        own = {builder.name: builder for builder in file.classes}
        for site in file.sites:
            yield self._worded(site, own), next(snippets)
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

    def _worded(self, site: Found, own: Mapping[str, Builder]) -> Found:
        name = site.exception.rpartition(".")[2]
        builder = own.get(name) or next(iter(self._only(self._classes, name)), None)
        if builder is None or site.kind != "raise":
            return replace(site, arguments=())
        parts = filled(builder, site.arguments)
        # Where nothing the class was given is a text, the arguments as they are say as much.
        if literal_length(parts):
            return replace(site, parts=parts, arguments=())
        return replace(site, arguments=())

    @staticmethod
    def _only(known: Mapping[str, list[Builder]], name: str) -> list[Builder]:
        """What a name means when everybody means the same by it."""
        found = known.get(name, [])
        return found if len({(builder.parts, builder.parameters) for builder in found}) == 1 else []


def filled(builder: Builder, arguments: Iterable[Argument]) -> Parts:
    """The builder's text with the arguments in the place of its parameters."""
    given: dict[str, Parts] = {}
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
