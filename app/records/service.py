"""Records as the API answers them, written once each."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

from app.http.caching import JSON, Representation
from app.http.text import json_bytes
from catalog.load import Curated
from catalog.markdown import markdown as written
from catalog.store import Catalog

MARKDOWN = "text/markdown; charset=utf-8"

Form = Literal["record", "full", "markdown"]


def document(catalog: Catalog, found: Curated, *, full: bool = False) -> dict[str, Any]:
    """The body of GET /api/errors/{id}; `full` adds what is beyond the schema."""
    record = found.record.to_json()
    if full:
        record["x"] = found.x
    return {"record": record, "datasetVersion": catalog.dataset_version}


def markdown(catalog: Catalog, found: Curated) -> str:
    """The body of GET /api/errors/{id}.md."""
    return written(found)


@lru_cache(maxsize=4096)
def representation(catalog: Catalog, identifier: str, form: Form) -> Representation | None:
    """The bytes of one form of a record, kept with their digest; None where no record has the id."""
    found = catalog.get(identifier)
    if found is None:
        return None
    if form == "markdown":
        return Representation(markdown(catalog, found).encode(), MARKDOWN)
    return Representation(json_bytes(document(catalog, found, full=form == "full")), JSON)


def summary(found: Curated) -> dict[str, Any]:
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
        "operations": list(dict.fromkeys(case.operation.name for case in found.fault.cases)),
    }
