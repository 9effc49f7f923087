"""docs/coverage.md: every check of every operation, where upstream makes it, its record, and how it is
reached.

`python -m catalog.coverage` prints it; a test keeps the file current.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from catalog.store import Catalog, load_catalog
from kernels.checking import Check, Origin
from kernels.registry import Operation, operations

HEAD = """\
# Coverage

Written by `python -m catalog.coverage`; a test keeps it current. For every row the contract tests hold: the
example breaks the check before any other, its text matches the record's own pattern and finds that record
first, the declared fixes pass, and the real function refuses the example as the checks say. The READMEs in
`kernels/` list the conditions that only we check, with what happens without them.
"""


def page(catalog: Catalog) -> str:
    """The whole document."""
    return "\n".join([HEAD, _summary(), *(_section(catalog, found) for found in operations().values())])


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
            "| # | check | made by | raises | upstream's place | record | reached |",
            "| --- | --- | --- | --- | --- | --- | --- |",
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
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _places(check: type[Check[Any]]) -> Iterator[str]:
    """File name and lines, the pinned commit's before the release's."""
    for site in check.sites:
        name = site.file.path.rpartition("/")[2]
        yield f"{name}:{'/'.join(map(str, site.lines))}" if site.lines else name


if __name__ == "__main__":
    sys.stdout.write(page(load_catalog()))
