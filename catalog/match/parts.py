"""Where the matcher's entries come from: the curated records in memory, snapshots on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from catalog.match.model import Entry, Site
from catalog.match.prepared import Prepared, prepare


class Part(Protocol):
    """Entries with their prepared templates; `package` is "" where they are of several.

    `codes` are entries by their error code, lower case.
    """

    @property
    def package(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def prepared(self) -> Prepared: ...

    @property
    def codes(self) -> Mapping[str, list[Entry]]: ...

    def entries(self, numbers: Sequence[int]) -> list[Entry]:
        """The entries of these numbers."""

    def in_files(self, numbers: Sequence[int], files: frozenset[str]) -> list[int]:
        """Those of some numbers whose entries have a site in a file of one of these names."""

    def wordless(self, file_name: str) -> list[Entry]:
        """The entries without a word of their own that have a site in a file of this name."""


class InMemory:
    """Entries that are all there."""

    package = ""
    version = ""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = list(entries)
        self._wordless: dict[str, list[Entry]] = {}
        self.codes: dict[str, list[Entry]] = {}
        for entry in self._entries:
            if entry.code:
                self.codes.setdefault(entry.code.casefold(), []).append(entry)
            if entry.textless or not entry.message:
                for name in {site.path.rpartition("/")[2] for site in entry.sites}:
                    self._wordless.setdefault(name, []).append(entry)
        self.prepared = prepare(
            (number, entry.template)
            for number, entry in enumerate(self._entries)
            if not entry.textless and entry.message
        )

    def entries(self, numbers: Sequence[int]) -> list[Entry]:
        """The entries of these numbers."""
        return [self._entries[number] for number in numbers]

    def in_files(self, numbers: Sequence[int], files: frozenset[str]) -> list[int]:
        """Those of some numbers whose entries have a site in a file of one of these names."""
        return [
            number
            for number in numbers
            if any(site.path.rpartition("/")[2] in files for site in self._entries[number].sites)
        ]

    def wordless(self, file_name: str) -> list[Entry]:
        """The entries without a word of their own that have a site in a file of this name."""
        return self._wordless.get(file_name, [])


def merged(entries: Iterable[Entry]) -> list[Entry]:
    """Entries of one record as one: a curated one's words, the sites and versions of all."""
    found: dict[str, Entry] = {}
    for entry in entries:
        known = found.get(entry.record_id)
        if known is None:
            found[entry.record_id] = entry
            continue
        first, second = (entry, known) if entry.curated and not known.curated else (known, entry)
        found[entry.record_id] = replace(
            first,
            sites=_sites((*first.sites, *second.sites)),
            versions=tuple(dict.fromkeys((*first.versions, *second.versions))),
        )
    return list(found.values())


def _sites(sites: Iterable[Site]) -> tuple[Site, ...]:
    """Places that differ in nothing but the line they have in a version are one."""
    known: dict[tuple[str, str, str], Site] = {}
    for site in sites:
        function = (site.function or "").replace("::", ".").rpartition(".")[2]
        identity = (site.path, function, site.exception)
        if identity in known:
            lines = dict.fromkeys((*known[identity].lines, *site.lines))
            known[identity] = replace(known[identity], lines=tuple(lines))
        else:
            known[identity] = site
    return tuple(known.values())
