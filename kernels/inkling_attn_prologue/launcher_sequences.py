"""What the compiled launchers refuse of sequences: their number, their tokens, what is tracked of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernels.checking import Fix, aside
from kernels.inkling_attn_prologue.bound import CUDA, RUN, Launched, at
from kernels.inkling_attn_prologue.conversion import NUMBERS
from kernels.inkling_attn_prologue.derived import owners, taps, tokens, updates, whole
from kernels.inkling_attn_prologue.dimensions import (
    IndicesDimensions,
    MasksDimensions,
    OwnersDimensions,
    StartsDimensions,
)
from kernels.inkling_attn_prologue.python_errors import QkvrHasNoRows
from kernels.inkling_attn_prologue.signature import ExtendCall, PrologueCall, VerifyCall
from kernels.spec import TensorSpec
from kernels.upstream import Site


@dataclass(frozen=True)
class DraftsDoNotTileTokens(Launched):
    """The kernel finds a token's sequence by dividing its number by that of the drafted tokens."""

    message = "T != B*q"
    sites = at(verify=404)
    reason = "{rows} rows of qkvr are not {sequences} sequences of {drafted} tokens"
    looks_at = ("qkvr.shape", "cache_indices.shape", "draft_token_num")
    requires = "qkvr of B · draft_token_num rows, draft_token_num positive"
    category = "shape"
    premises = (QkvrHasNoRows, IndicesDimensions, *NUMBERS)
    rows: int = aside()
    sequences: int = aside()
    drafted: int = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if isinstance(call, VerifyCall):
            drafted = whole(call.draft_token_num) or 0
            if drafted <= 0 or tokens(call) != owners(call) * drafted:
                yield cls(tokens(call), owners(call), drafted)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        if self.sequences and self.rows and self.rows % self.sequences == 0:
            drafted = self.rows // self.sequences
            changed = call.replace(draft_token_num=drafted)
            note = "the windows must have room for that many"
            yield Fix(f"Pass draft_token_num={drafted}", changed, safe=False, note=note)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(draft_token_num=2)


@dataclass(frozen=True)
class OwnersTooFew(Launched):
    """Every token looks its sequence up."""

    message = "si must cover T tokens"
    sites = at(extend=1310)
    reason = "si has {got} entries for {rows} tokens"
    looks_at = ("si.shape", "qkvr.shape")
    requires = "si of at least T entries"
    category = "shape"
    premises = (OwnersDimensions,)
    got: int = aside()
    rows: int = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if isinstance(call, ExtendCall) and call.si.shape[0] < tokens(call):
            yield cls(call.si.shape[0], tokens(call))

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        yield Fix(f"Pass si as [{self.rows}]", call.with_tensor("si", shape=(self.rows,)), safe=True)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_tensor("si", shape=(1,))


@dataclass(frozen=True)
class StartsNotPerSequence(Launched):
    """A sequence ends where the next one starts; the last start is the number of tokens."""

    message = "cu must be [B+1]"
    sites = at(extend=1311)
    reason = "cu has {got} entries, and cache_indices {sequences} sequences"
    looks_at = ("cu.shape", "cache_indices.shape")
    requires = "cu of one entry more than cache_indices"
    category = "shape"
    premises = (IndicesDimensions, StartsDimensions)
    got: int = aside()
    sequences: int = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if isinstance(call, ExtendCall) and call.cu.shape[0] != owners(call) + 1:
            yield cls(call.cu.shape[0], owners(call))

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        wanted = self.sequences + 1
        yield Fix(f"Pass cu as [{wanted}]", call.with_tensor("cu", shape=(wanted,), values=None), safe=True)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_tensor("cu", shape=(owners(cls.valid) + 2,))


@dataclass(frozen=True)
class MasksNotPerSequence(Launched):
    """A sequence has one mask for the convolution and one for its state."""

    message = "per-seq arrays must be [B]"
    sites = at(extend=1312)
    reason = "cache_indices has {sequences} sequences, cache_mask {masks} and has_initial_state {initial}"
    looks_at = ("cache_mask.shape", "has_initial_state.shape", "cache_indices.shape")
    requires = "cache_mask and has_initial_state as long as cache_indices"
    category = "shape"
    premises = (IndicesDimensions, MasksDimensions)
    sequences: int = aside()
    masks: int = aside()
    initial: int | str = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if isinstance(call, ExtendCall):
            lengths = (call.cache_mask.shape[0], *call.has_initial_state.shape[:1])
            if any(length != owners(call) for length in lengths):
                yield cls(owners(call), lengths[0], lengths[-1] if len(lengths) > 1 else "without a length")

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        for name in ("cache_mask", "has_initial_state"):
            if getattr(call, name).shape[:1] != (self.sequences,):
                call = call.with_tensor(name, shape=(self.sequences,), values=None)
        yield Fix(f"Pass one mask for each of {self.sequences} sequences", call, safe=True)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_tensor("cache_mask", shape=(owners(cls.valid) + 1,))


@dataclass(frozen=True)
class TrackRowsMissing(Launched):
    """What is copied to a track slot are rows of this call, listed for each sequence."""

    message = "extend track needs gather rows"
    sites = at(extend=1323)
    reason = "track_mask has {masks} entries, and track_rows none"
    looks_at = ("track_mask.shape", "track_rows.shape")
    requires = "track_rows [B, W - 1] with track_mask, or both empty"
    category = "presence"
    masks: int = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if isinstance(call, ExtendCall) and call.track_mask.numel and not call.track_rows.numel:
            yield cls(call.track_mask.numel)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        empty = call.with_tensor("track_mask", shape=(0,), values=None)
        yield Fix("Pass an empty track_mask: track nothing", empty, safe=False)
        shape = (owners(call), max(taps(call) - 1, 1))
        rows = call.with_tensor("track_rows", shape=shape, values=None)
        yield Fix(f"Pass track_rows as {list(shape)}", rows, safe=False)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_tensor("track_rows", shape=(0,))


@dataclass(frozen=True)
class LaunchFailed(Launched):
    """A grid has a block for each token, and a grid of none is an error."""

    message = "CUDA error: {text}"
    at_launch = True
    sites = (*at(verify=509, decode=921, extend=1407), CUDA.at(RUN[ExtendCall], 1437, 1437))
    reason = "there are no {what}, so the grid is empty; the error also meets the next unrelated CUDA call"
    looks_at = ("qkvr.shape", "cache_indices.shape")
    requires = "at least one token; in extend one sequence, where the state is updated"
    category = "shape"
    premises = (QkvrHasNoRows,)
    error: str
    what: str = aside()

    @property
    def site(self) -> Site:
        return [site for site in self.sites if site.function == RUN[type(self.valid)]][-1]

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if isinstance(call, ExtendCall):
            if updates(call) and owners(call) == 0:
                yield cls("invalid argument", "sequences")
        elif tokens(call) == 0:
            yield cls("invalid argument", "tokens")

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        if isinstance(call, ExtendCall):
            sizes = {"cache_indices": 1, "cache_mask": 1, "has_initial_state": 1, "cu": 2}
            owned = call
            for name, size in sizes.items():
                owned = owned.with_tensor(name, shape=(size,), values=None)
            yield Fix("Say which sequence the tokens are", owned, safe=False)
            return
        one = call
        for name in ("qkvr", "cache_indices", "cache_mask", "loc", "k_inter", "v_inter", "track_mask"):
            given: TensorSpec | None = getattr(call, name, None)
            if given is not None and given.ndim:
                one = one.with_tensor(name, shape=(1, *given.shape[1:]), values=None)
        if isinstance(call, VerifyCall):
            one = one.replace(draft_token_num=1)
        note = "skip the call and return empty results; a CUDA graph passes a row of padding"
        yield Fix("Call it with one token or not at all", one, safe=False, note=note)

    def library_fault(self, call: PrologueCall, /) -> str:
        if isinstance(call, ExtendCall):
            return ""
        return "an empty batch asks for nothing unusual: the launcher launches an empty grid"

    @classmethod
    def example(cls) -> PrologueCall:
        call = cls.valid
        if isinstance(call, ExtendCall):
            for name, size in (("cache_indices", 0), ("cache_mask", 0), ("has_initial_state", 0), ("cu", 1)):
                call = call.with_tensor(name, shape=(size,))
            for name in ("track_mask", "track_dst"):
                call = call.with_tensor(name, shape=(0,))
            return call.with_tensor("track_rows", shape=(0, 3))
        for name in ("qkvr", "cache_indices", "cache_mask", "loc"):
            call = call.with_tensor(name, shape=(0, *getattr(call, name).shape[1:]))
        return call
