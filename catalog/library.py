"""Everything that is known: the curated records and the snapshots on the shelf.

A curated record wins over a scanned one of the same id and gains the lines of code around its place; of one
package's versions the newest that has a record shows it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from catalog.additions import sites as raise_sites
from catalog.load import Curated
from catalog.match import Matcher
from catalog.match.model import Entry
from catalog.match.parts import InMemory
from catalog.match.user_regex import search_messages
from catalog.overlay import Note, Overlay
from catalog.snapshots.manifest import Held
from catalog.snapshots.record import FromSource, sites, version_order
from catalog.snapshots.row import Row
from catalog.snapshots.snapshot import Snapshot
from catalog.store import Catalog, Filters, Repository, entries
from catalog.template import Template, infer_kind

Known = Curated | FromSource


@dataclass(frozen=True)
class Enriched(Curated):
    """A curated record with what the user's own index has of its places."""

    places: tuple[dict[str, Any], ...] = ()
    seen_in: tuple[str, ...] = ()

    @cached_property
    def x(self) -> dict[str, Any]:
        """The additions, with the places of the indexed versions."""
        curated = Curated(self.record, self.fault, self.prose, self.related).x
        return {**curated, "sites": [*curated["sites"], *self.places]}


@dataclass(frozen=True, slots=True)
class Selection:
    """Records that fulfil criteria: curated ones, then numbers of each snapshot's."""

    curated: list[Curated]
    numbers: list[tuple[Snapshot, list[int]]]

    @property
    def total(self) -> int:
        return len(self.curated) + sum(len(numbers) for _, numbers in self.numbers)


class Library:
    """One state of what is known; it never changes. Building the matcher is the slow part."""

    def __init__(
        self,
        catalog: Catalog,
        held: Sequence[tuple[Held, Snapshot]] = (),
        overlay: Overlay | None = None,
    ) -> None:
        self.catalog = catalog
        self.overlay = overlay or Overlay()
        self.held = tuple(item for item, _ in held)
        opened = [snapshot for _, snapshot in held]
        self.snapshots = tuple(
            sorted(opened, key=lambda item: (item.package, version_order(item.version)), reverse=True)
        )
        self._donors: dict[str, list[tuple[Snapshot, Row]]] = {}
        """Curated record → scanned ones of another id at its very places, which it stands for."""
        for snapshot in self.snapshots:
            snapshot.hidden = self._covered(snapshot)

    def _covered(self, snapshot: Snapshot) -> frozenset[int]:
        """The records of a snapshot whose places, in that version, are a curated record's.

        Their texts may differ: a curated one knows what a macro prints around the words of a check.
        """
        places: dict[tuple[str, int], list[str]] = {}
        for curated in self.catalog.records:
            if curated.record.repo == snapshot.repo:
                for site in raise_sites(curated.fault):
                    if site["version"] == snapshot.version:
                        places.setdefault((site["path"], site["line"]), []).append(curated.record.id)
        covered = set()
        for path in dict.fromkeys(path for path, _ in places):
            for row in snapshot.in_file(path):
                stand_for = [name for place in row.places for name in places.get((path, place.line), ())]
                if stand_for and self.catalog.get(row.id) is None:
                    covered.add(row.number)
                    for identifier in dict.fromkeys(stand_for):
                        self._donors.setdefault(identifier, []).append((snapshot, row))
        return frozenset(covered)

    def close(self) -> None:
        """Let go of the snapshots."""
        for snapshot in self.snapshots:
            snapshot.close()

    @cached_property
    def dataset_version(self) -> str:
        """The curated records' version; with snapshots a digest over all."""
        return dataset_version(self.catalog, self.held)

    @cached_property
    def matcher(self) -> Matcher:
        """Finds records in texts; threads may share it."""
        reworded = list(self._reworded())
        if not self.snapshots and not reworded:
            return self.catalog.matcher
        curated = [found for record in self.catalog.records for found in entries(record.fault)]
        return Matcher.of([InMemory([*curated, *reworded]), *self.snapshots])

    def _reworded(self) -> Iterator[Entry]:
        """Entries in a fork's words, of the records that they stand for."""
        for identifier, wording in self.overlay.wordings():
            found = self.get(identifier)
            if found is None:
                continue
            if isinstance(found, FromSource):
                known = next(iter(found.snapshot.entries([found.row.number])), None)
            else:
                known = next(iter(entries(found.fault)), None)
            template = Template.parse(wording)
            kinds = tuple(infer_kind(hole.expr, hole.format_spec) for hole in template.holes)
            if known is not None:
                yield replace(known, message=wording, cut=template, hole_kinds=kinds, textless=False)

    def notes(self, found: Known) -> list[Note]:
        """What the team says about a record."""
        return self.overlay.about(found.record.id, found.record.error_message)

    # --- one record

    def get(self, identifier: str) -> Known | None:
        """The record of an id."""
        rows = [
            (snapshot, row)
            for snapshot in reversed(self.snapshots)
            if (row := snapshot.get(identifier)) is not None
        ]
        curated = self.catalog.get(identifier)
        if curated is not None:
            rows = rows or self._donors.get(identifier, [])[:1]
            return _enriched(curated, rows) if rows else curated
        if not rows:
            return None
        newest, row = rows[-1]
        known = {snapshot.version for snapshot, _ in rows}
        others = (item for item in self.snapshots if item.package == newest.package)
        return FromSource(
            newest, row, tuple(rows[:-1]), tuple(item for item in others if item.version not in known)
        )

    def by_slug(self, slug: str) -> Known | None:
        """The record of a slug, curated ones first."""
        curated = self.catalog.by_slug(slug)
        found = curated.record.id if curated is not None else None
        for snapshot in self.snapshots if found is None else ():
            if (row := snapshot.by_slug(slug)) is not None:
                found = row.id
                break
        return self.get(found) if found is not None else None

    # --- lists

    def select(self, filters: Filters) -> Selection:
        """The records that fulfil every criterion; BadPattern or TooCostly for a regex not searched with."""
        curated = self.catalog.select(filters)
        if filters.operation is not None or filters.tag is not None or filters.family is not None:
            return Selection(curated, [])
        selected = []
        for snapshot in self.snapshots:
            if filters.repo not in (None, snapshot.repo) or filters.package not in (None, snapshot.package):
                continue
            hidden = self._hidden[snapshot.path.name]
            numbers = [number for number in snapshot.numbers(*_where(filters)) if number not in hidden]
            if filters.regex is not None:
                found = search_messages(filters.regex, snapshot.messages(numbers))
                numbers = [numbers[index] for index in found]
            selected.append((snapshot, numbers))
        return Selection(curated, selected)

    def page(self, found: Selection, after: str | None, limit: int) -> tuple[list[Known], str | None]:
        """`limit` records behind the record `after`, and the id to go on after; KeyError for no such id."""
        start = None if after is None else self._position(after)
        shown = list(self._behind(found, start, limit + 1))
        more = len(shown) > limit
        shown = shown[:limit]
        return shown, shown[-1].record.id if more else None

    def _position(self, identifier: str) -> tuple[int, int]:
        """Where a record stands: -1 and its place among the curated, else its snapshot's place and number."""
        if self.catalog.get(identifier) is not None:
            return -1, self.catalog.order(identifier)
        for at, snapshot in enumerate(self.snapshots):
            number = snapshot.number_of(identifier)
            if number is not None and number not in self._hidden[snapshot.path.name]:
                return at, number
        raise KeyError(identifier)

    def _behind(self, found: Selection, start: tuple[int, int] | None, most: int) -> Iterator[Known]:
        if start is None or start[0] < 0:
            for curated in found.curated:
                if start is None or self.catalog.order(curated.record.id) > start[1]:
                    yield curated
                    most -= 1
                    if not most:
                        return
        places = {id(snapshot): at for at, snapshot in enumerate(self.snapshots)}
        for snapshot, numbers in found.numbers:
            at = places[id(snapshot)]
            if start is not None and at < start[0]:
                continue
            after = start[1] if start is not None and at == start[0] else -1
            wanted = [number for number in numbers if number > after][:most]
            for row in snapshot.numbered(wanted):
                yield FromSource(snapshot, row)
            most -= len(wanted)
            if not most:
                return

    @cached_property
    def _hidden(self) -> dict[str, set[int]]:
        """Per snapshot the numbers of records that a curated one or a newer version's stands for."""
        hidden: dict[str, set[int]] = {}
        known: dict[str, set[int]] = {}
        for found in self.catalog.records:
            known.setdefault(found.record.repo, set()).add(_as_number(found.record.id))
        for number, snapshot in enumerate(self.snapshots):
            # Ids have their repository in them: those of another one are others.
            there = known.setdefault(snapshot.repo, set())
            rows = [(_as_number(identifier), row) for identifier, row in snapshot.identifiers()]
            hidden[snapshot.path.name] = {row for identifier, row in rows if identifier in there}
            hidden[snapshot.path.name] |= snapshot.hidden
            if any(other.repo == snapshot.repo for other in self.snapshots[number + 1 :]):
                there.update(identifier for identifier, _ in rows)
        return hidden

    @cached_property
    def repositories(self) -> list[Repository]:
        """Every repository that has records: the curated ones first, each with all its records counted."""
        listed = {found.repo: found for found in self.catalog.repositories()}
        for snapshot in self.snapshots:
            shown = len(snapshot) - len(self._hidden[snapshot.path.name])
            known = listed.get(snapshot.repo)
            if known is not None:
                listed[snapshot.repo] = replace(known, error_count=known.error_count + shown)
            else:
                listed[snapshot.repo] = Repository(
                    snapshot.repo, snapshot.upstream.description, snapshot.package, snapshot.version, shown
                )
        return list(listed.values())

    @property
    def record_count(self) -> int:
        """All records, each once."""
        return sum(found.error_count for found in self.repositories)


def dataset_version(catalog: Catalog, held: Iterable[Held]) -> str:
    """The version of the curated records and these snapshots: the one that every answer carries."""
    digests = sorted(item.sha256 for item in held)
    curated = catalog.dataset_version
    if not digests:
        return curated
    date, _, _ = curated.rpartition("-")
    return f"{date}-{hashlib.sha256(''.join([curated, *digests]).encode()).hexdigest()[:12]}"


def _enriched(curated: Curated, rows: Sequence[tuple[Snapshot, Row]]) -> Enriched:
    snapshot, row = rows[-1]
    code = snapshot.snippet(row.number)
    record = curated.record
    if code is not None:
        record = replace(record, source_code=code[2], source_code_start=code[0], source_code_end=code[1])
    known = {site["version"] for site in curated.x["sites"]}
    places = tuple(
        site
        for snapshot, row in reversed(rows)
        if snapshot.version not in known
        for site in sites(snapshot, row)
    )
    return Enriched(
        record,
        curated.fault,
        curated.prose,
        curated.related,
        places,
        tuple(snapshot.version for snapshot, _ in rows),
    )


def _where(filters: Filters) -> tuple[str, list[str]]:
    """The criteria as an SQL condition and its values."""
    conditions, values = ["1"], []
    if filters.error_class is not None:
        conditions.append("(class = ? OR substr(class, -length(?) - 1) = '.' || ?)")
        values += [filters.error_class] * 3
    for column, value in (("type", filters.error_type), ("severity", filters.severity)):
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(value)
    words = re.findall(r"[^\W_](?:[\w.-]*[^\W_])?", filters.q or "")
    if words:
        conditions.append("number IN (SELECT rowid FROM words WHERE words MATCH ?)")
        values.append(" ".join(f'"{word}"*' for word in words))
    elif filters.q and filters.q.strip():
        conditions.append("0")
    return " AND ".join(conditions), values


def _as_number(identifier: str) -> int:
    """An id in a fraction of a text's memory; what is none, in an edited snapshot, is nobody's."""
    try:
        return int(identifier, 16)
    except ValueError:
        return -1
