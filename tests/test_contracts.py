"""Laws that hold for every check, every record and every operation, whoever adds one."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from catalog.families import FAMILIES
from catalog.faults import Case, Fault, faults
from catalog.load import Curated, load
from catalog.match import MATCH, Match
from catalog.prose import written_names
from catalog.record import Record, schema
from catalog.store import Catalog
from catalog.template import KINDS, Template
from kernels.checking import Check, LauncherCheck, Origin, Severity, Status
from kernels.message import holes
from kernels.registry import Operation, folder_of, operations

ROOT = Path(__file__).parent.parent
SITES = [
    site
    for name in ("upstream_sites.json", "attention_sites.json")
    for site in json.loads((ROOT / "tests/data" / name).read_text("utf-8"))
]
"""Upstream's raise statements in our operations' files: facts of release 0.5.23 and the pinned commit. Texts
in the second file have others of one pattern beside them, which only the place tells apart."""

OPERATIONS = list(operations().values())
CASES = [Case(operation, check) for operation in OPERATIONS for check in operation.checks]
FAULTS = faults(OPERATIONS)
DEMONSTRATED = [case for case in CASES if case.check.example() is not None]
SEARCHED = [fault for fault in FAULTS if not fault.pythons_own]


def case_id(case: Case) -> str:
    return f"{case.operation.name}/{case.check.id()}"


def fault_id(fault: Fault) -> str:
    return fault.name


each_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
each_case = pytest.mark.parametrize("case", CASES, ids=case_id)
each_demonstrated = pytest.mark.parametrize("case", DEMONSTRATED, ids=case_id)
each_fault = pytest.mark.parametrize("fault", FAULTS, ids=fault_id)


@cache
def catalog() -> Catalog:
    return Catalog(load(strict=False))


def curated(fault: Fault) -> Curated:
    found = catalog().get(fault.id)
    assert found is not None
    return found


def violation_of(case: Case) -> Check[Any]:
    """The example's violation of its own check."""
    example = case.check.example()
    assert example is not None
    [outcome] = [item for item in case.operation.examine(example).outcomes if item.check is case.check]
    return outcome.occurrences[0].violation


# --- checks


@each_operation
def test_the_valid_call_passes_every_check(operation: Operation) -> None:
    examination = operation.examine(operation.valid)
    assert [outcome.check.id() for outcome in examination.failed()] == []
    assert examination.raised is None


@each_operation
def test_check_ids_of_an_operation_are_distinct(operation: Operation) -> None:
    ids = [check.id() for check in operation.checks]
    assert len(set(ids)) == len(ids)


@each_case
def test_premises_come_before_the_check(case: Case) -> None:
    order = list(case.operation.checks)
    for premise in case.check.premises:
        assert premise in order[: order.index(case.check)], premise.id()


@each_case
def test_everything_a_check_looks_at_exists(case: Case) -> None:
    signature = {parameter.name: parameter for parameter in case.operation.call.arguments()}
    assert case.check.looks_at
    for path in case.check.looks_at:
        name, _, attribute = path.partition(".")
        assert name in signature, path
        for step in filter(None, attribute.split(".")):
            assert hasattr(signature[name].kind, step) or step in _fields(signature[name].kind), path


@each_case
def test_a_check_that_looks_at_elements_is_left_out_by_a_live_guard(case: Case) -> None:
    """Elements of a tensor; a file's header holds texts and scales too, which are read with it."""
    elements = [path for path in case.check.looks_at if path.endswith(".values")]
    files = [name for name in case.check.arguments() if name in ("checkpoint", "others", "filename")]
    assert case.check.reads_values == bool(elements) or files


@each_case
def test_a_check_says_why_what_and_how_bad(case: Case) -> None:
    check = case.check
    assert check.__doc__, "why the hardware or the format demands it"
    assert check.reason
    assert check.requires
    assert isinstance(check.severity, Severity)
    assert issubclass(check.raises, Exception)
    assert check.message or check.sites, "a check has a text or a site"
    if check.origin() is Origin.BEYOND:
        assert not check.pythons_own


@each_case
def test_a_check_has_an_example_or_says_why_not(case: Case) -> None:
    assert (case.check.example() is None) == bool(case.check.unreachable)


@each_demonstrated
def test_an_example_breaks_its_own_check_first(case: Case) -> None:
    example = case.check.example()
    assert example is not None
    examination = case.operation.examine(example)
    if case.check.origin() is Origin.UPSTREAM:
        assert type(examination.raised) is case.check
    else:
        assert examination.raised is None
        assert examination.failed()[0].check is case.check


@each_demonstrated
def test_a_violation_fills_every_hole_and_its_reason(case: Case) -> None:
    violation = violation_of(case)
    assert len(violation.printed()) == len(holes(case.check.message))
    assert violation.explain()
    assert "{" not in violation.explain()
    assert isinstance(violation.exception(), case.check.raises)
    assert str(violation.exception()) == violation.text


@each_demonstrated
def test_declared_fixes_work(case: Case) -> None:
    """Each passes the check it is for; the first passes all."""
    example = case.check.example()
    assert example is not None
    [outcome] = [item for item in case.operation.examine(example).outcomes if item.check is case.check]
    occurrence = outcome.occurrences[0]
    for index, fix in enumerate(occurrence.violation.fixes(occurrence.subject)):
        assert fix.title
        assert fix.edits(example), f"{fix.title} changes nothing"
        examination = case.operation.examine(fix.call)
        [own] = [item for item in examination.outcomes if item.check is case.check]
        assert own.status is Status.PASSED, fix.title
        if index == 0:
            assert [item.check.id() for item in examination.failed()] == [], fix.title


# --- upstream's statements


def sites_of(folder: str) -> Iterator[tuple[str, str, str, str, int | None, int | None]]:
    """(function, exception, text, statement, released, pinned) of every check on upstream's Python file."""
    python = {site["path"] for site in SITES if site["folder"] == folder}
    for case in CASES:
        if folder_of(case.operation) == folder and not case.check.pythons_own:
            for site in case.check.sites:
                if site.file.path in python:
                    yield (
                        site.function,
                        case.check.raises.__name__,
                        case.check.message,
                        site.expression,
                        site.released,
                        site.pinned,
                    )


@pytest.mark.parametrize("folder", sorted({site["folder"] for site in SITES}))
def test_checks_are_upstreams_statements_to_the_letter(folder: str) -> None:
    keys = ("function", "exception", "text", "statement", "released", "pinned")
    expected = {tuple(site[key] for key in keys) for site in SITES if site["folder"] == folder}
    assert set(sites_of(folder)) == expected


@pytest.mark.parametrize("site", [site for site in SITES if site["id"]], ids=lambda site: site["id"])
def test_ids_are_those_of_the_public_dataset(site: dict[str, Any]) -> None:
    found = catalog().get(site["id"])
    assert found is not None
    assert (found.record.error_message, found.record.file_path) == (site["text"], site["path"])


@each_operation
def test_checks_of_one_function_stand_in_its_order(operation: Operation) -> None:
    lines: dict[tuple[str, str], list[int]] = {}
    for check in operation.checks:
        if not issubclass(check, LauncherCheck):
            for site in check.sites[:1]:
                if site.released is not None:
                    lines.setdefault((site.file.path, site.function), []).append(site.released)
    for function, found in lines.items():
        assert found == sorted(found), function


# --- records


def test_every_check_belongs_to_exactly_one_record() -> None:
    owners: dict[Case, list[str]] = {case: [] for case in CASES}
    for found in catalog().records:
        for case in found.fault.cases:
            owners[case].append(found.record.id)
    assert {case_id(case): ids for case, ids in owners.items() if len(ids) != 1} == {}


def test_every_record_has_its_prose() -> None:
    assert sorted({fault.name for fault in FAULTS} - written_names()) == []


def test_every_prose_file_has_its_record() -> None:
    assert sorted(written_names() - {fault.name for fault in FAULTS}) == []


@each_fault
def test_a_record_is_of_schema_version_2(fault: Fault) -> None:
    document = json.loads(json.dumps(curated(fault).record.to_json()))
    jsonschema.Draft202012Validator(dict(schema())).validate(document)
    assert Record.from_json(document) == curated(fault).record


def test_slugs_are_distinct_within_a_repository() -> None:
    names = [(found.record.repo, found.record.slug) for found in catalog().records]
    assert len(set(names)) == len(names)


def test_families_are_a_short_list_and_all_in_use() -> None:
    used = {found.record.background_tag for found in catalog().records} - {None}
    assert len(FAMILIES) <= 40
    assert used <= set(FAMILIES)


@each_fault
def test_captures_belong_to_holes_and_have_a_kind(fault: Fault) -> None:
    assert [captured.expr for captured in fault.captures] == [hole.text for hole in fault.template.holes]
    assert {captured.kind for captured in fault.captures} <= set(KINDS)
    assert len({captured.name for captured in fault.captures}) == len(fault.captures)


def splits_alike(template: Template, printed: tuple[str, ...]) -> bool:
    """Whether each value ends where the literal after it begins; two holes side by side have none between."""
    after = template.segments[1:]
    return all(
        (literal or index == len(printed) - 1) and (not literal or literal not in value)
        for index, (literal, value) in enumerate(zip(after, printed, strict=True))
    )


@pytest.mark.parametrize("case", [case for case in DEMONSTRATED if case.check.message], ids=case_id)
def test_a_rendered_text_matches_its_own_pattern(case: Case) -> None:
    found = catalog().get(str(catalog().record_id_of(case.operation, case.check)))
    assert found is not None
    violation = violation_of(case)
    printed = tuple(
        hole.fill(value) for hole, value in zip(holes(case.check.message), violation.printed(), strict=True)
    )
    message = found.fault.template.message
    bare = re.search(found.record.message_pattern, violation.text)
    whole = re.search(found.x["match"]["regex"], violation.text)
    assert bare, message
    assert whole, message
    if splits_alike(found.fault.template, printed):
        assert whole.groups() == printed
    assert len(whole.groups()) == len(printed)


@pytest.mark.parametrize(
    "case",
    [case for case in DEMONSTRATED if any(case in fault.cases for fault in SEARCHED)],
    ids=case_id,
)
def test_what_a_user_sees_leads_to_the_record_first(case: Case) -> None:
    first = best(pasted(case))
    assert first.record_id == catalog().record_id_of(case.operation, case.check)
    assert first.score >= MATCH


def pasted(case: Case) -> str:
    """The example's traceback, as it would end; the frame tells which of several files it was."""
    violation = violation_of(case)
    name = type(violation.exception()).__name__
    pattern = Template.parse(case.check.message).pattern
    alike = [fault for fault in SEARCHED if fault.template.pattern == pattern]
    if violation.text and len(alike) == 1:
        return f"{name}: {violation.text}"
    [site, *_] = case.check.sites
    path = f"/env/lib/{site.file.path.removeprefix('python/')}"
    return (
        "Traceback (most recent call last):\n"
        f'  File "{path}", line {site.lines[0]}, in {site.function}\n'
        f"    {site.expression or f'raise {name}('}\n{name}{': ' if violation.text else ''}{violation.text}\n"
    )


def best(text: str) -> Match:
    report = catalog().matcher.match(text)
    assert report.matches, "nothing found"
    return report.matches[0]


# --- the code itself


def imports(path: Path) -> set[str]:
    """Top-level names of everything a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize(("package", "unknown"), [("catalog", {"app"}), ("kernels", {"app", "catalog"})])
def test_arrows_point_from_app_to_catalog_to_kernels(package: str, unknown: set[str]) -> None:
    wrong = {
        str(path.relative_to(ROOT)): sorted(found)
        for path in (ROOT / package).rglob("*.py")
        if (found := imports(path) & unknown)
    }
    assert wrong == {}


VALIDATION = {
    "ValueError",
    "TypeError",
    "RuntimeError",
    "AssertionError",
    "IndexError",
    "NotImplementedError",
}


@pytest.mark.parametrize("folder", sorted({folder_of(operation) for operation in OPERATIONS}))
def test_arguments_are_refused_by_checks_alone(folder: str) -> None:
    """What runs an operation raises no validation error by hand: it would be a second place that says it."""
    raised = {
        f"{path.name}:{node.lineno}"
        for path in (ROOT / "kernels" / folder).glob("*.py")
        if path.name in ("op.py", "kernel.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Raise)
        and node.exc is not None
        and {name.id for name in ast.walk(node.exc) if isinstance(name, ast.Name)} & VALIDATION
    }
    assert raised == set()


def _fields(kind: type) -> set[str]:
    try:
        return {field.name for field in fields(kind)}
    except TypeError:
        return set()
