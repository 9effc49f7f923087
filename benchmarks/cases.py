"""Real pastes, read from a file: which of them lead to the right place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.known import Known
from catalog.match import Report


@dataclass(frozen=True)
class Place:
    """A file and a function in it; no function where only the file is known."""

    file: str
    function: str | None

    @classmethod
    def of(cls, path: str, function: str | None) -> Place:
        """By the file's name and the function's own: folders and classes change most."""
        name = (function or "").partition(" (")[0].replace("::", ".").rpartition(".")[2]
        return cls(path.rpartition("/")[2], name if name.isidentifier() else None)

    def is_among(self, places: Sequence[Place]) -> bool:
        """Whether one of the places is this."""
        return any(place == self or (place.file == self.file and self.function is None) for place in places)


@dataclass(frozen=True)
class Case:
    """A paste and the places that are right answers; none where nothing may match."""

    name: str
    text: str
    package: str | None
    places: tuple[Place, ...]


def read(file: Path) -> Iterator[Case]:
    """The cases of a file, an object a line."""
    for line in file.read_text("utf-8").splitlines():
        if line.strip():
            case = json.loads(line)
            wanted = case["expect"]
            places = () if wanted is None else tuple(_places(wanted, case.get("alts", ())))
            yield Case(case["id"], case["text"], wanted and wanted["package"], places)


def _places(wanted: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Iterator[Place]:
    for place in (wanted, *wanted.get("alts", ()), *others):
        yield Place.of(place["path"], place.get("function"))


class Judge:
    """Compares answers with what is right."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._curated = {entry.record_id: entry for entry in known.curated}

    def counts(self, case: Case) -> bool:
        """Whether the right place is in what is indexed, in the version that is."""
        return any(place.is_among(self._in_file(place.file)) for place in case.places)

    def rank(self, case: Case, report: Report) -> int | None:
        """The place of the right answer, the root cause first, a copy behind the match that stands for it;
        None where it is not there.
        """
        found = list(report.matches)
        if report.root_cause is not None:
            found.insert(0, found.pop(report.root_cause))
        for at, match in enumerate(found):
            if self._right(case, match.record_id):
                return at
            if any(self._right(case, identifier) for identifier in match.siblings):
                return at + 1
        return None

    def _right(self, case: Case, identifier: str) -> bool:
        places = self._places(identifier)
        return any(place.is_among(places) for place in case.places)

    def _places(self, identifier: str) -> list[Place]:
        places = []
        if identifier in self._curated:
            places += [Place.of(site.path, site.function) for site in self._curated[identifier].sites]
        for snapshot in self._known.snapshots:
            if (row := snapshot.get(identifier)) is not None:
                places += [Place.of(row.path, site.function) for site in row.places]
        return places

    def _in_file(self, name: str) -> list[Place]:
        return [
            Place.of(row.path, site.function)
            for snapshot in self._known.snapshots
            for row in snapshot.numbered_all(snapshot.numbers("file = ?", (name,)))
            for site in row.places
        ]
