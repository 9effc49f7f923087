"""Curated records: what the checks say, and what people wrote about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from catalog import sources
from catalog.additions import additions
from catalog.commit import built_from
from catalog.errors import CatalogError
from catalog.faults import Fault, faults
from catalog.identity import distinct, slug
from catalog.prose import Prose, path_of, read, written_names
from catalog.record import SCHEMA_VERSION, Record
from kernels.checking import Severity
from kernels.registry import operations
from kernels.rendering import before_after

WRITTEN_ON: Final = "2026-12-02"
"""Date of the curated prose, and of the data set."""


@dataclass(frozen=True, slots=True)
class Link:
    """Another record worth reading, and why."""

    record: Record
    reason: str


@dataclass(frozen=True)
class Curated:
    """A record with what it was made from. `related` is in the order of the prose."""

    record: Record
    fault: Fault
    prose: Prose | None
    related: tuple[Link, ...] = ()

    @property
    def slug(self) -> str:
        """The record's, for which it need not be made."""
        return self.record.slug

    @cached_property
    def x(self) -> Mapping[str, Any]:
        """The additions of `view=full`."""
        return additions(self.fault, [(link.record.id, link.reason) for link in self.related])


class OnDemand(Curated):
    """A curated record that is made when it is looked at: most commands look at one or two."""

    def __init__(self, fault: Fault, slug: str, by_check: Mapping[str, Curated]) -> None:
        self.__dict__.update(fault=fault, _slug=slug, _by_check=by_check)

    @cached_property
    def prose(self) -> Prose | None:
        """What people wrote; CatalogError where it does not parse."""
        path = path_of(self.fault.name)
        return read(path) if path.is_file() else None

    @property
    def slug(self) -> str:
        return str(self.__dict__["_slug"])

    @cached_property
    def record(self) -> Record:
        """The record."""
        return _record(self.fault, self.prose, self.slug)

    @cached_property
    def related(self) -> tuple[Link, ...]:
        """Other records worth reading."""
        return tuple(_links(self.fault, self.prose, self.__dict__["_by_check"], strict=False))


def load(*, strict: bool = True) -> tuple[Curated, ...]:
    """Every curated record, in the order of repository, path and line.

    Raises CatalogError for prose that does not parse; when `strict`, also for a record without prose, prose
    without a record, and a link to no record.
    """
    made = on_demand()
    if strict:
        _check_names({each.fault.name for each in made})
    by_check = _by_check(made)
    return tuple(
        Curated(each.record, each.fault, each.prose, tuple(_links(each.fault, each.prose, by_check, strict)))
        for each in made
    )


def on_demand() -> tuple[Curated, ...]:
    """Every curated record, in the order of repository, path and line, each made when it is looked at."""
    found = sorted(faults(operations().values()), key=_place)
    by_check: dict[str, Curated] = {}
    names = _slugs(found)
    made = tuple(OnDemand(fault, names[fault.id], by_check) for fault in found)
    by_check.update(_by_check(made))
    return made


def _by_check(made: Iterable[Curated]) -> dict[str, Curated]:
    return {case.name: each for each in made for case in each.fault.cases}


def build(found: Iterable[Fault], prose: Mapping[str, Prose]) -> dict[str, Record]:
    """Id → record, in the order of repository, path and line."""
    ordered = sorted(found, key=_place)
    slugs = _slugs(ordered)
    return {fault.id: _record(fault, prose.get(fault.name), slugs[fault.id]) for fault in ordered}


def _slugs(ordered: Sequence[Fault]) -> dict[str, str]:
    """Id → slug: of equal ones in a repository the later get a number."""
    slugs: dict[str, str] = {}
    for repo in dict.fromkeys(fault.repo for fault in ordered):
        own = [fault for fault in ordered if fault.repo == repo]
        names = distinct(slug(fault.message, error_class(fault)) for fault in own)
        slugs.update(zip((fault.id for fault in own), names, strict=True))
    return slugs


def error_class(fault: Fault) -> str:
    """The exception's name, dotted unless it is built in."""
    raised = fault.check.raises
    return (
        raised.__qualname__
        if raised.__module__ == "builtins"
        else f"{raised.__module__}.{raised.__qualname__}"
    )


def example_fix(fault: Fault) -> str | None:
    """A failing call and a passing one: fixed, or the operation's valid call where no fix is declared."""
    shown = fault.shown
    if shown is None:
        return None
    operation = shown.case.operation
    fixed = operation.valid if shown.fix is None else shown.fix.call
    return before_after(operation, shown.call, fixed, show=shown.case.check.arguments())


def _record(fault: Fault, prose: Prose | None, name: str) -> Record:
    site = fault.pinned
    failing = any(case.check.severity is Severity.ERROR for case in fault.cases)
    return Record(
        id=fault.id,
        repo=fault.repo,
        slug=name,
        error_code=None,
        error_message=fault.message,
        message_pattern=fault.template.pattern,
        error_type="validation",
        error_class=error_class(fault),
        http_status=None,
        severity="error" if failing else "warning",
        file_path=fault.path,
        line_number=_line(fault),
        source_code=None,
        source_code_start=None,
        source_code_end=None,
        github_url=site.url if site is not None and not fault.own else None,
        documentation=prose.documentation if prose else "",
        trigger_scenarios=prose.triggers if prose else "",
        common_situations=prose.situations if prose else "",
        solutions=prose.solutions if prose else (),
        example_fix=example_fix(fault),
        handling_strategy=prose.handling if prose else None,
        validation_code=prose.validation if prose else None,
        type_guard=prose.type_guard if prose else None,
        try_catch_pattern=prose.try_catch if prose else None,
        prevention_tips=prose.tips if prose else (),
        tags=prose.tags if prose else (),
        background_tag=prose.family if prose else None,
        analyzed_sha=built_from() if fault.package is None else fault.package.commit,
        analyzed_at=f"{WRITTEN_ON}T00:00:00.000Z",
        schema_version=SCHEMA_VERSION,
    )


def _check_names(records: set[str]) -> None:
    written = written_names()
    for what, names in (
        ("records without prose", records - written),
        ("prose of no record", written - records),
    ):
        if names:
            raise CatalogError(f"{what}: {', '.join(sorted(names))}")


def _line(fault: Fault) -> int | None:
    if fault.own:
        return sources.record_line(fault.check)
    return fault.pinned.pinned if fault.pinned is not None else None


def _place(fault: Fault) -> tuple[str, str, tuple[int, ...], str]:
    lines = (sources.line_of(fault.check),) if fault.own else fault.sites[0].lines
    return fault.repo, fault.path, lines[:1], fault.message


def _links(
    fault: Fault, prose: Prose | None, by_check: Mapping[str, Curated], strict: bool
) -> Iterable[Link]:
    for related in prose.related if prose is not None else ():
        other = by_check.get(related.check)
        if other is not None and other.fault.id != fault.id:
            yield Link(other.record, related.reason)
        elif strict:
            raise CatalogError(f"{fault.name}.toml: related check {related.check!r} is no other record's")
