"""A snapshot's row as a record of schema version 2, with its additions `x`; nothing is written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from packaging.version import InvalidVersion, Version

from catalog.load import Link
from catalog.record import SCHEMA_VERSION, Record
from catalog.scan.extracted import RaiseSite
from catalog.snapshots.diff import prior_wording
from catalog.snapshots.row import Row
from catalog.snapshots.snapshot import Snapshot
from catalog.template import Template
from kernels.upstream import UNKNOWN

MOST_BEFORE: Final = 20
"""Checks of the same function before a site that are told, the nearest."""

_EXTRACTED: Final = (
    "repo",
    "errorMessage",
    "errorClass",
    "errorType",
    "severity",
    "httpStatus",
    "filePath",
    "lineNumber",
    "sourceCode",
    "sourceCodeStart",
    "sourceCodeEnd",
)
_DERIVED: Final = (
    "id",
    "slug",
    "messagePattern",
    "githubUrl",
    "documentation",
    "triggerScenarios",
    "schemaVersion",
    "analyzedAt",
)


@dataclass(frozen=True)
class FromSource:
    """A record read off a package's source: in the newest version that has it, and in `older` ones.

    It has what a curated record has, except for checks that could be run.
    """

    snapshot: Snapshot
    row: Row
    older: tuple[tuple[Snapshot, Row], ...] = ()
    others: tuple[Snapshot, ...] = ()
    """Versions of the package that do not have it, newest first."""
    related: tuple[Link, ...] = ()
    fault: None = None

    @property
    def versions(self) -> tuple[str, ...]:
        """Versions known to raise it, oldest first."""
        return tuple(snapshot.version for snapshot, _ in (*self.older, (self.snapshot, self.row)))

    @cached_property
    def record(self) -> Record:
        """The record."""
        row = self.row
        code = self.snapshot.snippet(row.number)
        first, last = (code[0], code[1]) if code else (max(1, row.line - 18), row.line + 18)
        return Record(
            id=row.id,
            repo=self.snapshot.repo,
            slug=row.slug,
            error_code=None,
            error_message=row.message,
            message_pattern=pattern(row),
            error_type=row.error_type,  # type: ignore[arg-type]
            error_class=row.error_class,
            http_status=row.http_status,
            severity=row.severity,  # type: ignore[arg-type]
            file_path=row.path,
            line_number=row.line,
            source_code=code[2] if code else None,
            source_code_start=first if code else None,
            source_code_end=last if code else None,
            github_url=self.snapshot.upstream.link(self.snapshot.version, row.path, first, last),
            documentation=f"{self.snapshot.package} {self.snapshot.version} {_reports(row)}.",
            trigger_scenarios="\n\n".join(dict.fromkeys(map(_when, row.places))),
            common_situations="",
            solutions=(),
            example_fix=None,
            handling_strategy=None,
            validation_code=None,
            type_guard=None,
            try_catch_pattern=None,
            prevention_tips=(),
            tags=(),
            background_tag=None,
            analyzed_sha=UNKNOWN,
            analyzed_at=self.snapshot.meta["made"],
            schema_version=SCHEMA_VERSION,
        )

    @cached_property
    def x(self) -> dict[str, Any]:
        """The additions of `view=full`."""
        row = self.row
        template = row.template
        end = "" if template is None or template.segments[-1] else "$"
        return {
            "match": {
                "regex": pattern(row) + end if template is not None else None,
                "literals": list(template.literals) if template is not None else [],
                "captures": [
                    {"name": hole.expr or str(number), "expr": hole.text, "kind": kind}
                    for number, (hole, kind) in enumerate(
                        zip(template.holes if template else (), row.kinds, strict=True)
                    )
                ],
                "literalWeight": template.literal_weight if template is not None else 0,
            },
            "sites": [
                site
                for snapshot, known in ((self.snapshot, self.row), *reversed(self.older))
                for site in sites(snapshot, known)
            ],
            "checks": [],
            "fix": None,
            "repro": None,
            "condition": "; or ".join(
                dict.fromkeys(place.condition for place in row.places if place.condition)
            ),
            "before": list(before(self.snapshot, row)),
            "related": [],
            "provenance": dict(
                sorted((dict.fromkeys(_EXTRACTED, "extracted") | dict.fromkeys(_DERIVED, "derived")).items())
            ),
            "lifecycle": {
                "status": "removed" if any(map(self._is_newer, self.others)) else "active",
                "firstSeen": self.versions[0],
                "lastSeen": self.versions[-1],
                "priorWordings": list(self._prior_wordings()),
            },
        }

    def _is_newer(self, other: Snapshot) -> bool:
        return version_order(other.version) > version_order(self.snapshot.version)

    def _prior_wordings(self) -> Iterator[str]:
        """What the version just before the first that has it said in its place, where that is indexed."""
        first, row = (*self.older, (self.snapshot, self.row))[0]
        before = next(
            (other for other in self.others if version_order(other.version) < version_order(first.version)),
            None,
        )
        if before is not None and (said := prior_wording(before, first, row)) is not None:
            yield said


def pattern(row: Row) -> str:
    """The record's `messagePattern`."""
    template = row.template or Template(row.message, (row.message,), ())
    return template.pattern


def sites(snapshot: Snapshot, row: Row) -> Iterator[dict[str, Any]]:
    """The places of a record in one version."""
    for order, place in enumerate(row.places, 1):
        yield {
            "path": row.path,
            "line": place.line,
            "function": place.function,
            "class": place.owner,
            "exception": place.exception,
            "order": order,
            "url": snapshot.upstream.link(snapshot.version, row.path, place.line, place.end_line),
            "version": snapshot.version,
            "condition": place.condition,
        }


def before(snapshot: Snapshot, row: Row) -> Iterator[dict[str, Any]]:
    """The checks before the record's first site in its function, in order: all of them have passed."""
    first = row.places[0]
    found = [
        (place.line, other)
        for other in snapshot.in_file(row.path)
        for place in other.places
        if place.function == first.function and place.line < first.line and other.id != row.id
    ]
    for line, other in sorted(found, key=lambda pair: pair[0])[-MOST_BEFORE:]:
        yield {"id": other.id, "line": line, "exception": other.error_class, "message": other.message}


def version_order(version: str) -> tuple[int, Version, str]:
    """Sorts versions as indexes do, those that are none before all others."""
    try:
        return 1, Version(version), version
    except InvalidVersion:
        return 0, Version("0"), version


def _reports(row: Row) -> str:
    if row.error_type == "console":
        return f"logs this at level {row.severity}" if row.error_class == "logging" else "warns of this"
    return f"raises this as {row.error_class}"


def _when(place: RaiseSite) -> str:
    where = f"In `{place.function}`" if place.function else "When the module is read"
    return f"{where}, when `{place.condition}`." if place.condition else f"{where}."
