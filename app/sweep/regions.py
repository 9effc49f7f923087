"""Neighbouring points of equal outcome as rectangles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Region:
    """Rows and columns of a grid, from the first up to and without the last, all of one outcome."""

    outcome: object
    rows: tuple[int, int]
    columns: tuple[int, int]


def regions(outcomes: Sequence[object], width: int) -> list[Region]:
    """Rectangles that cover a grid of `width` columns, given row by row, once each; equal rows are merged.

    Stretches of a row are as long as can be, and grow downwards while the next row has the same stretch.
    """
    open_: dict[tuple[object, int, int], int] = {}
    closed: list[Region] = []
    rows = len(outcomes) // width
    for row in range(rows + 1):
        here = _stretches(outcomes, row * width, width) if row < rows else ()
        going = {stretch: open_.pop(stretch, row) for stretch in here}
        closed += [Region(key[0], (since, row), (key[1], key[2])) for key, since in open_.items()]
        open_ = going
    return sorted(closed, key=lambda region: (region.rows[0], region.columns[0]))


def _stretches(outcomes: Sequence[object], start: int, width: int) -> Iterator[tuple[object, int, int]]:
    first = 0
    for column in range(1, width + 1):
        if column == width or outcomes[start + column] != outcomes[start + first]:
            yield outcomes[start + first], first, column
            first = column
