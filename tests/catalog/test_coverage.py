"""The coverage table is current, and nothing in it is missing."""

from __future__ import annotations

from pathlib import Path

from catalog.coverage import page
from catalog.store import load_catalog
from kernels.registry import operations

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
