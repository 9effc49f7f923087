"""What the compiled launchers refuse of the pools, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernels.checking import Fix, aside
from kernels.dtypes import DType
from kernels.inkling_attn_prologue.allocation import SIZES
from kernels.inkling_attn_prologue.bound import Launched, at
from kernels.inkling_attn_prologue.conversion import NUMBERS, POOLS
from kernels.inkling_attn_prologue.derived import stores, whole, width
from kernels.inkling_attn_prologue.launcher import VECTOR, Unreachable
from kernels.inkling_attn_prologue.launcher_scales import (
    SCALES,
    QueryScalesStrided,
    ScalesNotFiveDimensional,
    ScalesNotOneByte,
    ScalesNotUint8,
    ScalesOddStrides,
)
from kernels.inkling_attn_prologue.launcher_state import slot_stride
from kernels.inkling_attn_prologue.signature import BLOCK, HEAD, PrologueCall
from kernels.spec import TensorSpec


@dataclass(frozen=True)
class StoreRequired(Launched):
    """Quantized keys and values exist in the pool alone: k_out and v_out stay bfloat16."""

    message = "MXFP8 fused prologue requires do_store=True"
    sites = at(verify=421)
    reason = "mxfp8_quant is set and do_store is not, so the quantized k and v would be lost"
    looks_at = ("do_store", "mxfp8_quant")
    requires = "do_store with mxfp8_quant"
    category = "values"
    premises = NUMBERS

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if call.mxfp8_quant and not stores(call):
            yield cls()

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        yield Fix("Leave do_store on", call.without("do_store"), safe=False, note="k and v are written")

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.quantized().replace(do_store=False)


@dataclass(frozen=True)
class DecodeStoreRequired(StoreRequired):
    """Decode's wording."""

    message = "MXFP8 fused decode prologue requires do_store=True"
    sites = at(decode=825)


@dataclass(frozen=True)
class ExtendStoreRequired(StoreRequired):
    """Extend's wording."""

    message = "MXFP8 fused extend prologue requires do_store=True"
    sites = at(extend=1326)


@dataclass(frozen=True)
class WidthsSplitBlocks(Unreachable):
    """32 elements share a scale."""

    message = "MXFP8 dims must tile 32-element scale blocks"
    sites = at(verify=422, decode=826, extend=1327)
    reason = "dq or dkv is no multiple of 32"
    requires = "dq and dkv multiples of 32"
    unreachable = "multiples of 128 were asked for before, by Python and again here"


@dataclass(frozen=True)
class PageSplitsBlocks(Launched):
    """Scale bytes of 32 tokens are interleaved, so a page is made of such groups."""

    message = "MXFP8 page size must tile 32-token scale blocks"
    sites = at(verify=423, decode=827, extend=1328)
    reason = "page_size is {page}; it must be a positive multiple of 32"
    looks_at = ("page_size", "mxfp8_quant")
    requires = "page_size a positive multiple of 32 with mxfp8_quant"
    category = "divisibility"
    premises = NUMBERS
    page: int = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        page = whole(call.page_size) or 0
        if call.mxfp8_quant and page > 0 and page % BLOCK:
            yield cls(page)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        if not (call.k_buf.ndim and call.v_buf.ndim):
            return
        changed = call.without("page_size")
        pages = -(-call.k_buf.shape[0] // HEAD)
        for name in ("k_buf", "v_buf"):
            pool: TensorSpec = getattr(call, name)
            if pages * HEAD != pool.shape[0]:
                changed = changed.with_tensor(name, shape=(pages * HEAD, *pool.shape[1:]))
        scales = changed.new_scales()
        note = "attention must read pages of that size too; do not leave a scale buffer uninitialised"
        title = f"Use pages of {HEAD} slots"
        yield Fix(title, changed.replace(sfk=scales, sfv=scales), safe=False, note=note)

    @classmethod
    def example(cls) -> PrologueCall:
        call = cls.valid.replace(page_size=48)
        for name in ("k_buf", "v_buf"):
            call = call.with_tensor(name, shape=(240, *getattr(call, name).shape[1:]))
        return call.quantized()


@dataclass(frozen=True)
class QueriesNotFp8(Unreachable):
    """Quantized queries are E4M3 codes."""

    message = "MXFP8 q_out must be fp8_e4m3"
    sites = at(verify=424, decode=828, extend=1329)
    reason = "the result for q is not float8_e4m3fn"
    looks_at = ("mxfp8_quant",)
    requires = "nothing of the caller"
    unreachable = "upstream's Python allocates q_out as float8_e4m3fn itself"


@dataclass(frozen=True)
class PoolNotFp8(Launched):
    """Codes are E4M3, and reading them back as another type gives other numbers."""

    message = "MXFP8 KV buffers must be fp8_e4m3"
    sites = at(verify=425, decode=829, extend=1330)
    reason = "k_buf is {k} and v_buf {v}; with mxfp8_quant both must be float8_e4m3fn"
    looks_at = ("k_buf.dtype", "v_buf.dtype", "mxfp8_quant")
    requires = "float8_e4m3fn pools with mxfp8_quant"
    category = "dtype"
    k: DType = aside()
    v: DType = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        pools = (call.k_buf.dtype, call.v_buf.dtype)
        if call.mxfp8_quant and pools != (DType.F8_E4M3FN, DType.F8_E4M3FN):
            yield cls(*pools)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        pools = call.with_dtype("k_buf", DType.F8_E4M3FN).with_dtype("v_buf", DType.F8_E4M3FN)
        note = "the pool is allocated anew, and attention reads it with its scales"
        yield Fix("Allocate the pools as float8_e4m3fn", pools, safe=False, note=note)
        if self.k is DType.BF16 and self.v is DType.BF16:
            plain = call.without("mxfp8_quant", *SCALES, "page_size")
            yield Fix("Leave mxfp8_quant off: the pool is bfloat16", plain, safe=False)

    @classmethod
    def example(cls) -> PrologueCall:
        call = cls.valid.quantized()
        return call.with_dtype("k_buf", DType.BF16).with_dtype("v_buf", DType.BF16)


@dataclass(frozen=True)
class NoQueries(Launched):
    """A result without columns has a row stride of 1, not of 0."""

    message = "MXFP8 q_out must be contiguous"
    sites = at(verify=431, decode=835, extend=1336)
    reason = "dq is 0: torch gives a tensor without columns a row stride of 1, which the test refuses"
    looks_at = ("dq", "mxfp8_quant")
    requires = "dq at least 128 with mxfp8_quant"
    category = "values"
    premises = SIZES

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if call.mxfp8_quant and call.dq == 0:
            yield cls()

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        between = (whole(call.k_off) or 0) - (whole(call.q_off) or 0)
        dq = between if between > 0 and between % HEAD == 0 else HEAD
        yield Fix(f"Pass dq={dq}", call.replace(dq=dq), safe=False)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.quantized().replace(dq=0)


@dataclass(frozen=True)
class PoolRowsSplitBlocks(Launched):
    """A slot starts a block of 32 codes."""

    message = "MXFP8 kv buf row alignment"
    sites = at(verify=449, decode=853, extend=1354)
    reason = "a slot of k_buf is {got} elements from the next, which is no multiple of 32"
    looks_at = ("k_buf.strides", "dkv", "mxfp8_quant")
    requires = "a slot stride of k_buf that is a multiple of 32 with mxfp8_quant"
    category = "alignment"
    premises = POOLS
    granule = BLOCK
    got: int = aside()

    @classmethod
    def applies(cls, call: PrologueCall) -> bool:
        return bool(call.mxfp8_quant)

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        stride = slot_stride(call, "k_buf")
        if cls.applies(call) and stride % cls.granule:
            yield cls(stride)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        changed = call
        for name in ("k_buf", "v_buf"):
            pool: TensorSpec = getattr(call, name)
            changed = changed.replace(**{name: pool.contiguous()})
        note = "what is written must be the pool itself, not a copy of it"
        yield Fix("Allocate the pools dense", changed, safe=True, note=note)

    @classmethod
    def example(cls) -> PrologueCall:
        heads = width(cls.valid.dkv) // HEAD
        return _spread(cls.valid.quantized(), heads * HEAD + 8)


@dataclass(frozen=True)
class PoolRowsUnaligned(PoolRowsSplitBlocks):
    """A slot starts a vector of 16 bytes."""

    message = "kv buf rows must be 16B aligned"
    sites = at(verify=451, decode=855, extend=1356)
    reason = "a slot of k_buf is {got} elements from the next, which is no multiple of 8"
    requires = "a slot stride of k_buf that is a multiple of 8"
    granule = VECTOR

    @classmethod
    def applies(cls, call: PrologueCall) -> bool:
        return not call.mxfp8_quant

    @classmethod
    def example(cls) -> PrologueCall:
        heads = width(cls.valid.dkv) // HEAD
        return _spread(cls.valid, heads * HEAD + 4)


@dataclass(frozen=True)
class QueriesNotInputType(Unreachable):
    """Without quantization q keeps its type."""

    message = "q_out dtype mismatch"
    sites = at(verify=452, decode=856, extend=1357)
    reason = "the result for q has not qkvr's type"
    looks_at = ("qkvr.dtype",)
    requires = "nothing of the caller"
    unreachable = "upstream's Python allocates q_out in qkvr's type itself"


def _spread(call: PrologueCall, stride: int) -> PrologueCall:
    """The call with slots of both pools so far apart."""
    for name in ("k_buf", "v_buf"):
        call = call.with_tensor(name, strides=(stride, HEAD, 1))
    return call


def on_pools(store_required: type[StoreRequired]) -> tuple[type[Launched], ...]:
    """The checks of the pools in every launcher's order; each words one of them its own way."""
    return (
        store_required,
        WidthsSplitBlocks,
        PageSplitsBlocks,
        QueriesNotFp8,
        PoolNotFp8,
        ScalesNotUint8,
        NoQueries,
        QueryScalesStrided,
        ScalesNotFiveDimensional,
        ScalesNotOneByte,
        ScalesOddStrides,
        PoolRowsSplitBlocks,
        PoolRowsUnaligned,
        QueriesNotInputType,
    )
