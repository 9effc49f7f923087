"""What upstream takes and then reads out of bounds: checks of our own on what the index lists of
sparse_attn_v4_paged_decode hold.

They judge described values, and of those only the ones that a token reads: entries of kv_indices past the
last span may hold anything. Values left to the fill are right by construction; live tensors are not read,
since that would wait for the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Self

from kernels.checking import Fix, aside
from kernels.sparse_attn_v4_paged_decode.beyond import Hazard
from kernels.sparse_attn_v4_paged_decode.beyond_lists import SpansTooFew
from kernels.sparse_attn_v4_paged_decode.python_errors import POOL_STRIDES, UNPACKED
from kernels.sparse_attn_v4_paged_decode.reads import elements, finite, held, listed_spans, spans
from kernels.sparse_attn_v4_paged_decode.signature import VALID, SparseCall
from kernels.values import Arange, Full, Listed, Randn, Values, printable

REWRITTEN = 4096
"""Entries of index lists that a fix writes out."""


@dataclass(frozen=True)
class SpansOutOfRange(Hazard):
    """A token reads every entry of its span, wherever the list ends."""

    message = "kv_indptr holds {got}, outside 0 … {listed}"
    reason = (
        "kv_indptr holds {got} and kv_indices has {listed} entries: a token whose span starts or ends there "
        "takes other memory for slots"
    )
    looks_at = ("kv_indptr.values", "kv_indices.shape", "q.shape")
    requires = "offsets from 0 to the length of kv_indices"
    category = "values"
    premises = (*UNPACKED, SpansTooFew)
    reads_values = True
    got: float
    listed: int

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        listed = call.kv_indices.numel
        used = call.q.shape[0] + 1
        for value in _indices(call.kv_indptr.values, [range(used)] if used > 1 else []):
            if not 0 <= value <= listed:
                yield cls(printable(value), listed)
                return

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        values = call.kv_indptr.values
        if isinstance(values, Listed) and all(map(finite, values.flat())):
            clamped = tuple(int(min(max(value, 0), self.listed)) for value in values.flat())
            yield Fix(
                f"Clamp kv_indptr to 0 … {self.listed}",
                call.with_tensor("kv_indptr", values=Listed(clamped)),
                safe=False,
                note="tokens lose slots: find out where the list was cut",
            )
        yield as_filled(call, "kv_indptr", f"Pass offsets from 0 to {self.listed}")

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_tensor("kv_indptr", values=Listed((0, 3, 12)))


@dataclass(frozen=True)
class SpansDecrease(Hazard):
    """A span that ends before it starts has no slots, and a token without slots gets zeros."""

    message = "kv_indptr falls from {start} to {stop}"
    reason = (
        "kv_indptr falls from {start} to {stop}, so that token reads no slot and its result is zeros, not an "
        "error; lengths passed in place of offsets look like this"
    )
    looks_at = ("kv_indptr.values", "q.shape")
    requires = "offsets that never decrease"
    category = "values"
    premises = (*UNPACKED, SpansTooFew)
    reads_values = True
    start: float
    stop: float

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        tokens, values = call.q.shape[0], call.kv_indptr.values
        if isinstance(values, Listed):
            for start, stop in listed_spans(values, tokens):
                if stop < start:
                    yield cls(printable(start), printable(stop))
                    return
        elif isinstance(values, Arange) and values.step < 0 < tokens:
            yield cls(printable(values.start), printable(values.start + values.step))

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        values, needed = call.kv_indptr.values, call.q.shape[0] + 1
        lengths = list(values.flat()) if isinstance(values, Listed) else []
        if len(lengths) in (needed - 1, needed) and all(finite(n) and n >= 0 for n in lengths):
            leading = [] if len(lengths) == needed and lengths[0] == 0 else [0]
            sums = _running_sums([*leading, *map(int, lengths)])
            if len(sums) == needed and sums[-1] <= call.kv_indices.numel:
                yield Fix(
                    "Take running sums of kv_indptr: they are lengths",
                    call.with_tensor("kv_indptr", values=Listed(tuple(sums))),
                    safe=False,
                    note="right where each entry counts a token's slots",
                )
        yield as_filled(call, "kv_indptr", "Pass offsets in ascending order")

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_tensor("kv_indptr", values=Listed((0, 5, 3)))


@dataclass(frozen=True)
class SlotsOutOfRange(Hazard):
    """Slots are added to the pool's address as they are: there is no sentinel and no bound."""

    message = "kv_indices holds {got}, outside 0 … {last}"
    reason = (
        "a token reads slot {got} and the pool has {slots}: near the pool, other memory is taken for keys "
        "(results of 1e37 were seen); far from it, the access is illegal and the GPU context is lost"
    )
    looks_at = ("kv_indices.values", "kv_indptr.values", "unified_kv.shape")
    requires = "every slot that a token reads in 0 … P - 1"
    category = "values"
    premises = (*UNPACKED, *POOL_STRIDES, SpansTooFew)
    reads_values = True
    got: float
    last: int
    slots: int = aside()

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        slots = call.unified_kv.shape[0]
        for value in _indices(held(call, "kv_indices"), spans(call)):
            if not 0 <= value < slots:
                yield cls(printable(value), slots - 1, slots)
                return

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        if self.got < 0 and (packed := _without_negative_slots(call)):
            yield Fix(
                "Leave negative slots out of kv_indices and shorten the spans",
                packed,
                safe=True,
                note="the kernel has no sentinel for an absent slot",
            )
        if not self.slots:
            yield Fix(
                "Read no slot: the pool is empty",
                call.with_tensor("kv_indptr", values=Full(0)),
                safe=False,
                note="every result is zeros",
            )
        else:
            yield as_filled(call, "kv_indices", f"Pass slots from 0 to {self.last}")

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_tensor("kv_indices", values=Listed((5, 0, -1, 2, 2, 6, 1, -1)))


def as_filled(call: SparseCall, name: str, title: str) -> Fix[SparseCall]:
    """Other values, which only the caller knows: here those that fill what is not described."""
    return Fix(title, call.with_tensor(name, values=None), safe=False, note="shown with values of ours")


def _indices(values: Values | None, places: list[range]) -> Iterator[float]:
    """Indices in some places; normal values are no indices and have no bounds."""
    if isinstance(values, Randn) and values.std and any(places):
        yield from (-inf, inf)
    yield from elements(values, places)


def _without_negative_slots(call: SparseCall) -> SparseCall | None:
    """The call with packed lists, where both lists tell their elements and are short."""
    slots, offsets, tokens = call.kv_indices.values, held(call, "kv_indptr"), call.q.shape[0]
    if not isinstance(slots, Listed) or max(call.kv_indices.numel, tokens) > REWRITTEN:
        return None
    match offsets:
        case Listed():
            pairs = listed_spans(offsets, tokens)
        case Arange(start=start, step=step):
            pairs = [(start + step * token, start + step * (token + 1)) for token in range(tokens)]
        case _:
            return None
    flat = list(slots.flat())
    if len(pairs) != tokens or len(flat) < call.kv_indices.numel or not all(map(finite, flat)):
        return None
    kept: list[int] = []
    starts = [0]
    for start, stop in pairs:
        kept += [int(slot) for slot in flat[int(start) : int(stop)] if slot >= 0]
        starts.append(len(kept))
    return call.replace(
        kv_indices=replace(call.kv_indices, shape=(len(kept),), values=Listed(tuple(kept))),
        kv_indptr=replace(call.kv_indptr, shape=(len(starts),), values=Listed(tuple(starts))),
    )


def _running_sums(lengths: list[int]) -> list[int]:
    sums: list[int] = []
    for length in lengths:
        sums.append(length + (sums[-1] if sums else 0))
    return sums


ON_SPANS = (SpansOutOfRange, SpansDecrease)
ON_SLOTS = (SlotsOutOfRange,)
