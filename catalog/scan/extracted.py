"""Scanned files → extracted records: sites that share repository, message and path are one record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from catalog.identity import distinct, record_id, slug
from catalog.scan.conditions import joined
from catalog.scan.model import Found, Level, Scanned, template_of
from catalog.scan.resolve import Definitions
from catalog.template import Template

LONGEST: Final = 4000
"""Characters of a message; a longer one is a help page, and is found by its beginning."""

ErrorType = Literal["exception", "console", "http", "panic"]


@dataclass(frozen=True, slots=True)
class RaiseSite:
    """One place of a record; `condition` is what must hold to reach it, "" when nothing must."""

    line: int
    end_line: int
    function: str | None
    owner: str | None
    exception: str
    condition: str


@dataclass(frozen=True, slots=True)
class Extracted:
    """One record. `template` is None for a statement without a text; `message` is then its source.

    `snippet` is the first and the last line to show around the first site.
    """

    id: str
    slug: str
    path: str
    message: str
    template: Template | None
    error_class: str
    error_type: ErrorType
    level: Level
    http_status: int | None
    sites: tuple[RaiseSite, ...]
    snippet: tuple[int, int]


def records(repo: str, scanned: Iterable[Scanned]) -> Iterator[Extracted]:
    """The records of a package's files, in path and line order, slugs numbered in that order."""
    files = sorted(scanned, key=lambda file: file.path)
    definitions = Definitions(files)
    drafts = [draft for file in files for draft in _of_file(repo, file, definitions)]
    slugs = distinct(slug(draft.message, draft.error_class) for draft in drafts)
    for draft, name in zip(drafts, slugs, strict=True):
        yield Extracted(
            draft.id,
            name,
            draft.path,
            draft.message,
            draft.template,
            draft.error_class,
            _TYPES.get(draft.first.kind, "exception") if draft.first.exception != "Panic" else "panic",
            draft.first.level,
            draft.first.http_status,
            tuple(draft.sites),
            draft.snippet,
        )


_TYPES: Final[dict[str, ErrorType]] = {"log": "console", "warning": "console", "http": "http"}


@dataclass(slots=True)
class _Draft:
    id: str
    path: str
    message: str
    template: Template | None
    error_class: str
    first: Found
    sites: list[RaiseSite]
    snippet: tuple[int, int]


def _of_file(repo: str, file: Scanned, definitions: Definitions) -> list[_Draft]:
    drafts: dict[str, _Draft] = {}
    found = sorted(definitions.sites(file), key=lambda pair: (pair[0].line, pair[0].end_line))
    for site, kept in found:
        template = template_of(site.parts) if site.parts is not None else None
        if template is not None and not template.message.strip():
            template = None
        message = template.message if template is not None else site.expression
        message = message[:LONGEST]
        identifier = record_id(repo, None, message, file.path)
        place = RaiseSite(
            site.line, site.end_line, site.function, site.owner, site.exception, joined(site.conditions)
        )
        if identifier in drafts:
            drafts[identifier].sites.append(place)
        else:
            drafts[identifier] = _Draft(
                identifier, file.path, message, template, site.exception, site, [place], kept
            )
    return list(drafts.values())
