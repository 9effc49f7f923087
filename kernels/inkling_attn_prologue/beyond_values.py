"""What upstream takes and then reads or writes out of bounds: indices that nobody checks.

Only described values are looked at: a live guard that read elements would wait for the GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from kernels.checking import Fix, Severity, aside
from kernels.inkling_attn_prologue.allocation import KWeightHasNoTaps
from kernels.inkling_attn_prologue.beyond import Hazard
from kernels.inkling_attn_prologue.conversion import NUMBERS
from kernels.inkling_attn_prologue.derived import (
    elements,
    extremes,
    owners,
    stores,
    taps,
    tokens,
    tracks,
    updates,
)
from kernels.inkling_attn_prologue.dimensions import STATE_DIMENSIONS
from kernels.inkling_attn_prologue.signature import DecodeCall, ExtendCall, PrologueCall, VerifyCall
from kernels.spec import TensorSpec
from kernels.values import Full, Listed, Randint, Zeros, as_whole

PADDING = -1
LARGEST_BF16 = 3.3895313892515355e38

Numbers = Sequence[float | int | bool]


def undescribed(call: PrologueCall, *names: str) -> PrologueCall:
    """The call with these tensors left to the fill, which is valid."""
    for name in names:
        if getattr(call, name, None) is not None:
            call = call.with_tensor(name, values=None)
    return call


@dataclass(frozen=True)
class OutOfRange(Hazard):
    """An index outside what it indexes, as the described values prove."""

    category = "values"
    argument: str
    got: int
    last: int

    @classmethod
    def ranges(cls, call: PrologueCall) -> Mapping[str, tuple[int, int, int]]:
        """Argument → entries read, least and first too large index."""
        raise NotImplementedError

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        for name, (count, low, end) in cls.ranges(call).items():
            tensor: TensorSpec | None = getattr(call, name)
            for value in extremes(tensor, count) or ():
                if not low <= value < end:
                    yield cls(name, as_whole(value), end - 1)
                    break

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        names = [found.argument for found in self.find(call)]
        title = f"Pass indices within their buffers in {' and '.join(names)}"
        yield Fix(title, undescribed(call, *names), safe=False, note="find out where the others came from")


@dataclass(frozen=True)
class LocOutOfRange(OutOfRange):
    """A pool slot is an address; a negative one means that the token is not stored."""

    message = "{argument} holds {got}, the pools end at slot {last}"
    reason = "{argument} holds {got} and the last slot is {last}: upstream writes behind the pool, unnoticed"
    looks_at = ("loc.values", "k_buf.shape", "v_buf.shape", "do_store")
    reads_values = True
    requires = "loc below the pools' slots; negative: not stored"
    premises = NUMBERS

    @classmethod
    def ranges(cls, call: PrologueCall) -> Mapping[str, tuple[int, int, int]]:
        pools = [pool.shape[0] for pool in (call.k_buf, call.v_buf) if pool.ndim]
        return {"loc": (tokens(call), -(2**63), min(pools))} if stores(call) and pools else {}

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_tensor("loc", values=Full(cls.valid.k_buf.shape[0]))


@dataclass(frozen=True)
class StateSlotOutOfRange(OutOfRange):
    """-1 alone is padding; any other negative slot lies before the cache."""

    message = "{argument} holds {got}, the caches end at slot {last}"
    reason = "{argument} holds {got}; slots are 0 … {last}, and -1 for padding: another state is overwritten"
    looks_at = ("cache_indices.values", "k_cache.shape", "v_cache.shape")
    reads_values = True
    requires = "cache_indices -1 or a slot of the caches"
    premises = STATE_DIMENSIONS

    @classmethod
    def ranges(cls, call: PrologueCall) -> Mapping[str, tuple[int, int, int]]:
        slots = min(call.k_cache.shape[0], call.v_cache.shape[0])
        return {"cache_indices": (owners(call) if tokens(call) else 0, PADDING, slots)}

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_tensor("cache_indices", values=Full(-2))


@dataclass(frozen=True)
class Tracked(OutOfRange):
    """Where a mask is described, only what it selects is read."""

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        masks = elements(getattr(call, "track_mask", None), owners(call))
        for found in super().find(call):
            count, low, end = cls.ranges(call)[found.argument]
            values = elements(getattr(call, found.argument), count)
            if masks is None or values is None:
                if masks is None or all(masks):
                    yield found
                continue
            each = max(count // max(owners(call), 1), 1)
            read = (value for index, value in enumerate(values) if _at(masks, index // each))
            outside = next((value for value in read if not low <= value < end), None)
            if outside is not None:
                yield cls(found.argument, int(outside), end - 1)


@dataclass(frozen=True)
class TrackSlotOutOfRange(Tracked):
    """A track slot is written, wherever it points."""

    message = "{argument} holds {got}, the caches' last slot is {last}"
    reason = "{argument} holds {got}, outside 0 … {last}: the state is copied out of bounds"
    looks_at = ("track_indices.values", "track_mask.values", "k_cache.shape")
    reads_values = True
    requires = "track_indices slots of the caches"
    premises = STATE_DIMENSIONS

    @classmethod
    def ranges(cls, call: PrologueCall) -> Mapping[str, tuple[int, int, int]]:
        slots = min(call.k_cache.shape[0], call.v_cache.shape[0])
        return {"track_indices": (tokens(call), 0, slots)} if tracks(call) else {}

    @classmethod
    def example(cls) -> PrologueCall:
        slots = Full(cls.valid.k_cache.shape[0])
        rows = cls.valid.loc
        tracked = TensorSpec(rows.shape, rows.dtype, values=slots)
        return cls.valid.replace(track_mask=cls.valid.cache_mask, track_indices=tracked)


@dataclass(frozen=True)
class TrackedRowsOutOfRange(Tracked):
    """Tracked rows are read and a track slot written, wherever they point."""

    message = "{argument} holds {got}, the last index it may hold is {last}"
    reason = "{argument} holds {got}, outside 0 … {last}: rows are copied from or to other memory"
    looks_at = (
        "track_dst.values", "track_rows.values", "track_mask.values", "k_cache.shape", "qkvr.shape",
        "do_cache_update",
    )  # fmt: skip
    requires = "track_dst slots of the caches, track_rows rows of qkvr"
    premises = (*STATE_DIMENSIONS, KWeightHasNoTaps, *NUMBERS)
    reads_values = True

    @classmethod
    def ranges(cls, call: PrologueCall) -> Mapping[str, tuple[int, int, int]]:
        if not updates(call) or not tracks(call):
            return {}
        slots = min(call.k_cache.shape[0], call.v_cache.shape[0])
        rows = owners(call) * (taps(call) - 1)
        return {"track_dst": (owners(call), 0, slots), "track_rows": (rows, 0, tokens(call))}

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_tensor("track_dst", values=Full(cls.valid.k_cache.shape[0]))


@dataclass(frozen=True)
class SlotsShared(Hazard):
    """Two threads that write one place leave either's bytes, or some of both."""

    message = "{argument} names slot {slot} more than once"
    reason = "slot {slot} of the {where} is written for two tokens or sequences at once: either may remain"
    looks_at = (
        "cache_indices.values", "loc.values", "track_indices.values", "track_dst.values", "track_mask.values",
        "do_store",
    )  # fmt: skip
    requires = "working slots, track slots and stored loc all distinct"
    category = "values"
    severity = Severity.WARNING
    premises = NUMBERS
    argument: str
    slot: int
    where: str = aside()
    reads_values = True

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        padded = elements(call.cache_indices, owners(call))
        if stores(call):
            skips = padded if isinstance(call, DecodeCall) else None
            stored = _active(call.loc, tokens(call), [] if skips is None else [s != PADDING for s in skips])
            yield from cls._repeated("loc", "pools", [slot for slot in stored if slot >= 0])
        if isinstance(call, VerifyCall) or (isinstance(call, ExtendCall) and not updates(call)):
            return
        working = [as_whole(slot) for slot in padded or () if slot != PADDING]
        if padded is None:
            working = _pigeonholes(call.cache_indices, owners(call))
        yield from cls._repeated("cache_indices", "state", working)
        name = "track_indices" if isinstance(call, DecodeCall) else "track_dst"
        if tracks(call):
            tracked = _tracked(call, name, padded)
            yield from cls._repeated(name, "state", [slot for _, slot in tracked])
            own = dict(enumerate(padded or ()))
            for owner, slot in tracked:
                if slot in working and own.get(owner) != slot:
                    yield cls(name, slot, "state")
                    break

    @classmethod
    def _repeated(cls, name: str, where: str, slots: list[int]) -> Iterator[Self]:
        for slot, count in Counter(slots).items():
            if count > 1:
                yield cls(name, slot, where)
                return

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        names = dict.fromkeys(found.argument for found in self.find(call))
        title = f"Give every token or sequence a slot of its own in {' and '.join(names)}"
        yield Fix(title, undescribed(call, *names), safe=False)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_tensor("loc", values=Zeros())


@dataclass(frozen=True)
class PaddingNotMasked(Hazard):
    """Padding has no state, so decode reads slot 0's for it, which its owner may be writing."""

    message = "token {token} is padding and its cache_mask is True: slot 0's history is read for it"
    reason = "cache_indices[{token}] is -1 and cache_mask[{token}] True: its results depend on slot 0's owner"
    looks_at = ("cache_indices.values", "cache_mask.values")
    reads_values = True
    requires = "cache_mask False where cache_indices is -1"
    category = "values"
    severity = Severity.WARNING
    token: int

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if not isinstance(call, DecodeCall):
            return
        slots = elements(call.cache_indices, tokens(call)) or ()
        masks = elements(call.cache_mask, tokens(call)) or ()
        for token, (slot, mask) in enumerate(zip(slots, masks, strict=False)):
            if slot == PADDING and mask:
                yield cls(token)
                return

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        slots = elements(call.cache_indices, tokens(call)) or ()
        masks = elements(call.cache_mask, tokens(call)) or ()
        folded = tuple(bool(m and s != PADDING) for s, m in zip(slots, masks, strict=False))
        masked = call.with_tensor("cache_mask", values=Listed(folded))
        yield Fix("Mask padding: cache_mask & (cache_indices >= 0)", masked, safe=True)

    @classmethod
    def example(cls) -> PrologueCall:
        count = tokens(cls.valid)
        indices = Listed((*range(count - 1), PADDING))
        call = cls.valid.with_tensor("cache_indices", values=indices)
        return call.with_tensor("cache_mask", values=Full(True))


@dataclass(frozen=True)
class MaskedStateNotFinite(Hazard):
    """A masked state is multiplied by 0, and 0 times infinity is NaN."""

    message = "{argument} holds {got}, beyond bfloat16, where cache_mask leaves the state out"
    reason = "{argument} holds {got}, infinite as bfloat16: times a mask of 0 it makes the results NaN"
    looks_at = ("k_cache.values", "v_cache.values", "cache_mask.values")
    reads_values = True
    requires = "finite caches, also where masked"
    category = "values"
    argument: str
    got: float

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        masks = extremes(call.cache_mask, owners(call))
        if masks is None or masks[0] > 0:
            return
        for name in ("k_cache", "v_cache"):
            cache: TensorSpec = getattr(call, name)
            for value in extremes(cache, cache.numel) or ():
                if not abs(value) <= LARGEST_BF16:
                    yield cls(name, value)
                    break

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        changed = call
        for found in self.find(call):
            changed = changed.with_tensor(found.argument, values=Zeros())
        yield Fix("Clear slots when they are freed", changed, safe=False)

    @classmethod
    def example(cls) -> PrologueCall:
        call = cls.valid.with_tensor("k_cache", values=Full(1e39))
        return call.with_tensor("cache_mask", values=Zeros())


def _at(values: Numbers, index: int) -> bool:
    """Whether a flag is set; one that is not described may be."""
    return bool(values[index]) if index < len(values) else True


def _active(tensor: TensorSpec | None, count: int, flags: Numbers) -> list[int]:
    """The indices of those whose flag is set; where only bounds are known, as many as must coincide."""
    if tensor is None:
        return []
    exact = elements(tensor, count)
    if exact is None:
        return _pigeonholes(tensor, count) if all(flags) else []
    return [as_whole(value) for index, value in enumerate(exact) if _at(flags, index)]


def _pigeonholes(tensor: TensorSpec, count: int) -> list[int]:
    """The least index twice, where more are drawn than there are to draw from and none is negative."""
    values = tensor.values
    if isinstance(values, Randint) and values.low >= 0 and max(values.high - values.low, 1) < count:
        return [values.low, values.low]
    return []


def _tracked(call: PrologueCall, name: str, padded: Numbers | None) -> list[tuple[int, int]]:
    """Owner and track slot of whatever is surely copied."""
    masks = elements(getattr(call, "track_mask", None), owners(call))
    slots = elements(getattr(call, name, None), owners(call))
    if masks is None or slots is None or (padded is None and isinstance(call, DecodeCall)):
        return []
    copied = enumerate(zip(slots, masks, strict=False))
    found = [(owner, as_whole(slot)) for owner, (slot, mask) in copied if mask]
    if isinstance(call, DecodeCall) and padded is not None:
        found = [(owner, slot) for owner, slot in found if padded[owner] != PADDING]
    return found
