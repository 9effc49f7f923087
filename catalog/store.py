"""The catalog as it is served: immutable, looked up by id and slug, filtered, matched against texts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.metadata import version
from typing import Any

from catalog import match, sources
from catalog.faults import OWN_REPO, Fault
from catalog.load import WRITTEN_ON, Curated, on_demand
from catalog.match.user_regex import search_messages
from catalog.template import Template, infer_kind
from kernels.checking import Check
from kernels.registry import Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What a list of records is narrowed to; None leaves a criterion out.

    error_class  the exception's dotted name, or its last part
    q            words, each of which occurs in the record's message, names, tags or class
    regex        a pattern searched in the message
    """

    repo: str | None = None
    operation: str | None = None
    error_class: str | None = None
    error_type: str | None = None
    severity: str | None = None
    tag: str | None = None
    family: str | None = None
    package: str | None = None
    q: str | None = None
    regex: str | None = None


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository with records; `package` is the name it is installed by."""

    repo: str
    description: str
    package: str
    package_version: str
    error_count: int


class Catalog:
    """All records, in the order of repository, path and line."""

    def __init__(self, records: Sequence[Curated], version: Callable[[], str] | None = None) -> None:
        """`version` tells what the records are made of, where that takes less than making them."""
        self.records = tuple(records)
        self._version = version or self._digest
        self._by_id = {found.fault.id: found for found in self.records}
        self._order = {identifier: index for index, identifier in enumerate(self._by_id)}
        self._by_check = {
            (case.operation.name, case.check): found.fault.id
            for found in self.records
            for case in found.fault.cases
        }

    @cached_property
    def dataset_version(self) -> str:
        """Date of the prose and a digest: equal for equal content."""
        return f"{WRITTEN_ON}-{self._version()[:12]}"

    def _digest(self) -> str:
        content = json.dumps([found.record.to_json() for found in self.records], ensure_ascii=False)
        return hashlib.sha256(content.encode()).hexdigest()

    def complete(self) -> None:
        """Make every record now; CatalogError for one that cannot be."""
        for found in self.records:
            _ = found.record, found.related

    @cached_property
    def _by_slug(self) -> dict[tuple[str, str], Curated]:
        return {(found.fault.repo, found.slug): found for found in self.records}

    @cached_property
    def matcher(self) -> match.Matcher:
        """Finds records in texts. Building it is the slow part; it may be shared between threads."""
        return match.Matcher(found for record in self.records for found in entries(record.fault))

    def get(self, identifier: str) -> Curated | None:
        """The record of this id."""
        return self._by_id.get(identifier)

    def by_slug(self, slug: str, repo: str | None = None) -> Curated | None:
        """The record of this slug; where several repositories have it and none is named, upstream's."""
        if repo is not None:
            return self._by_slug.get((repo, slug))
        found = [record for (_, name), record in self._by_slug.items() if name == slug]
        return min(found, key=lambda record: (record.fault.own, record.fault.repo), default=None)

    def record_id_of(self, operation: Operation, check: type[Check[Any]]) -> str | None:
        """The record of one check of an operation."""
        return self._by_check.get((operation.name, check))

    def order(self, identifier: str) -> int:
        """Where a record stands among all; KeyError for no such id."""
        return self._order[identifier]

    def select(self, filters: Filters) -> list[Curated]:
        """The records that fulfil every criterion; BadPattern or TooCostly for a regex not searched with."""
        words = filters.q.lower().split() if filters.q is not None else []
        found = [
            record
            for record in self.records
            if _fulfils(record, filters) and all(word in self._words[record.record.id] for word in words)
        ]
        if filters.regex is None:
            return found
        matching = search_messages(filters.regex, [record.record.error_message for record in found])
        return [found[index] for index in matching]

    def page(
        self, found: Sequence[Curated], after: str | None, limit: int
    ) -> tuple[list[Curated], str | None]:
        """`limit` of `found` after the record `after`, and the id to go on after; KeyError for no such id."""
        start = self._order[after] + 1 if after is not None else 0
        rest = [record for record in found if self._order[record.record.id] >= start]
        shown = rest[:limit]
        return shown, shown[-1].record.id if len(rest) > limit else None

    def repositories(self) -> list[Repository]:
        """Every repository that has records."""
        counts: dict[str, list[Curated]] = {}
        for found in self.records:
            counts.setdefault(found.record.repo, []).append(found)
        return [_repository(repo, records) for repo, records in counts.items()]

    @cached_property
    def _words(self) -> dict[str, str]:
        """What `q` looks into, by id."""
        return {found.record.id: " ".join(_searched(found)).lower() for found in self.records}


@cache
def load_catalog() -> Catalog:
    """The catalog of this process, read once."""
    return Catalog(on_demand(), sources.digest)


def entries(fault: Fault) -> Iterator[match.Entry]:
    """A fault as the matcher takes it: by its wording, by those of earlier versions at no known line, and by
    those of another library, which may be about something else.
    """
    if fault.pythons_own:
        return
    own = entry(fault)
    yield own
    sites = tuple(replace(site, lines=()) for site in own.sites)
    for wording in fault.check.formerly:
        yield replace(own, message=wording, hole_kinds=_kinds(wording), sites=sites)
    for wording in fault.check.said_elsewhere:
        yield replace(own, message=wording, hole_kinds=_kinds(wording), sites=(), hint=True)


def _kinds(wording: str) -> tuple[str, ...]:
    return tuple(infer_kind(hole.expr, hole.format_spec) for hole in Template.parse(wording).holes)


def entry(fault: Fault) -> match.Entry:
    """A fault as the matcher takes it, by its wording of today."""
    exception = fault.check.raises.__name__
    return match.Entry(
        record_id=fault.id,
        repo=fault.repo,
        message=fault.message,
        code=None,
        sites=tuple(match.Site(site.file.path, site.function, site.lines, exception) for site in fault.sites),
        curated=True,
        hole_kinds=tuple(captured.kind for captured in fault.captures),
        launcher=fault.prefixed,
        textless=fault.textless,
    )


def _fulfils(found: Curated, filters: Filters) -> bool:
    record, fault = found.record, found.fault
    return (
        filters.repo in (None, record.repo)
        and filters.error_class in (None, record.error_class, record.error_class.rpartition(".")[2])
        and filters.error_type in (None, record.error_type)
        and filters.severity in (None, record.severity)
        and (filters.tag is None or filters.tag in record.tags)
        and filters.family in (None, record.background_tag)
        and filters.package in (None, fault.package.name if fault.package else OWN_REPO)
        and (
            filters.operation is None or any(case.operation.name == filters.operation for case in fault.cases)
        )
    )


def _searched(found: Curated) -> Iterator[str]:
    record = found.record
    yield from (record.id, record.slug, record.error_message, record.error_class, record.file_path)
    yield from (*record.tags, record.background_tag or "", record.documentation)
    yield from (case.operation.name for case in found.fault.cases)
    yield from (case.check.id() for case in found.fault.cases)


def _repository(repo: str, records: Sequence[Curated]) -> Repository:
    package = records[0].fault.package
    if package is None:
        return Repository(
            repo,
            "What upstream does not check itself, and what Python or torch raise on its behalf",
            OWN_REPO,
            version(OWN_REPO),
            len(records),
        )
    return Repository(repo, package.description, package.name, package.version, len(records))
