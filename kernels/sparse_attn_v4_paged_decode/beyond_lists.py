"""What upstream takes and then reads wrongly: checks of our own on the index lists and the sink of
sparse_attn_v4_paged_decode, of which its kernels get the addresses alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernels.checking import Fix, Severity, aside
from kernels.dtypes import DType, Kind
from kernels.sparse_attn_v4_paged_decode.beyond import Hazard
from kernels.sparse_attn_v4_paged_decode.launches import holds_step, knows_sink, splits, tile
from kernels.sparse_attn_v4_paged_decode.python_errors import UNPACKED
from kernels.sparse_attn_v4_paged_decode.signature import VALID, SparseCall
from kernels.spec import TensorSpec

INDEX_TYPES = (DType.I32, DType.I64)
INDEX_LISTS = ("kv_indices", "kv_indptr")
DENSE = (*INDEX_LISTS, "attn_sink")
"""Arguments of which the kernels get the address alone."""


@dataclass(frozen=True)
class IndicesNotIntegers(Hazard):
    """Slots and spans are added to addresses: only whole numbers can be."""

    message = "{argument} must be int32 or int64, got {got}"
    reason = (
        "{argument} is {got}: floating-point indices do not compile, and bool compiles and can tell only 0 "
        "from 1"
    )
    looks_at = ("kv_indices.dtype", "kv_indptr.dtype")
    requires = "kv_indices and kv_indptr int32 or int64"
    category = "dtype"
    argument: str
    got: DType

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        for name in INDEX_LISTS:
            dtype = getattr(call, name).dtype
            if dtype.kind is not Kind.INT:
                yield cls(name, dtype)

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        found = {violation.argument: violation.got for violation in self.find(call)}
        lost = DType.BOOL in found.values()
        yield _cast(
            call,
            dict.fromkeys(found, DType.I32),
            safe=not lost,
            note="a mask has no slots in it: list them with torch.nonzero" if lost else "one copy",
        )

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_dtype("kv_indices", DType.F32)


@dataclass(frozen=True)
class SpansTypeTooNarrow(Hazard):
    """A span's length has the type of kv_indptr, and is shared out among splits in that type.

    Seen on an H200: int8 and uint8 with 16, 64, 128, 256 and 512 splits; with 1 and 2 they compile.
    """

    message = "kv_indptr must hold {step}, the slots of a tile in every split, got {got}"
    reason = (
        "with {splits_used} splits of {slots} slots a step of all is {step}, which {got} does not hold: the "
        "kernel does not compile"
    )
    looks_at = ("kv_indptr.dtype", "kv_splits", "kv_scales")
    requires = "kv_indptr int32 or int64"
    category = "dtype"
    premises = UNPACKED
    step: int
    got: DType
    splits_used: int = aside()
    slots: int = aside()

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if not holds_step(call):
            used, slots = splits(call), tile(call)
            yield cls(used * slots, call.kv_indptr.dtype, used, slots)

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        yield _cast(call, {"kv_indptr": DType.I32}, safe=True, note="one copy")

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_dtype("kv_indptr", DType.U8)


@dataclass(frozen=True)
class IndicesOfUnusualType(Hazard):
    """The contract is int32; other whole numbers are loaded as they are, and narrow ones end early."""

    message = "{argument} is {got}; the contract is int32"
    reason = "{argument} is {got}, which compiles, but the contract is int32 and only int64 is as well tried"
    looks_at = ("kv_indices.dtype", "kv_indptr.dtype")
    requires = "kv_indices and kv_indptr int32 or int64"
    category = "dtype"
    severity = Severity.WARNING
    argument: str
    got: DType

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        for name in INDEX_LISTS:
            dtype = getattr(call, name).dtype
            if dtype.kind is Kind.INT and dtype not in INDEX_TYPES and not _refused(call, name):
                yield cls(name, dtype)

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        wide = {
            violation.argument: DType.I64 if violation.got in (DType.U32, DType.U64) else DType.I32
            for violation in self.find(call)
        }
        yield _cast(call, wide, safe=True, note="one copy")

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_dtype("kv_indices", DType.I16)


@dataclass(frozen=True)
class ListNotDense(Hazard):
    """The kernels get the address of a list, not its strides, and read on from there."""

    message = "{argument} must be dense, got shape {got} and strides {strides}"
    reason = (
        "{argument} has shape {got} and strides {strides}, and only its address is passed: the elements that "
        "follow it in memory are read, whatever they are"
    )
    looks_at = tuple(f"{name}.{what}" for name in DENSE for what in ("shape", "strides"))
    requires = "kv_indices and kv_indptr contiguous and of one dimension, attn_sink contiguous"
    category = "layout"
    argument: str
    got: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        for name in DENSE:
            tensor = getattr(call, name)
            if not tensor.is_contiguous or (name in INDEX_LISTS and tensor.ndim != 1):
                yield cls(name, tensor.shape, tensor.strides)

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        spread = [violation.argument for violation in self.find(call)]
        changed, copied = call, False
        for name in spread:
            tensor: TensorSpec = getattr(call, name)
            shape = (tensor.numel,) if name in INDEX_LISTS else tensor.shape
            changed = changed.with_tensor(name, shape=shape, strides=(), offset=0)
            copied = copied or not tensor.is_contiguous
        note = "one copy each" if copied else "a view"
        yield Fix(f"Make {' and '.join(spread)} one dense list", changed, safe=True, note=note)

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_tensor("kv_indices", strides=(2,))


@dataclass(frozen=True)
class SpansTooFew(Hazard):
    """Token t reads entries t and t + 1 of kv_indptr."""

    message = "kv_indptr has {got} entries, {tokens} tokens need {needed}"
    reason = "{tokens} tokens have {needed} offsets; kv_indptr has {got} and is read past its end"
    looks_at = ("kv_indptr.shape", "q.shape")
    requires = "kv_indptr of at least T + 1 entries"
    category = "shape"
    premises = UNPACKED
    got: int
    tokens: int
    needed: int

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        tokens, held = call.q.shape[0], call.kv_indptr.numel
        if held < tokens + 1 and tokens:
            yield cls(held, tokens, tokens + 1)

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        yield Fix(
            f"Pass {self.needed} offsets in kv_indptr, the last one the end of the last token's slots",
            call.replace(kv_indptr=call.kv_indptr.with_shape(self.needed)),
            safe=False,
            note="offsets, not lengths: one more than tokens",
        )

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_tensor("kv_indptr", shape=(2,))


@dataclass(frozen=True)
class SinksTooFew(Hazard):
    """Every head loads a sink."""

    message = "attn_sink has {got} elements, {heads} heads need as many"
    reason = "each of {heads} heads loads its sink; attn_sink has {got}, and the others are read past its end"
    looks_at = ("attn_sink.shape", "q.shape")
    requires = "attn_sink of at least H elements"
    category = "shape"
    premises = UNPACKED
    got: int
    heads: int

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        heads = call.q.shape[1]
        if call.attn_sink.numel < heads:
            yield cls(call.attn_sink.numel, heads)

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        yield Fix(
            f"Pass {self.heads} sinks, one a head",
            call.replace(attn_sink=call.attn_sink.with_shape(self.heads)),
            safe=False,
            note="-inf for a head without one",
        )

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_tensor("attn_sink", shape=(8,))


@dataclass(frozen=True)
class SinksOfOtherShape(Hazard):
    """The first H elements are taken, which are the right ones only for the first rank's heads."""

    message = "attn_sink has shape {got}; its first {heads} elements are used"
    reason = (
        "attn_sink has shape {got}, not ({heads},): its first {heads} elements are used and the rest is not"
    )
    looks_at = ("attn_sink.shape", "q.shape")
    requires = "attn_sink of shape (H,)"
    category = "shape"
    severity = Severity.WARNING
    premises = UNPACKED
    got: tuple[int, ...]
    heads: int

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        heads, sink = call.q.shape[1], call.attn_sink
        if sink.numel >= heads > 0 and sink.shape != (heads,):
            yield cls(sink.shape, heads)

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        yield Fix(
            f"Pass the {self.heads} sinks of q's heads",
            call.with_tensor("attn_sink", shape=(self.heads,)),
            safe=True,
            note="a view of the first ones, as upstream reads them",
        )

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_tensor("attn_sink", shape=(1, 16))


@dataclass(frozen=True)
class SinkTypeUnknown(Hazard):
    """The kernels cast the sink to float32, from any type that the compiler has."""

    message = "attn_sink is {got}, a type that Triton does not have"
    reason = "attn_sink is {got}, of which Triton has no tensors: the launch ends with a KeyError"
    looks_at = ("attn_sink.dtype",)
    requires = "attn_sink of a real type, best float32"
    category = "dtype"
    got: DType

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if not knows_sink(call):
            yield cls(call.attn_sink.dtype)

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        changed = call.with_dtype("attn_sink", DType.F32)
        yield Fix("Cast attn_sink to float32", changed, safe=self.got.kind is Kind.FLOAT, note="one copy")

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_dtype("attn_sink", DType.F8_E8M0)


def _refused(call: SparseCall, name: str) -> bool:
    """Whether the type is more than unusual: it does not compile."""
    return name == "kv_indptr" and call.q.ndim == 3 and any(SpansTypeTooNarrow.find(call))


def _cast(call: SparseCall, types: dict[str, DType], *, safe: bool, note: str) -> Fix[SparseCall]:
    changed = call
    for name, dtype in types.items():
        changed = changed.with_dtype(name, dtype)
    casts = " and ".join(f"{name} to {dtype}" for name, dtype in types.items())
    return Fix(f"Cast {casts}", changed, safe=safe, note=note)


ON_LISTS = (
    IndicesNotIntegers,
    SpansTypeTooNarrow,
    IndicesOfUnusualType,
    ListNotDense,
    SpansTooFew,
    SinksTooFew,
    SinksOfOtherShape,
    SinkTypeUnknown,
)
