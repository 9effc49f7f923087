"""The shape of the launches of sparse_attn_v4_paged_decode: from sizes and the device alone, never values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from kernels.sparse_attn_v4_paged_decode.launches import next_power_of_two, previous_power_of_two

if TYPE_CHECKING:
    from torch import Tensor

MOST_SPLITS = 64
SMALLEST_DOT = 16
"""The matrix units' smallest dimension."""

MOST_ELEMENTS = 32_768
"""Of an accumulator: 64 heads of 512 columns fill half of a multiprocessor's registers."""

SPARE_BYTES = 2048
"""Shared memory of a program beside its tiles."""

WIDEST_FOR_HOPPER = 512
"""Columns of a tile of 32 slots: five such tiles and half of the queries fill a program's shared memory."""


@dataclass(frozen=True)
class Plan:
    """How a call is cut into programs.

    hopper       kernel of hopper.py, else that of kernel.py
    block_h      heads of a program; head_blocks of these cover all heads
    block_k      slots of a tile
    block_d      the width, rounded up to a power of two
    pieces       accumulators that share the width
    splits       programs that share a token's slots
    """

    hopper: bool
    block_h: int
    head_blocks: int
    block_k: int
    block_d: int
    pieces: int
    splits: int
    warps: int

    @property
    def padded_heads(self) -> int:
        """Heads of all blocks."""
        return self.block_h * self.head_blocks

    def join_columns(self, tokens: int, heads: int, processors: int) -> int:
        """Columns that a program of the joining kernel takes: all, unless that leaves the device idle."""
        idle = max(1, 2 * processors // max(tokens * heads, 1))
        return max(min(32, self.block_d), self.block_d // next_power_of_two(idle))


@lru_cache(maxsize=1024)
def plan(
    tokens: int,
    heads: int,
    width: int,
    listed: int,
    splits: int | None,
    *,
    hopper: bool,
    processors: int,
    shared_bytes: int,
) -> Plan:
    """The plan for T tokens of H heads of width D that list `listed` slots together.

    splits        what the caller asks for; None: as many as fill the device
    hopper        the tensors and the device are what hopper.py needs
    processors    multiprocessors of the device
    shared_bytes  shared memory that one program may have
    """
    if hopper:
        block_h, block_k, block_d = 64, 32, max(128, next_power_of_two(width))
    else:
        block_d = max(SMALLEST_DOT, next_power_of_two(width))
        block_h, block_k = _portable_tile(heads, block_d, shared_bytes)
    head_blocks = -(-heads // block_h)
    if splits is None:
        splits = _splits(tokens * head_blocks, -(-listed // max(tokens, 1)), block_k, processors)
    return Plan(
        hopper=hopper,
        block_h=block_h,
        head_blocks=head_blocks,
        block_k=block_k,
        block_d=block_d,
        pieces=2 if block_d >= 256 else 1,
        splits=int(splits),
        warps=8 if not hopper and block_h * block_d >= 16_384 else 4,
    )


def fits_hopper(q: Tensor, unified_kv: Tensor) -> bool:
    """Whether hopper.py can read these: dense rows that start at multiples of 16 bytes, at most 512 wide.

    Strides are asked to be multiples of 16 elements, which is what Triton specialises a kernel for.
    """
    aligned = unified_kv.data_ptr() % 16 == 0 and unified_kv.stride(0) % 16 == 0 and q.data_ptr() % 16 == 0
    return aligned and unified_kv.stride(1) == 1 and q.stride(2) == 1 and q.shape[2] <= WIDEST_FOR_HOPPER


def _portable_tile(heads: int, block_d: int, shared_bytes: int) -> tuple[int, int]:
    """Heads and slots of a program: the largest whose queries and tiles in flight fit the shared memory."""
    most = min(64, max(SMALLEST_DOT, next_power_of_two(heads)))
    for block_h, block_k in ((64, 64), (64, 32), (32, 64), (32, 32), (32, 16), (16, 32)):
        queries = min(block_h, most) * block_d * 2
        # Three tiles of rows in flight; or of codes two, and two that are dequantised.
        tiles = block_k * block_d * 6
        if min(block_h, most) * block_d <= MOST_ELEMENTS and queries + tiles + SPARE_BYTES <= shared_bytes:
            return min(block_h, most), block_k
    return SMALLEST_DOT, SMALLEST_DOT


def _splits(programs: int, length: int, block_k: int, processors: int) -> int:
    """The largest power of two that the device runs at once and that leaves each split of an average token a
    tile.
    """
    most = min(processors // max(programs, 1), -(-length // block_k), MOST_SPLITS)
    return previous_power_of_two(most)
