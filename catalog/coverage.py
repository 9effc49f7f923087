"""docs/coverage.md: every check of every operation, where upstream makes it, its record, how it is reached
and what tests name it; then what upstream does not check, and who says it here.

`python -m catalog.coverage` prints it; a test keeps the file current.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from catalog.store import Catalog, load_catalog
from kernels.checking import Check, Origin
from kernels.registry import Operation, folder_of, operations

ROOT = Path(__file__).parent.parent

HEAD = """\
# Coverage

Written by `python -m catalog.coverage`; a test keeps it current. For every row the contract tests hold: the
example breaks the check before any other, its text matches the record's own pattern and finds that record
first, the declared fixes pass, and the real function refuses the example as the checks say. The last column
has the operation's own tests that name the check besides. The READMEs in `kernels/` say what happens upstream
under the conditions that only we check; the last table here says which check stands for each of them.
"""


@dataclass(frozen=True, slots=True)
class Hazard:
    """A condition that upstream does not check: the checks that say it here, or why none does."""

    folder: str
    row: str
    what: str
    checks: tuple[str, ...] = ()
    why: str = ""


@cache
def hazards() -> tuple[Hazard, ...]:
    """Every row of hazards.toml."""
    read = tomllib.loads(Path(__file__).with_name("hazards.toml").read_text("utf-8"))
    return tuple(
        Hazard(folder, row["row"], row["what"], tuple(row.get("checks", ())), row.get("why", ""))
        for folder, rows in read.items()
        for row in rows
    )


@cache
def named_in(folder: str) -> Mapping[str, tuple[str, ...]]:
    """Word → the test modules of an operation's folder that have it as a text; nothing where no tests are."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests" / "kernels" / folder).glob("test_*.py")):
        tree = ast.walk(ast.parse(path.read_bytes()))
        texts = {
            node.value for node in tree if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        for text in texts:
            found.setdefault(text, []).append(path.stem.removeprefix("test_"))
    return {text: tuple(modules) for text, modules in found.items()}


def page(catalog: Catalog) -> str:
    """The whole document."""
    sections = (_section(catalog, found) for found in operations().values())
    return "\n".join([HEAD, _summary(), *sections, _unchecked()])


def _unchecked() -> str:
    """The table of hazards."""
    cells = (
        (found.folder, found.row, found.what, ", ".join(found.checks) or "–", found.why or "–")
        for found in hazards()
    )
    rows = (f"| {' | '.join(row)} |" for row in cells)
    head = [
        "| folder | row | what upstream lets through | check | why none |",
        "| --- | --- | --- | --- | --- |",
    ]
    return "\n".join(["## What upstream does not check", "", *head, *rows, ""])


def _summary() -> str:
    rows = [
        f"| {found.name} | {len(found.checks)} | {_count(found, Origin.UPSTREAM)} | "
        f"{_count(found, Origin.BEYOND)} "
        f"| {sum(bool(check.unreachable) for check in found.checks)} |"
        for found in operations().values()
    ]
    head = ["| operation | checks | upstream's | ours | unreachable |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([*head, *rows, ""])


def _count(operation: Operation, origin: Origin) -> int:
    return sum(check.origin() is origin for check in operation.checks)


def _section(catalog: Catalog, operation: Operation) -> str:
    rows = [_row(catalog, operation, order, check) for order, check in enumerate(operation.checks, start=1)]
    return "\n".join(
        [
            f"## {operation.name}",
            "",
            "| # | check | made by | raises | upstream's place | record | reached | tests |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
            *rows,
            "",
        ]
    )


def _row(catalog: Catalog, operation: Operation, order: int, check: type[Check[Any]]) -> str:
    record = catalog.record_id_of(operation, check)
    made_by = "python" if check.pythons_own else check.origin().value
    reached = check.unreachable or "example"
    raises = check.raises.__name__ if check.origin() is Origin.UPSTREAM else check.severity.value
    cells = (
        str(order),
        check.id(),
        made_by,
        raises,
        ", ".join(_places(check)) or "–",
        record or "–",
        reached,
        ", ".join(named_in(folder_of(operation)).get(check.id(), ())) or "–",
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _places(check: type[Check[Any]]) -> Iterator[str]:
    """File name and lines, the pinned commit's before the release's."""
    for site in check.sites:
        name = site.file.path.rpartition("/")[2]
        yield f"{name}:{'/'.join(map(str, site.lines))}" if site.lines else name


if __name__ == "__main__":
    sys.stdout.write(page(load_catalog()))
