"""What upstream takes and then reads or writes out of bounds: sizes nobody checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Self

from kernels.checking import Fix, aside
from kernels.inkling_attn_prologue.allocation import SIZES, KWeightHasNoTaps
from kernels.inkling_attn_prologue.beyond import Hazard
from kernels.inkling_attn_prologue.conversion import NUMBERS, POOLS
from kernels.inkling_attn_prologue.derived import (
    owners,
    slot_size,
    stores,
    taps,
    tokens,
    tracks,
    updates,
    whole,
    width,
)
from kernels.inkling_attn_prologue.dimensions import STATE_DIMENSIONS, WINDOW_DIMENSIONS, WeightDimensions
from kernels.inkling_attn_prologue.signature import HEAD, DecodeCall, ExtendCall, PrologueCall, VerifyCall
from kernels.spec import Shape, TensorSpec


def _entries(name: str, tensor: TensorSpec) -> int:
    """Entries of an array; track slots are found by their first stride, so only the first size counts."""
    return tensor.shape[0] if name in ("track_indices", "track_dst") and tensor.ndim else tensor.numel


@dataclass(frozen=True)
class TooShort(Hazard):
    """The kernel reads one entry for each token or sequence, whatever the array's length."""

    message = "{argument} has {got} entries, {needed} are read"
    reason = "{argument} has {got} entries and the kernel reads {needed}: what lies behind decides the rest"
    looks_at = (
        "cache_indices.shape", "cache_mask.shape", "loc.shape", "track_mask.shape", "track_indices.shape",
        "track_rows.shape", "track_dst.shape", "qkvr.shape",
    )  # fmt: skip
    requires = "an entry for each token or sequence in every index array and mask"
    category = "shape"
    premises = (KWeightHasNoTaps, *NUMBERS)
    argument: str
    got: int
    needed: int

    @staticmethod
    def needs(call: PrologueCall) -> Mapping[str, int]:
        """Entries read of each array."""
        count, rows = owners(call), tokens(call)
        needs = {"cache_indices": count, "cache_mask": count}
        if stores(call):
            needs["loc"] = rows
        if isinstance(call, DecodeCall) and tracks(call):
            needs |= {"track_mask": rows, "track_indices": rows}
        if updates(call) and tracks(call):
            needs |= {"track_mask": count, "track_dst": count, "track_rows": count * (taps(call) - 1)}
        return needs if rows else {}

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        for name, needed in cls.needs(call).items():
            tensor: TensorSpec | None = getattr(call, name)
            if tensor is not None and _entries(name, tensor) < needed:
                yield cls(name, _entries(name, tensor), needed)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        names, changed = [], call
        for name, needed in self.needs(call).items():
            tensor: TensorSpec | None = getattr(call, name)
            if tensor is not None and _entries(name, tensor) < needed:
                rows = name == "track_rows"
                shape = (owners(call), taps(call) - 1) if rows else (needed,)
                names.append(f"{name} as {list(shape)}")
                changed = changed.with_tensor(name, shape=shape, values=None)
        yield Fix(f"Pass {' and '.join(names)}", changed, safe=True)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_tensor("loc", shape=(1,))


@dataclass(frozen=True)
class TrackMaskTooLong(Hazard):
    """A mask entry without a sequence is never read, and says that two arrays are of different batches."""

    message = "track_mask has {got} entries for {sequences} sequences"
    reason = "track_mask has {got} entries and there are {sequences} sequences: the rest is not tracked"
    looks_at = ("track_mask.shape", "cache_indices.shape")
    requires = "track_mask of one entry a sequence, or empty"
    category = "shape"
    premises = (KWeightHasNoTaps,)
    got: int
    sequences: int

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if isinstance(call, ExtendCall) and call.track_mask.numel > owners(call):
            yield cls(call.track_mask.numel, owners(call))

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        shape = (self.sequences,)
        cut = call.with_tensor("track_mask", shape=shape, values=None)
        yield Fix(f"Pass track_mask as {list(shape)}", cut, safe=True)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_tensor("track_mask", shape=(owners(cls.valid) + 1,))


@dataclass(frozen=True)
class GammaNotAHead(Hazard):
    """A norm has a factor for each of a head's 128 elements, side by side."""

    message = "{argument} is {shape} with strides {strides}, 128 factors side by side are read"
    reason = "{argument} is {shape} with strides {strides}; the kernel reads 128 neighbouring numbers"
    looks_at = ("q_gamma.shape", "k_gamma.shape", "q_gamma.strides", "k_gamma.strides")
    requires = "q_gamma and k_gamma [128], contiguous"
    category = "shape"
    argument: str
    shape: Shape
    strides: Shape

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        for name in ("q_gamma", "k_gamma"):
            gamma: TensorSpec = getattr(call, name)
            if gamma.numel != HEAD or not gamma.is_contiguous:
                yield cls(name, gamma.shape, gamma.strides)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        names = [found.argument for found in self.find(call)]
        changed = call
        for name in names:
            changed = changed.with_tensor(name, shape=(HEAD,), offset=0)
        yield Fix(f"Pass {' and '.join(names)} as [128]", changed, safe=False)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_tensor("q_gamma", shape=(1,))


@dataclass(frozen=True)
class PoolHeadsDiffer(Hazard):
    """The pool is taken for rows of dkv elements; of wider slots, a number means another place."""

    message = "a slot of {argument} has {got} elements, dkv is {dkv_given}"
    reason = (
        "a slot of {argument} is {shape}, {got} elements, and dkv is {dkv_given}: the pool is split into "
        "other slots, and what is stored overwrites a neighbour's"
    )
    looks_at = ("k_buf.shape", "v_buf.shape", "dkv", "do_store")
    requires = "pools [S, dkv / 128, 128]"
    category = "shape"
    premises = (*POOLS, *NUMBERS)
    argument: str
    got: int
    dkv_given: int
    shape: Shape = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        for name in ("k_buf", "v_buf"):
            pool: TensorSpec = getattr(call, name)
            if stores(call) and slot_size(pool) != call.dkv:
                yield cls(name, slot_size(pool), call.dkv, pool.shape[1:])

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        shape = (call.k_buf.shape[0] if call.k_buf.ndim else 1, width(call.dkv) // HEAD, HEAD)
        fixed = call.with_tensor("k_buf", shape=shape).with_tensor("v_buf", shape=shape)
        note = "where dkv is right; else pass the dkv of the pool's heads"
        yield Fix(f"Pass pools of {shape[1]} heads, {list(shape)}", fixed, safe=False, note=note)

    @classmethod
    def example(cls) -> PrologueCall:
        call = cls.valid
        for name in ("k_buf", "v_buf"):
            slots, heads, head = getattr(call, name).shape
            call = call.with_tensor(name, shape=(slots, 2 * heads, head))
        return call


@dataclass(frozen=True)
class PoolNotWholePages(Hazard):
    """Scale buffers are counted in whole pages, rounded down; a slot behind the last has no scales."""

    message = "the pools have {slots} slots, no multiple of page_size {page}"
    reason = (
        "{slots} slots are {pages} pages of {page} and {left} slots more: the scales of those are written "
        "behind the buffer"
    )
    looks_at = ("k_buf.shape", "v_buf.shape", "page_size", "mxfp8_quant")
    requires = "pools of whole pages with mxfp8_quant"
    category = "divisibility"
    premises = NUMBERS
    slots: int
    page: int
    pages: int = aside()
    left: int = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        page = whole(call.page_size) or 0
        if not call.mxfp8_quant or page <= 0:
            return
        for pool in (call.k_buf, call.v_buf):
            slots = pool.shape[0] if pool.ndim else 0
            if slots % page:
                yield cls(slots, page, slots // page, slots % page)
                return

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        counted = isinstance(call.page_size, int) and isinstance(call.dkv, int)  # a caller passes anything
        if not (counted and call.k_buf.ndim and call.v_buf.ndim):
            return
        pages = -(-max(call.k_buf.shape[0], call.v_buf.shape[0]) // self.page)
        changed = call
        for name in ("k_buf", "v_buf"):
            changed = changed.with_tensor(name, shape=(pages * self.page, *getattr(call, name).shape[1:]))
        scales = changed.new_scales()
        note = "do not leave a scale buffer uninitialised: an untouched 0xFF byte would read as NaN"
        title = f"Give the pools {pages} whole pages, and scale buffers to match"
        yield Fix(title, changed.replace(sfk=scales, sfv=scales), safe=True, note=note)

    @classmethod
    def example(cls) -> PrologueCall:
        call = cls.valid
        for name in ("k_buf", "v_buf"):
            call = call.with_tensor(name, shape=(300, *getattr(call, name).shape[1:]))
        return call.quantized()


@dataclass(frozen=True)
class SizesOutOfStep(Hazard):
    """State, weights and windows are addressed by the convolution's width and dkv, not by their sizes."""

    message = "{argument} is {shape}, the kernel reads {wanted}"
    reason = "{argument} is {shape}; the kernel reads {wanted}, out of bounds or other taps and channels"
    looks_at = (
        "k_cache.shape", "v_cache.shape", "k_weight.shape", "v_weight.shape", "k_inter.shape",
        "v_inter.shape", "dkv", "draft_token_num", "cache_indices.shape",
    )  # fmt: skip
    requires = "caches [N, W - 1, >= dkv] of one N, weights [>= dkv, W], windows [>= B, >= n, W - 1, >= dkv]"
    category = "shape"
    premises = (*SIZES, KWeightHasNoTaps, *STATE_DIMENSIONS, *WINDOW_DIMENSIONS, WeightDimensions, *NUMBERS)
    argument: str
    shape: Shape
    wanted: str

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        rows, dkv, slots = taps(call), width(call.dkv), call.k_cache.shape[0]
        state = f"[{max(slots, 1)}, {rows - 1}, at least {dkv}]"
        for name in ("k_cache", "v_cache"):
            shape = getattr(call, name).shape
            fits = len(shape) == 3 and shape[:2] == (max(slots, 1), rows - 1) and shape[2] >= dkv
            if not fits and tokens(call):
                yield cls(name, shape, state)
        for name in ("k_weight", "v_weight"):
            shape = getattr(call, name).shape
            if shape[0] < dkv or shape[1:2] != (rows,) or prod(shape[2:]) != 1:
                yield cls(name, shape, f"[at least {dkv}, {rows}]")
        if isinstance(call, VerifyCall):
            count, drafted = owners(call), whole(call.draft_token_num) or 0
            for name in ("k_inter", "v_inter"):
                shape = getattr(call, name).shape
                room = len(shape) == 4 and shape[0] >= count and shape[1] >= drafted
                if not room or shape[2] != rows - 1 or shape[3] < dkv:
                    least = f"[at least {count}, at least {drafted}, {rows - 1}, at least {dkv}]"
                    yield cls(name, shape, least)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        rows, dkv = taps(call), width(call.dkv)
        slots = max(call.k_cache.shape[0], call.v_cache.shape[0], 1)
        channels = max(dkv, call.k_cache.shape[-1], call.v_cache.shape[-1])
        shapes: dict[str, Shape] = dict.fromkeys(("k_cache", "v_cache"), (slots, rows - 1, channels))
        shapes |= dict.fromkeys(("k_weight", "v_weight"), (max(dkv, call.k_weight.shape[0]), rows))
        if isinstance(call, VerifyCall):
            window = (owners(call), whole(call.draft_token_num) or 0, rows - 1, dkv)
            shapes |= dict.fromkeys(("k_inter", "v_inter"), window)
        wrong = {found.argument for found in self.find(call)}
        pairs = [pair for pair in ("cache", "weight", "inter") if any(name.endswith(pair) for name in wrong)]
        changed = call
        said = []
        for pair in pairs:
            for name in (f"k_{pair}", f"v_{pair}"):
                changed = changed.with_tensor(name, shape=shapes[name], offset=0)
            said.append(f"k_{pair} and v_{pair} as {list(shapes[f'k_{pair}'])}")
        yield Fix(f"Allocate {', '.join(said)}", changed, safe=False)

    @classmethod
    def example(cls) -> PrologueCall:
        call = cls.valid
        for name in ("k_cache", "v_cache"):
            slots, _, channels = getattr(call, name).shape
            call = call.with_tensor(name, shape=(slots, 2, channels))
        return call


ON_SIZES: tuple[type[Hazard], ...] = (
    TooShort,
    GammaNotAHead,
    PoolHeadsDiffer,
    PoolNotWholePages,
    SizesOutOfStep,
)
