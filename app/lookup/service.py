"""Texts to records, as the API and the command line answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from app.lookup.prefill import Budget, prefilled
from catalog.additions import versions
from catalog.faults import Fault
from catalog.match import POSSIBLE, Candidate, Capture, Match, Site
from catalog.store import Catalog, load_catalog

SEARCH_LIMIT: Final = 5
MATCH_LIMIT: Final = 25

Link = Callable[[str], str]


def page_of(catalog: Catalog, identifier: str) -> str:
    """The path of a record's page."""
    found = catalog.get(identifier)
    assert found is not None, "matches are of the catalog's own records"
    return f"/errors/{identifier}/{found.record.slug}"


def search(
    query: str, *, repo: str | None = None, limit: int = SEARCH_LIMIT, link: Link = str
) -> dict[str, Any]:
    """The body of GET /api/search; `link` makes an address of a path."""
    catalog = load_catalog()
    found = catalog.matcher.search(query, repo=repo, limit=limit)
    return {
        "matches": [_candidate(catalog, item, link) for item in found],
        "datasetVersion": catalog.dataset_version,
    }


def match_text(
    text: str | bytes,
    *,
    repo: str | None = None,
    packages: Mapping[str, str] | None = None,
    limit: int = MATCH_LIMIT,
    link: Link = str,
) -> dict[str, Any]:
    """The body of POST /api/match. `packages` (name → installed version) narrows each match's `versions`.

    Takes tenths of a second a megabyte in a flood of errors; nothing of the text is kept.
    """
    catalog = load_catalog()
    report = catalog.matcher.match(text, repo=repo, limit=limit)
    budget = Budget()
    return {
        "hasMatch": report.has_match,
        "rootCause": report.root_cause,
        "matches": [_match(catalog, found, packages or {}, link, budget) for found in report.matches],
        "unmatched": [
            {"line": missed.line, "exception": missed.exception, "message": missed.message}
            for missed in report.unmatched
        ],
        "truncated": report.truncated,
        "datasetVersion": catalog.dataset_version,
    }


def repositories() -> dict[str, Any]:
    """The body of GET /api/repos."""
    catalog = load_catalog()
    return {
        "repos": [
            {
                "repo": found.repo,
                "description": found.description,
                "errorCount": found.error_count,
                "package": found.package,
                "packageVersion": found.package_version,
            }
            for found in catalog.repositories()
        ],
        "datasetVersion": catalog.dataset_version,
    }


def _candidate(catalog: Catalog, found: Candidate, link: Link) -> dict[str, Any]:
    curated = catalog.get(found.record_id)
    assert curated is not None
    record = curated.record
    return {
        "id": record.id,
        "repo": record.repo,
        "slug": record.slug,
        "code": record.error_code,
        "message": record.error_message,
        "errorClass": record.error_class,
        "score": round(found.score, 4),
        # A record found by its site alone is one whose statement was searched for.
        "matchType": "pattern" if found.match_type == "site" else found.match_type,
        "url": link(page_of(catalog, record.id)),
        "captures": [_capture(item) for item in found.captures],
        "site": _site(found.site),
        "siblings": list(found.siblings),
    }


def _match(
    catalog: Catalog, found: Match, packages: Mapping[str, str], link: Link, budget: Budget
) -> dict[str, Any]:
    curated = catalog.get(found.record_id)
    assert curated is not None
    record, fault = curated.record, curated.fault
    likely = found.score >= POSSIBLE
    operation, spec = (prefilled(fault, found, budget) if likely else None) or (None, None)
    return {
        "id": record.id,
        "repo": record.repo,
        "slug": record.slug,
        "errorMessage": record.error_message,
        "errorClass": record.error_class,
        "severity": record.severity,
        "url": link(page_of(catalog, record.id)),
        "matchType": found.match_type,
        "score": round(found.score, 4),
        "line": found.line,
        "span": {"start": found.span[0], "end": found.span[1]},
        "rendered": found.rendered,
        "captures": [_capture(item) for item in found.captures],
        "site": _site(found.site),
        "siblings": list(found.siblings),
        "versions": _versions(fault, packages),
        "role": found.role,
        "count": found.count,
        "ranks": list(found.ranks),
        "firstSeen": found.first_seen,
        "evidence": list(found.evidence),
        "operation": operation,
        "spec": spec,
    }


def _versions(fault: Fault, packages: Mapping[str, str]) -> list[str]:
    """Versions known to raise it; only the one installed, where that is said and known."""
    known = versions(fault)
    installed = packages.get(fault.package.name) if fault.package else None
    if installed is None or fault.package is None:
        return known
    if installed in (fault.package.version, fault.package.commit):
        return [version for version in known if version == installed]
    return known


def _capture(found: Capture) -> dict[str, str]:
    return {"name": found.name, "value": found.value, "kind": found.kind}


def _site(site: Site | None) -> dict[str, Any] | None:
    if site is None:
        return None
    return {
        "path": site.path,
        "function": site.function,
        "lines": list(site.lines),
        "exception": site.exception,
    }
