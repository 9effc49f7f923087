"""Sizes of partial results that torch takes for none, and all that fails behind upstream's own checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Self

from kernels.checking import Given, aside
from kernels.dtypes import DType
from kernels.sparse_attn_v4_paged_decode.launch_errors import (
    LEAST_SIZE,
    HeadTooNarrowToJoin,
    MultiprocessorsUnknown,
    NothingToReduce,
    PointerOnHost,
    SinkOnHost,
    Splits,
    SplitsNegative,
    SplitsNotAnInteger,
    SplitsTooLarge,
)
from kernels.sparse_attn_v4_paged_decode.launches import padded_heads
from kernels.sparse_attn_v4_paged_decode.python_errors import POOL_STRIDES, SCALE_CONVERTED, UNPACKED
from kernels.sparse_attn_v4_paged_decode.signature import VALID, SparseCall


@dataclass(frozen=True)
class PartialsOverflow(Splits):
    """The bytes of partial results are counted in 64 bits, the sign's among them."""

    raises = RuntimeError
    message = "Storage size calculation overflowed with sizes={sizes}"
    reason = "partial results of {splits_used} splits, {sizes} of float32, have more than 2^63 - 1 bytes"
    looks_at = ("kv_splits", "q.shape")
    category = "values"
    sizes: list[int]
    splits_used: int = aside()

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        used: object = call.kv_splits
        if not isinstance(used, int) or not 1 < used < 2**63:
            return
        tokens, heads, width = call.q.shape
        shape = [tokens, used, padded_heads(heads)]
        for sizes in (shape, [*shape, width]):
            if prod(sizes) * DType.F32.itemsize >= 2**63:
                yield cls(sizes, used)
                return

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.replace(kv_splits=2**63 - 1)


@dataclass(frozen=True)
class SplitsTakenForASymbol(Splits):
    """Numbers below -2^62 are how torch writes down sizes that it does not know yet."""

    raises = RuntimeError
    message = "{place}: SymIntArrayRef expected to contain only concrete integers"
    reason = "kv_splits is {got}; torch takes sizes below -2^62 for symbols"
    category = "values"
    place: str
    """A file and line of the build of torch."""
    got: int = aside()

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        used: object = call.kv_splits
        if isinstance(used, int) and -(2**63) <= used < LEAST_SIZE:
            yield cls("…", used)

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.replace(kv_splits=-(2**63))


AFTER_CHECKS = (
    *UNPACKED,
    *SCALE_CONVERTED,
    MultiprocessorsUnknown,
    Given(
        UNPACKED,
        (SplitsNotAnInteger, SplitsTooLarge, SplitsTakenForASymbol, SplitsNegative, PartialsOverflow),
    ),
    *POOL_STRIDES,
    PointerOnHost,
    Given(UNPACKED, (NothingToReduce, HeadTooNarrowToJoin, SinkOnHost)),
)
"""What fails behind upstream's own checks, in order."""
