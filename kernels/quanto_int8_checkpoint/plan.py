"""How the qint8 linear is computed, by sizes alone: T tokens, N rows, K columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache


@dataclass(frozen=True)
class Plan:
    """Tile of a program, splits of the columns, warps, and iterations whose loads are in flight.

    One token at a time where `tokens` is 0; where `rows` is 0 too, torch multiplies by the unpacked weight.
    """

    rows: int
    tokens: int
    columns: int
    splits: int = 1
    warps: int = 4
    stages: int = 3


UNPACKED = Plan(0, 0, 0)

TILES = (
    Plan(64, 16, 128, stages=4),
    Plan(64, 32, 128, stages=4),
    Plan(64, 64, 128, stages=3),
    Plan(64, 128, 64, stages=4),
)
"""Tiles of `linear_kernel`, each for as many tokens as it has."""

FEW_TOKENS = TILES[-1].tokens
"""Up to here the codes' bytes are the bound, and not the matrix units."""

FEW_WIDE_TOKENS = 4
"""The same in float32, one token at a time: the codes come from the cache again for each."""

DEVICE_FULL = 2 * 132
"""Programs that fill the device; splits of the columns aim at it."""

SPARE = 16 << 10
"""Bytes of shared memory that the compiler takes beside the stages of loads."""


def unpacks(tokens: int, itemsize: int) -> bool:
    """Whether so many tokens, of elements of so many bytes, are multiplied as upstream does it."""
    return tokens > (FEW_TOKENS if itemsize == 2 else FEW_WIDE_TOKENS)


@lru_cache(maxsize=4096)
def choose_plan(
    tokens: int, rows: int, columns: int, itemsize: int, shared: int, *, interpreted: bool = False
) -> Plan:
    """The plan for [tokens, columns] activations of `itemsize` bytes each and [rows, columns] codes.

    It depends on sizes and the device's shared memory alone, so a captured graph may replay it. The
    interpreter pays per program: its tiles are as large as the problem, within reason.
    """
    if unpacks(tokens, itemsize):
        return UNPACKED
    single = tokens == 1 or itemsize == 4
    if interpreted:
        tile = Plan(_power(rows, 16, 64), _power(tokens, 16, 64), _power(columns, 16, 256))
        return replace(tile, tokens=0) if single else replace(tile, splits=min(2, -(-columns // 64)))
    if single:
        return Plan(8, 0, 512, warps=2)
    tile = next(tile for tile in TILES if tokens <= tile.tokens)
    programs = -(-rows // tile.rows)
    stage = tile.columns * (tile.rows + tile.tokens * itemsize)
    return replace(
        tile,
        splits=max(1, min(8, DEVICE_FULL // max(programs, 1), columns // 512)),
        stages=max(1, min(tile.stages, (shared - SPARE) // stage)),
    )


def _power(value: int, least: int, most: int) -> int:
    """The smallest power of two ≥ value, within the bounds."""
    return min(max(1 << (value - 1).bit_length(), least), most)
