"""Records as the API answers them, written once each."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

from app.http.caching import JSON, Representation
from app.http.text import json_bytes
from catalog import current
from catalog.library import Known, Library
from catalog.markdown import markdown
from catalog.scan.packages import normal
from catalog.snapshots.diff import Change, compare
from catalog.snapshots.snapshot import Snapshot

MARKDOWN = "text/markdown; charset=utf-8"

Form = Literal["record", "full", "markdown"]


def document(library: Library, found: Known, *, full: bool = False) -> dict[str, Any]:
    """The body of GET /api/errors/{id}; `full` adds what is beyond the schema."""
    record = found.record.to_json()
    if full:
        notes = [note.document() for note in library.notes(found)]
        record["x"] = {**found.x, "notes": notes} if notes else found.x
    return {"record": record, "datasetVersion": library.dataset_version}


@lru_cache(maxsize=4096)
def representation(library: Library, identifier: str, form: Form) -> Representation | None:
    """The bytes of one form of a record, kept with their digest; None where no record has the id."""
    found = library.get(identifier)
    if found is None:
        return None
    if form == "markdown":
        return Representation(markdown(found).encode(), MARKDOWN)
    return Representation(json_bytes(document(library, found, full=form == "full")), JSON)


# A representation is a library's: the old one's are not kept alive.
current.listen(representation.cache_clear)


def operations_of(found: Known) -> list[str]:
    """The operations that make a check of the record."""
    return list(dict.fromkeys(case.operation.name for case in found.fault.cases)) if found.fault else []


def difference(library: Library, package: str, before: str, after: str) -> dict[str, Any]:
    """The body of GET /api/diff; NotIndexed where a version is not among the snapshots."""
    old, new = _version(library, package, before), _version(library, package, after)
    found = compare(old, new)
    return {
        "package": old.package,
        "repo": new.repo,
        "from": old.version,
        "to": new.version,
        "equal": found.equal,
        **{
            name: [_change(change) for change in changes]
            for name, changes in (
                ("appeared", found.appeared),
                ("changed", found.changed),
                ("moved", found.moved),
                ("vanished", found.vanished),
            )
        },
    }


class NotIndexed(Exception):
    """No snapshot of a version; the message says which there are."""


def _version(library: Library, package: str, version: str) -> Snapshot:
    known = [item for item in library.snapshots if item.package == normal(package)]
    for snapshot in known:
        if snapshot.version == version:
            return snapshot
    there = ", ".join(item.version for item in known) or "none"
    raise NotIndexed(
        f"{package} {version} is not indexed (indexed: {there}); faultbook index {package}=={version}"
    )


def _change(change: Change) -> dict[str, Any]:
    """One record of a difference: the new one's identity, else the old one's, and what it was before."""
    shown = change.after or change.before
    assert shown is not None
    return {
        "id": shown.id,
        "errorMessage": shown.message,
        "errorClass": shown.error_class,
        "filePath": shown.path,
        "lineNumber": shown.line,
        "function": shown.places[0].function,
        "before": None
        if change.before is None or change.after is None
        else {
            "id": change.before.id,
            "errorMessage": change.before.message,
            "filePath": change.before.path,
            "lineNumber": change.before.line,
        },
    }


def summary(found: Known) -> dict[str, Any]:
    """A record in a list."""
    record = found.record
    return {
        "id": record.id,
        "repo": record.repo,
        "slug": record.slug,
        "errorCode": record.error_code,
        "errorMessage": record.error_message,
        "errorType": record.error_type,
        "errorClass": record.error_class,
        "severity": record.severity,
        "filePath": record.file_path,
        "lineNumber": record.line_number,
        "tags": list(record.tags),
        "backgroundTag": record.background_tag,
        "operations": operations_of(found),
    }
