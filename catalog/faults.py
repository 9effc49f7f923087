"""From checks to faults: checks that share repository, text and file are one record."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final

from catalog import sources
from catalog.errors import CatalogError
from catalog.identity import record_id
from catalog.template import Template, infer_kind
from kernels.call import Call
from kernels.checking import Check, Fix, LauncherCheck, Status
from kernels.dtypes import DType, Safetensors, Torch
from kernels.registry import Operation, folder_of
from kernels.upstream import Package, Site

OWN_REPO: Final = "faultbook"
"""Repository of records whose text is nobody's upstream: our checks, and Python's own errors."""
LAUNCHER_PREFIX: Final = "Failed at {file}:{line}: "

_KINDS: Final[dict[object, str]] = {
    DType: "dtype",
    Torch: "dtype",
    Safetensors: "dtype",
    bool: "bool",
    int: "int",
    float: "float",
}


@dataclass(frozen=True, slots=True)
class Case:
    """A check as one operation makes it."""

    operation: Operation
    check: type[Check[Any]]

    @property
    def name(self) -> str:
        """`folder/check id`, as records' files and their links are called."""
        return f"{folder_of(self.operation)}/{self.check.id()}"


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A call that breaks a check, how it does, and its first fix."""

    case: Case
    call: Call
    violation: Check[Any]
    fix: Fix[Any] | None


@dataclass(frozen=True, slots=True)
class Captured:
    """What a hole prints: the violation's field, upstream's expression, the kind of value."""

    name: str
    expr: str
    kind: str


@dataclass(frozen=True)
class Fault:
    """One record's checks, in the operations' order; all agree in repository, message and path."""

    repo: str
    message: str
    path: str
    cases: tuple[Case, ...]

    @property
    def name(self) -> str:
        """That of its first check, and of its prose file."""
        return self.cases[0].name

    @property
    def check(self) -> type[Check[Any]]:
        """The first check; what identifies the record is the same for all."""
        return self.cases[0].check

    @cached_property
    def id(self) -> str:
        return record_id(self.repo, None, self.message, self.path)

    @property
    def own(self) -> bool:
        """Whether the record is of this project's repository."""
        return self.repo == OWN_REPO

    @property
    def pythons_own(self) -> bool:
        """Whether Python or torch raise it, so that its text points to no record."""
        return all(case.check.pythons_own for case in self.cases)

    @property
    def textless(self) -> bool:
        """Whether upstream raises it without a text; the message is then the source expression."""
        return not self.check.message

    @property
    def prefixed(self) -> bool:
        """Whether the launcher prints the place that failed before the text."""
        return (
            issubclass(self.check, LauncherCheck)
            and inspect.getattr_static(self.check, "text") is LauncherCheck.__dict__["text"]
        )

    @cached_property
    def template(self) -> Template:
        """The message, cut at its holes; a source expression has none."""
        return Template(self.message, (self.message,), ()) if self.textless else Template.parse(self.message)

    @cached_property
    def captures(self) -> tuple[Captured, ...]:
        """One for each hole. A check may print values before its fields: fields belong to the last holes."""
        fields: tuple[str, ...] = () if self.textless else self.check.printed_fields()
        first = len(self.template.holes) - len(fields)
        if first < 0:
            raise CatalogError(f"{self.name}: {len(fields)} printed fields for {self.message!r}")
        return tuple(
            Captured(
                name=fields[index - first] if index >= first else hole.expr or str(index),
                expr=hole.text,
                kind=(_kind(_hint(self.check, fields[index - first])) if index >= first else None)
                or infer_kind(hole.expr, hole.format_spec),
            )
            for index, hole in enumerate(self.template.holes)
        )

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """Every upstream site of its checks, in path and line order."""
        found = dict.fromkeys(site for case in self.cases for site in case.check.sites)
        return tuple(
            sorted(found, key=lambda site: (site.file.path, site.lines[:1] or (0,), site.expression))
        )

    @property
    def pinned(self) -> Site | None:
        """The first site that the pinned commit has."""
        return next((site for site in self.sites if site.pinned is not None), None)

    @property
    def package(self) -> Package | None:
        """The package that raises it; None for our own."""
        return None if self.own else self.sites[0].file.package

    @cached_property
    def shown(self) -> Demonstration | None:
        """The first of `demonstrations`, which stands for the record."""
        return next((found for case in self.cases if (found := demonstrate(case)) is not None), None)

    @cached_property
    def demonstrations(self) -> tuple[Demonstration, ...]:
        """The examples of its checks, as evaluated."""
        return tuple(found for case in self.cases if (found := demonstrate(case)) is not None)


def demonstrate(case: Case) -> Demonstration | None:
    """Evaluate a check's example; None where no call reaches it. CatalogError where the example passes."""
    call = case.check.example()
    if call is None:
        return None
    outcome = next(
        outcome for outcome in case.operation.examine(call).outcomes if outcome.check is case.check
    )
    if outcome.status is not Status.FAILED:
        raise CatalogError(f"{case.name}: its example does not break it in {case.operation.name}")
    occurrence = outcome.occurrences[0]
    fix = next(iter(occurrence.violation.fixes(occurrence.subject)), None)
    return Demonstration(case, call, occurrence.violation, fix)


def faults(operations: Iterable[Operation]) -> tuple[Fault, ...]:
    """Every check of the operations, grouped by identity; CatalogError where two would have one file."""
    groups: dict[tuple[str, str, str], list[Case]] = {}
    for operation in operations:
        for check in operation.checks:
            groups.setdefault(_identity(check), []).append(Case(operation, check))
    found = tuple(Fault(*identity, tuple(cases)) for identity, cases in groups.items())
    names: dict[str, Fault] = {}
    for fault in found:
        if fault.name in names:
            raise CatalogError(
                f"two records are called {fault.name}: {fault.message!r} and {names[fault.name].message!r}"
            )
        names[fault.name] = fault
    return found


def _identity(check: type[Check[Any]]) -> tuple[str, str, str]:
    """Repository, message and path."""
    if not check.message and not check.sites:
        raise CatalogError(f"{check.__module__}.{check.__name__} has neither a message nor a site")
    if check.sites and not check.pythons_own:
        file = check.sites[0].file
        return file.package.repo, check.error_message(), file.path
    return OWN_REPO, check.error_message(), sources.record_path(check)


def _hint(check: type[Check[Any]], name: str) -> Any:
    """The type of one field; all hints of a class and its bases would take ten times as long."""
    owner = next(base for base in check.__mro__ if name in vars(base).get("__annotations__", {}))
    return _resolved(owner.__module__, vars(owner)["__annotations__"][name])


@cache
def _resolved(module: str, annotation: str) -> Any:
    holder = types.SimpleNamespace(__annotations__={"field": annotation})
    return typing.get_type_hints(holder, vars(sys.modules[module]))["field"]


def _kind(hint: Any) -> str | None:
    """The kind of value that a field of this type prints, where the type tells."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = {_kind(option) for option in typing.get_args(hint) if option is not types.NoneType}
        return kinds.pop() if len(kinds) == 1 else None
    if typing.get_origin(hint) is tuple:
        return "shape" if set(typing.get_args(hint)) <= {int, Ellipsis} else None
    return _KINDS.get(hint)
