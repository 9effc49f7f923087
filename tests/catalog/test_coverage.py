"""The coverage table is current, and nothing in it is missing."""

from __future__ import annotations

from pathlib import Path

from catalog.coverage import hazards, page
from catalog.store import load_catalog
from kernels.checking import Origin
from kernels.registry import folder_of, operations

DOCUMENT = Path(__file__).parents[2] / "docs" / "coverage.md"


def test_the_document_is_what_the_checks_say() -> None:
    assert DOCUMENT.read_text("utf-8") == page(load_catalog()), (
        "python -m catalog.coverage > docs/coverage.md"
    )


def test_every_check_has_a_record_and_an_example_or_a_reason() -> None:
    catalog = load_catalog()
    missing = [
        (operation.name, check.id())
        for operation in operations().values()
        for check in operation.checks
        if catalog.record_id_of(operation, check) is None
        or (check.example() is None) != bool(check.unreachable)
    ]
    assert missing == []


ROWS = {
    "per_token_group_quant": [f"X{number}" for number in range(1, 19)],
    "inkling_attn_prologue": [f"Y{number}" for number in range(1, 31)],
    "sparse_attn_v4_paged_decode": [f"B{number:02}" for number in range(1, 25)],
    "quanto_int8_checkpoint": [f"Q{number:02}" for number in range(1, 16)],
    "comfy_checkpoint": [f"C{number:02}" for number in range(1, 14)],
}
"""Conditions that upstream's code was read, and run, for not to check."""


def test_every_condition_that_upstream_does_not_check_is_decided_or_explained() -> None:
    for folder, rows in ROWS.items():
        found = [hazard.row for hazard in hazards() if hazard.folder == folder]
        assert found[: len(rows)] == rows
        assert len(set(found)) == len(found)
    for hazard in hazards():
        assert bool(hazard.checks) != bool(hazard.why), hazard
        assert hazard.what


def test_hazards_name_checks_of_their_folder_and_leave_out_none_of_ours() -> None:
    known: dict[str, set[str]] = {}
    ours: dict[str, set[str]] = {}
    for operation in operations().values():
        for check in operation.checks:
            known.setdefault(folder_of(operation), set()).add(check.id())
            if check.origin() is Origin.BEYOND:
                ours.setdefault(folder_of(operation), set()).add(check.id())
    named: dict[str, set[str]] = {}
    for hazard in hazards():
        named.setdefault(hazard.folder, set()).update(hazard.checks)
    for folder, checks in named.items():
        assert checks - known[folder] == set()
    assert {folder: sorted(checks - named.get(folder, set())) for folder, checks in ours.items()} == {
        folder: [] for folder in ours
    }
