"""What upstream takes and then reads or writes elsewhere: strides, addresses and offsets nobody checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

from kernels.checking import Fix, Severity
from kernels.dtypes import DType
from kernels.inkling_attn_prologue.allocation import SIZES, KWeightHasNoTaps
from kernels.inkling_attn_prologue.beyond import Hazard
from kernels.inkling_attn_prologue.conversion import NUMBERS, POOLS
from kernels.inkling_attn_prologue.derived import offsets, pool_rows, stores, taps, tokens, updates, width
from kernels.inkling_attn_prologue.dimensions import (
    STATE_DIMENSIONS,
    WINDOW_DIMENSIONS,
    QkvrDimensions,
    WeightDimensions,
)
from kernels.inkling_attn_prologue.signature import HEAD, ExtendCall, PrologueCall, VerifyCall
from kernels.spec import Shape, TensorSpec

VECTOR_BYTES = 16
"""Bytes that a thread moves at once."""


@dataclass(frozen=True)
class Misaligned(Hazard):
    """A thread moves 16 bytes at once, from or to a multiple of 16."""

    message = "{what} of {argument} is {got} bytes, no multiple of {granule}"
    reason = (
        "{what} of {argument} is {got} bytes: the kernel faults with a misaligned address, after which the "
        "process cannot use the GPU any more"
    )
    looks_at = (
        "qkvr.offset", "k_cache.offset", "v_cache.offset", "k_cache.strides", "v_cache.strides",
        "k_inter.offset", "v_inter.offset", "k_inter.strides", "v_inter.strides", "k_weight.offset",
        "v_weight.offset", "q_gamma.offset", "k_gamma.offset", "k_buf.offset", "v_buf.offset",
    )  # fmt: skip
    requires = "addresses, and strides of caches and windows, multiples of 16 bytes; FP8 pools 8"
    category = "alignment"
    premises = (*STATE_DIMENSIONS, *WINDOW_DIMENSIONS, WeightDimensions, KWeightHasNoTaps, *NUMBERS)
    what: str
    argument: str
    got: int
    granule: int

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        for name, granule in cls.granules(call).items():
            tensor: TensorSpec = getattr(call, name)
            if tensor.address % granule:
                yield cls("the address", name, tensor.address, granule)
        for name, dims in (("k_cache", 2), ("v_cache", 2), ("k_inter", 3), ("v_inter", 3)):
            found: TensorSpec | None = getattr(call, name, None)
            for dim in range(dims if found is not None and found.numel else 0):
                assert found is not None
                got = found.strides[dim] * found.itemsize
                if found.shape[dim] > 1 and got % VECTOR_BYTES:
                    yield cls(f"stride {dim}", name, got, VECTOR_BYTES)

    @staticmethod
    def granules(call: PrologueCall) -> Mapping[str, int]:
        """Bytes that the address of each tensor must be a multiple of."""
        vectors = ["qkvr", "k_cache", "v_cache", "q_gamma", "k_gamma"]
        vectors += ["k_inter", "v_inter"] * isinstance(call, VerifyCall)
        granules = dict.fromkeys(vectors, VECTOR_BYTES)
        if taps(call) == 4 and call.k_weight.strides[0] == 4:
            granules |= {"k_weight": 8, "v_weight": 8}
        if stores(call):
            granules |= dict.fromkeys(("k_buf", "v_buf"), 8 if call.mxfp8_quant else VECTOR_BYTES)
        return granules if tokens(call) else {}

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        wrong = dict.fromkeys(found.argument for found in self.find(call))
        pairs = {name.partition("_")[2] for name in wrong if name[:2] in ("k_", "v_")} - {"gamma"}
        names = [name for name in wrong if name.partition("_")[2] not in pairs]
        names += [f"{side}_{pair}" for pair in sorted(pairs) for side in "kv"]
        changed = call
        for name in names:
            tensor: TensorSpec = getattr(call, name)
            moved = replace(tensor, offset=0) if name == "qkvr" else tensor.contiguous()
            changed = changed.replace(**{name: moved})
        note = "what is written must be the buffer itself, not a copy of it"
        title = f"Start {' and '.join(names)} at an address of its own"
        yield Fix(title, changed, safe=True, note=note)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_tensor("qkvr", offset=1)


@dataclass(frozen=True)
class SlicesOutsideRow(Hazard):
    """Slices are found by offsets alone: one that leaves its row reads the next one, or other memory."""

    message = "the {which} slice is {start} … {end} of a row of {row}"
    reason = "the {which} slice is {start} … {end}, and a row has {row} elements: neighbours are read"
    looks_at = ("q_off", "k_off", "v_off", "dq", "dkv", "qkvr.strides", "qkvr.offset")
    requires = "0 <= offset and offset + width <= qkvr.stride(0)"
    category = "values"
    premises = (*SIZES, QkvrDimensions, *NUMBERS)
    which: str
    start: int
    end: int
    row: int

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        row = row_of(call)
        for which, start, end in slices(call):
            if tokens(call) and not 0 <= start <= end <= row:
                yield cls(which, start, end, row)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        dq, dkv = width(call.dq), width(call.dkv)
        if dq + 2 * dkv <= self.row:
            packed = call.replace(q_off=0, k_off=dq, v_off=dq + dkv)
            title = f"Pass q_off=0, k_off={dq}, v_off={dq + dkv}"
            yield Fix(title, packed, safe=False, note="where q, k and v follow one another")
        elif min(start for _, start, _ in slices(call)) >= 0:
            end = max(end for *_, end in slices(call))
            wider = replace(call.qkvr, shape=(tokens(call), end), strides=(), offset=0)
            yield Fix(f"Pass rows of {end} elements", call.replace(qkvr=wider), safe=False)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(v_off=cls.valid.v_off + HEAD)


@dataclass(frozen=True)
class SlicesOverlap(Hazard):
    """q, k and v are three parts of a row; two that share elements are seldom meant."""

    message = "the {first} and {second} slices of qkvr share {shared} elements"
    reason = "{first} and {second} are read from the same {shared} elements of each row"
    looks_at = ("q_off", "k_off", "v_off", "dq", "dkv")
    requires = "slices without common elements"
    category = "overlap"
    severity = Severity.WARNING
    premises = (*SIZES, *NUMBERS)
    first: str
    second: str
    shared: int

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        parts = list(slices(call))
        for index, (first, start, end) in enumerate(parts):
            for second, other, last in parts[index + 1 :]:
                shared = min(end, last) - max(start, other)
                if shared > 0:
                    yield cls(first, second, shared)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        dq, dkv = width(call.dq), width(call.dkv)
        if dq + 2 * dkv <= row_of(call):
            title = f"Pass q_off=0, k_off={dq}, v_off={dq + dkv}"
            yield Fix(title, call.replace(q_off=0, k_off=dq, v_off=dq + dkv), safe=False)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(k_off=cls.valid.k_off - HEAD)


@dataclass(frozen=True)
class Strided(Hazard):
    """Taps, slots, masks and a slot's elements are read as if they lay side by side."""

    message = "{argument} has strides {strides}, its elements are taken to lie side by side"
    reason = "{argument} has strides {strides}, which the kernel ignores: it reads what lies between"
    looks_at = (
        "k_weight.strides", "v_weight.strides", "cache_indices.strides", "cache_mask.strides", "loc.strides",
        "has_initial_state.strides", "cu.strides", "si.strides", "track_rows.strides", "track_mask.strides",
        "k_buf.strides", "v_buf.strides",
    )  # fmt: skip
    requires = "weights with a last stride of 1; index arrays, masks and a slot's elements contiguous"
    category = "layout"
    premises = (KWeightHasNoTaps, WeightDimensions, *POOLS, *NUMBERS)
    argument: str
    strides: Shape

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        for name in cls.wrong(call) if tokens(call) else ():
            yield cls(name, getattr(call, name).strides)

    @classmethod
    def wrong(cls, call: PrologueCall) -> Iterator[str]:
        """Arguments with gaps."""
        for name in ("k_weight", "v_weight"):
            weight: TensorSpec = getattr(call, name)
            if weight.ndim > 1 and weight.shape[1] > 1 and weight.strides[1] != 1:
                yield name
        if call.cache_indices.dtype is DType.I32 and not call.cache_indices.is_contiguous:
            yield "cache_indices"  # of another type they are converted, which closes gaps
        for name in ("cache_mask", "loc", "has_initial_state", "cu", "si", "track_rows", "track_mask"):
            tensor: TensorSpec | None = getattr(call, name, None)
            read = name != "loc" or stores(call)
            if tensor is not None and read and not tensor.is_contiguous:
                yield name
        for name in ("k_buf", "v_buf") if stores(call) else ():
            rows = pool_rows(getattr(call, name), width(call.dkv) // HEAD * HEAD)
            if rows is not None and rows.strides[1] != 1:
                yield name

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        names = list(self.wrong(call))
        for pair in ("weight", "buf"):
            both = [f"k_{pair}", f"v_{pair}"]
            if set(both) & set(names):
                names = [name for name in names if name not in both] + both
        dense = {name: getattr(call, name).contiguous() for name in names}
        note = "a pool is written: allocate it so" if "k_buf" in names else "one copy"
        yield Fix(f"Make {' and '.join(names)} contiguous", call.replace(**dense), safe=True, note=note)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_tensor("cache_mask", strides=(2,))


@dataclass(frozen=True)
class SlotsShareMemory(Hazard):
    """What is written for two slots at one place is the later one's."""

    message = "{argument}: dimension {dim} has stride {stride}, and one entry of it spans {span}"
    reason = (
        "entries of dimension {dim} of {argument} are {stride} elements apart and {span} long: they overlap"
    )
    looks_at = (
        "k_cache.strides", "v_cache.strides", "k_inter.strides", "v_inter.strides", "k_buf.strides",
        "v_buf.strides", "do_store", "do_cache_update",
    )  # fmt: skip
    requires = "every slot of what is written in memory of its own"
    category = "overlap"
    premises = (*POOLS, *STATE_DIMENSIONS, *WINDOW_DIMENSIONS, *NUMBERS)
    argument: str
    dim: int
    stride: int
    span: int

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        written = [] if isinstance(call, VerifyCall) else ["k_cache", "v_cache"]
        if isinstance(call, ExtendCall) and not updates(call):
            written = []
        written += ["k_inter", "v_inter"] * isinstance(call, VerifyCall)
        for name in (*written, *(("k_buf", "v_buf") if stores(call) else ())):
            tensor: TensorSpec = getattr(call, name)
            span = 1
            for dim in sorted(range(tensor.ndim), key=lambda dim: (tensor.strides[dim], -dim)):
                size, stride = tensor.shape[dim], tensor.strides[dim]
                if size > 1 and tensor.numel and tokens(call):
                    if stride < span:
                        yield cls(name, dim, stride, span)
                        break
                    span += (size - 1) * stride

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        pair = self.argument[2:]
        dense = {name: getattr(call, name).contiguous() for name in (f"k_{pair}", f"v_{pair}")}
        yield Fix(f"Allocate k_{pair} and v_{pair} dense", call.replace(**dense), safe=True)

    @classmethod
    def example(cls) -> PrologueCall:
        call = cls.valid
        for name in ("k_buf", "v_buf"):
            call = call.with_tensor(name, strides=(0, HEAD, 1))
        return call


def slices(call: PrologueCall) -> Iterator[tuple[str, int, int]]:
    """Name, first element and end of each slice of a row."""
    widths = {"q_off": width(call.dq), "k_off": width(call.dkv), "v_off": width(call.dkv)}
    for name, offset in offsets(call).items():
        yield name[0], offset, offset + widths[name]


def row_of(call: PrologueCall) -> int:
    """Elements of a row that are qkvr's: its stride; of a single row, what its storage holds."""
    if tokens(call) > 1:
        return call.qkvr.strides[0]
    return call.qkvr.storage_bytes // call.qkvr.itemsize - call.qkvr.offset


ON_LAYOUT: tuple[type[Hazard], ...] = (
    Misaligned,
    SlicesOutsideRow,
    SlicesOverlap,
    Strided,
    SlotsShareMemory,
)
