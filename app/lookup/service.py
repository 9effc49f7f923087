"""Texts to records, as the API and the command line answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from app.lookup.folder import Log, Skipped
from app.lookup.prefill import Budget, prefilled
from catalog.additions import versions
from catalog.current import library
from catalog.library import Enriched, Known, Library
from catalog.match import MATCH, POSSIBLE, Candidate, Capture, Match, Report, Site, Unmatched, redact
from catalog.match.causes import notice
from catalog.match.gathering import Source, gathered
from catalog.match.versions import meaning
from catalog.scan.packages import distribution_of, normal
from catalog.snapshots.record import FromSource

SEARCH_LIMIT: Final = 5
MATCH_LIMIT: Final = 25
MOST_OF_LOG: Final = 100
"""Matches of one log of several."""

MOST_TO_INDEX: Final = 3
"""Packages that are named as not indexed."""

MOST_BEFORE: Final = 4096
"""Characters in front of a message that may tell of its call, such as the name of what did not compile."""

Link = Callable[[str], str]


def page_of(known: Library, identifier: str) -> str:
    """The path of a record's page."""
    return path_of(_found(known, identifier))


def path_of(found: Known) -> str:
    """The path of the page of a record that is at hand."""
    return f"/errors/{found.record.id}/{found.record.slug}"


def _found(known: Library, identifier: str) -> Known:
    found = known.get(identifier)
    assert found is not None, "matches are of the library's own records"
    return found


def search(
    query: str, *, repo: str | None = None, limit: int = SEARCH_LIMIT, link: Link = str
) -> dict[str, Any]:
    """The body of GET /api/search; `link` makes an address of a path."""
    known = library()
    found = known.matcher.search(query, repo=repo, limit=limit)
    return {
        "matches": [_candidate(known, item, link) for item in found],
        "datasetVersion": known.dataset_version,
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
    known = library()
    report = known.matcher.match(text, repo=repo, packages=packages, limit=limit)
    whole = text if isinstance(text, str) else text.decode("utf-8", "surrogateescape")
    return _answer(known, report, lambda found: _before(whole, found), packages or {}, link)


def match_logs(
    read: Iterable[Log | Skipped],
    *,
    repo: str | None = None,
    packages: Mapping[str, str] | None = None,
    limit: int = MATCH_LIMIT,
    link: Link = str,
) -> dict[str, Any]:
    """As `match_text`, of the logs of one failure: each match says in which files it is; `logs` is how many
    were read, `skipped` what was not, and why.
    """
    known = library()
    skipped: list[Skipped] = []
    before: dict[tuple[str, tuple[int, int]], str] = {}

    def reports() -> Iterator[tuple[Source, Report]]:
        for item in read:
            if isinstance(item, Skipped):
                skipped.append(item)
                continue
            text = item.content.decode("utf-8", "replace")
            report = known.matcher.match(text, repo=repo, packages=packages, limit=MOST_OF_LOG)
            for found in report.matches:
                if found.score >= POSSIBLE:
                    before[item.source.name, found.span] = _before(text, found)
            yield item.source, report

    counted = _Counted(reports())
    report = gathered(counted, limit)
    answer = _answer(
        known, report, lambda found: before.get((found.files[0], found.span), ""), packages or {}, link
    )
    names = [{"file": redact(item.file), "reason": item.reason} for item in skipped]
    return {**answer, "logs": counted.count, "skipped": names}


class _Counted:
    """Counts what goes through it."""

    def __init__(self, found: Iterator[tuple[Source, Report]]) -> None:
        self._found = found
        self.count = 0

    def __iter__(self) -> Iterator[tuple[Source, Report]]:
        for item in self._found:
            self.count += 1
            yield item


def _before(text: str, found: Match) -> str:
    return text[max(0, found.span[0] - MOST_BEFORE) : found.span[0]]


def _answer(
    known: Library, report: Report, before: Callable[[Match], str], packages: Mapping[str, str], link: Link
) -> dict[str, Any]:
    budget = Budget()
    hosts = Hosts()
    return {
        "hasMatch": report.has_match,
        "rootCause": report.root_cause,
        "notice": notice(report) or _to_index(known, report),
        "matches": [
            _match(known, found, before(found), packages, link, budget) | _origin(found, hosts)
            for found in report.matches
        ],
        "unmatched": [
            {
                "line": missed.line,
                "exception": missed.exception,
                "message": missed.message,
                "role": missed.role,
                "known": asdict(missed.known) if missed.known is not None else None,
            }
            | _origin(missed, hosts)
            for missed in report.unmatched
        ],
        "truncated": report.truncated,
        "datasetVersion": known.dataset_version,
    }


def _to_index(known: Library, report: Report) -> str | None:
    """What to index so that what was pasted may be found; None where something is, or nothing would help."""
    if report.root_cause is not None:
        return None
    indexed = {snapshot.package for snapshot in known.snapshots}
    raising = (missed.package for missed in report.unmatched if missed.role == "root-cause")
    missing = {distribution_of(package): None for package in raising if package is not None}
    names = [name for name in missing if name not in indexed][:MOST_TO_INDEX]
    if not names:
        return None
    return (
        f"Raised in what is not indexed here: `faultbook index {' '.join(names)}` adds its errors, "
        "and this text can be looked up again."
    )


class Hosts:
    """Names of hosts as they are shown: an address is a number, the same wherever it is told."""

    def __init__(self) -> None:
        self._addresses: dict[str, int] = {}

    def shown(self, host: str) -> str:
        """One host's name."""
        if redact(host) == host:
            return host
        return f"address {self._addresses.setdefault(host, len(self._addresses) + 1)}"


def _origin(found: Match | Unmatched, hosts: Hosts) -> dict[str, Any]:
    """How often, on which ranks and hosts, since when, and in which files."""
    files = [redact(name) for name in found.files]
    return {
        "count": found.count,
        "ranks": list(found.ranks),
        "hosts": list(dict.fromkeys(map(hosts.shown, found.hosts))),
        "firstSeen": found.first_seen,
        "file": files[0] if files else None,
        "files": files,
    }


def tier(answer: Mapping[str, Any]) -> str | None:
    """How the best match of an answer was found; None where nothing is sure enough to be called a match."""
    best = max(answer["matches"], key=lambda match: match["score"], default=None)
    return best["matchType"] if best is not None and best["score"] >= MATCH else None


def repositories() -> dict[str, Any]:
    """The body of GET /api/repos."""
    known = library()
    return {
        "repos": [
            {
                "repo": found.repo,
                "description": found.description,
                "errorCount": found.error_count,
                "package": found.package,
                "packageVersion": found.package_version,
            }
            for found in known.repositories
        ],
        "datasetVersion": known.dataset_version,
    }


def _candidate(known: Library, found: Candidate, link: Link) -> dict[str, Any]:
    shown = _found(known, found.record_id)
    record = shown.record
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
        "url": link(path_of(shown)),
        "captures": [_capture(item) for item in found.captures],
        "site": _site(found.site),
        "siblings": list(found.siblings),
    }


def _match(
    known: Library, found: Match, before: str, packages: Mapping[str, str], link: Link, budget: Budget
) -> dict[str, Any]:
    shown = _found(known, found.record_id)
    record, fault = shown.record, shown.fault
    likely = fault is not None and found.score >= POSSIBLE
    filled = None
    if fault and likely:
        siblings = [known.get(name) for name in found.siblings]
        filled = prefilled(
            fault,
            found,
            budget,
            before=before,
            siblings=[other.fault for other in siblings if other is not None and other.fault is not None],
        )
    operation, spec = filled or (None, None)
    return {
        "id": record.id,
        "repo": record.repo,
        "slug": record.slug,
        "errorMessage": record.error_message,
        "errorClass": record.error_class,
        "severity": record.severity,
        "url": link(path_of(shown)),
        "matchType": found.match_type,
        "score": round(found.score, 4),
        "line": found.line,
        "span": {"start": found.span[0], "end": found.span[1]},
        # What is only similar has not been printed.
        "rendered": "" if found.match_type == "fuzzy" else found.rendered,
        "captures": [_capture(item) for item in found.captures],
        "site": _site(found.site),
        "siblings": list(found.siblings),
        "versions": _versions(shown, packages),
        "role": found.role,
        "evidence": list(found.evidence),
        "operation": operation,
        "spec": spec,
    }


def _versions(found: Known, packages: Mapping[str, str]) -> list[str]:
    """Versions known to raise it; only the one installed, where that is said and known."""
    if isinstance(found, FromSource):
        package, known = found.snapshot.package, list(found.versions)
        catalogued = set(known)
    else:
        fault = found.fault
        package, known = fault.package.name if fault.package else "", versions(fault)
        known += [item for item in found.seen_in if item not in known] if isinstance(found, Enriched) else []
        catalogued = {*known, fault.package.version, fault.package.commit} if fault.package else set()
    installed = next((version for name, version in packages.items() if normal(name) == package), "")
    meant = meaning(installed, catalogued)
    return [version for version in known if version == meant] if meant is not None else known


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
