"""What upstream takes and then crashes on, corrupts memory with or computes wrongly: checks of our own on q,
the pool and the launch of sparse_attn_v4_paged_decode. Those on the index lists and the sink are in
beyond_lists.py, on what the lists hold in beyond_slots.py, on numbers in beyond_numbers.py.

What happens otherwise was seen on an H200 with upstream's own kernels; README.md has the table. Left out is a
gradient, which a description does not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Self

from kernels.checking import Check, Fix
from kernels.dtypes import DType, Kind
from kernels.sparse_attn_v4_paged_decode.launch_errors import padded_to
from kernels.sparse_attn_v4_paged_decode.launches import NARROWEST, converts_pool, previous_power_of_two
from kernels.sparse_attn_v4_paged_decode.python_errors import POOL_STRIDES, UNPACKED
from kernels.sparse_attn_v4_paged_decode.signature import GROUP, QUANTIZED, VALID, SparseCall
from kernels.spec import TensorSpec
from kernels.target import Target

OFFSET_LIMIT = 2**31
"""Elements: a slot's offset has the 32 bits of an int32 slot, one of them its sign."""

COMPILED_WIDTH = 32
"""Columns to pad a head to: compiled, and joined from any number of splits."""


class Hazard(Check[SparseCall]):
    """A call that upstream takes without a word of its own."""

    raises = ValueError


@dataclass(frozen=True)
class PoolHasTooManyDimensions(Hazard):
    """The launch passes the pool's first two strides, whatever comes after them."""

    message = "unified_kv has {got} dimensions, not 2"
    reason = (
        "the first two strides of unified_kv are taken for those of slots and columns; with {got} dimensions "
        "the columns are read from other slots, or from nowhere"
    )
    looks_at = ("unified_kv.shape",)
    requires = "unified_kv of 2 dimensions"
    category = "shape"
    got: int

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if call.unified_kv.ndim > 2:
            yield cls(call.unified_kv.ndim)

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        *slots, width = call.unified_kv.shape
        flat = call.with_tensor("unified_kv", shape=(prod(slots), width), offset=0)
        safe = True
        if call.kv_scales is not None and call.kv_scales.shape != flat.scale_shape:
            flat, safe = flat.with_scales(), False
        yield Fix(f"View the pool as {list(flat.unified_kv.shape)}", flat, safe=safe)

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_tensor("unified_kv", shape=(8, 1, 128))


@dataclass(frozen=True)
class PoolWidthDiffers(Hazard):
    """q says how many columns of a slot are read."""

    message = "unified_kv is {pool} columns wide, q {query}"
    reason = (
        "q's {query} columns are read from slots of {pool}: of wider slots the rest is left out, and of "
        "narrower ones the next slot is read too, past the pool at its end"
    )
    looks_at = ("unified_kv.shape", "q.shape")
    requires = "unified_kv as wide as q"
    category = "shape"
    premises = (*UNPACKED, *POOL_STRIDES, PoolHasTooManyDimensions)
    pool: int
    query: int

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if call.unified_kv.shape[-1] != call.q.shape[-1]:
            yield cls(call.unified_kv.shape[-1], call.q.shape[-1])

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        width = min(self.pool, self.query)
        narrowed = call.replace(
            q=_first_columns(call.q, width), unified_kv=_first_columns(call.unified_kv, width)
        )
        if call.kv_scales is not None:
            fits = call.kv_scales.shape == call.scale_shape
            scales = _first_columns(call.kv_scales, width // GROUP) if fits else None
            narrowed = narrowed.replace(kv_scales=scales) if scales else narrowed.with_scales()
        yield Fix(
            f"Take the first {width} columns of {'the pool' if self.pool > width else 'q'}",
            narrowed,
            safe=False,
            note="right where the columns beyond are not part of the keys",
        )
        shape = (call.unified_kv.shape[0], self.query)
        changed = call.with_tensor("unified_kv", shape=shape, offset=0, values=None)
        yield Fix(
            f"Pass a pool of {self.query} columns",
            changed if call.kv_scales is None else changed.with_scales(),
            safe=False,
        )

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_tensor("unified_kv", shape=(8, 192))


@dataclass(frozen=True)
class OnAnotherDevice(Hazard):
    """An address of one GPU means nothing, or something else, on another."""

    message = "{argument} is on {got}, q on {device}"
    reason = (
        "the kernel runs on {device}, where q is, and takes {argument}'s address on {got} for one of its own"
    )
    looks_at = (
        "q.device",
        "unified_kv.device",
        "kv_scales.device",
        "kv_indices.device",
        "kv_indptr.device",
        "attn_sink.device",
    )
    requires = "every tensor on q's device"
    category = "device"
    argument: str
    got: str
    device: str

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if call.q.device_type != "cuda":
            return
        for name, tensor in call.tensors():
            if tensor.device_type != "cpu" and tensor.device_index != call.q.device_index:
                yield cls(name, tensor.device_index, call.q.device_index)

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        moved = {
            name: replace(tensor, device=call.q.device)
            for name, tensor in call.tensors()
            if tensor.device_index != call.q.device_index
        }
        yield Fix(
            f"Move {' and '.join(moved)} to {call.q.device}",
            call.replace(**moved),
            safe=True,
            note="one copy",
        )

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_tensor("unified_kv", device="cuda:1")


@dataclass(frozen=True)
class Fp8NotCompiled(Hazard):
    """GPUs before Ada convert no E4M3, and Triton writes no kernel that would do it in steps."""

    message = "unified_kv is {got}, which Triton does not compile for {architecture}"
    said_elsewhere = (
        (
            "type {self} not supported in this architecture. "
            "The supported fp8 dtypes are {builder.options.supported_fp8_dtypes}"
        ),
    )
    reason = (
        '{architecture} has no {got}: Triton stops with "type fp8e4nv not supported in this architecture. '
        "The supported fp8 dtypes are ('fp8e4b15', 'fp8e5')\""
    )
    looks_at = ("unified_kv.dtype", "kv_scales")
    requires = "an NVIDIA GPU of compute capability 8.9 or newer for an FP8 pool"
    category = "dtype"
    got: DType
    architecture: str

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if call.target is not None and not converts_pool(call):
            yield cls(call.unified_kv.dtype, call.target.name)

    def describe_actual(self, call: SparseCall, /) -> str:
        return f"unified_kv = {call.unified_kv}, target = {call.target}"

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        yield Fix(
            f"Dequantize the pool to {call.q.dtype} and drop kv_scales",
            call.without("kv_scales").with_dtype("unified_kv", call.q.dtype),
            safe=False,
            note="multiply by the scales; twice the memory for the pool",
        )

    @classmethod
    def example(cls) -> SparseCall:
        return QUANTIZED.replace(target=Target("sm80"))


@dataclass(frozen=True)
class SlotOffsetsWrap(Hazard):
    """A slot times the pool's stride is computed in the slot's own 32 bits."""

    message = "offsets into unified_kv reach {reach} elements, {got} slots at most {limit}"
    reason = (
        "slots are {got}, so a slot's offset is computed in 32 bits, and the pool's last element is {reach} "
        "elements from its first: offsets from 2^31 on wrap to negative ones, an illegal memory access"
    )
    looks_at = ("kv_indices.dtype", "unified_kv.shape", "unified_kv.strides")
    requires = "int64 kv_indices, or a pool whose last element is less than 2^31 elements from its first"
    category = "values"
    premises = (*POOL_STRIDES, PoolHasTooManyDimensions)
    reach: int
    got: DType
    limit: int

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        dtype, pool = call.kv_indices.dtype, call.unified_kv
        if dtype.kind is Kind.INT and dtype.bits <= 32 and pool.extent > OFFSET_LIMIT:
            yield cls(pool.extent - 1, dtype, OFFSET_LIMIT - 1)

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        yield Fix(
            "Cast kv_indices to int64",
            call.with_dtype("kv_indices", DType.I64),
            safe=True,
            note="one copy of the list, twice its bytes",
        )

    def library_fault(self, call: SparseCall, /) -> str:
        return "32-bit slots are its documented type, and the same slots in 64 bits give the right result"

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.replace(
            q=TensorSpec((1, 16, 512), DType.BF16),
            unified_kv=TensorSpec((4_194_305, 512), DType.BF16),
            kv_indptr=TensorSpec((2,), DType.I32),
            softmax_scale=512**-0.5,
        )


@dataclass(frozen=True)
class HeadTooNarrow(Hazard):
    """A matrix product takes 16 columns at least; a width is rounded up to a power of two, no further."""

    message = "q is {got} columns wide; the kernel compiles from {least} on"
    reason = "{got} columns, rounded up to a power of two, are fewer than the 16 that a matrix product takes"
    looks_at = ("q.shape",)
    requires = "at least 9 columns a head"
    category = "shape"
    premises = UNPACKED
    got: int
    least: int

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if call.q.shape[-1] < NARROWEST:
            yield cls(call.q.shape[-1], NARROWEST)

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        yield from padded_to(call, COMPILED_WIDTH)

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.replace(
            q=TensorSpec((2, 16, 8), DType.BF16),
            unified_kv=TensorSpec((8, 8), DType.BF16),
            softmax_scale=8**-0.5,
        )


@dataclass(frozen=True)
class SplitsNotAPowerOfTwo(Hazard):
    """The joining step loads all splits' results as one block, whose sizes are powers of two."""

    message = "kv_splits must be a power of two, got {got}"
    reason = "kv_splits is {got}: the step that joins the splits loads them as one block and does not compile"
    looks_at = ("kv_splits",)
    requires = "kv_splits a power of two, or None"
    category = "values"
    got: int

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        given = call.kv_splits
        if isinstance(given, int) and given >= 0 and given != previous_power_of_two(given):
            yield cls(given)

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        if self.got:
            fewer = previous_power_of_two(self.got)
            yield Fix(f"Pass kv_splits={fewer}", call.replace(kv_splits=fewer), safe=True)
        yield Fix(
            "Leave kv_splits out", call.without("kv_splits"), safe=True, note="chosen from tokens and heads"
        )

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.replace(kv_splits=3)


def _first_columns(tensor: TensorSpec, width: int) -> TensorSpec:
    """A view of the first columns; it holds no described values of its own."""
    if tensor.shape[-1] == width:
        return tensor
    return replace(tensor, shape=(*tensor.shape[:-1], width), values=None)


ON_POOL = (PoolHasTooManyDimensions, PoolWidthDiffers)
ON_DEVICES = (OnAnotherDevice, Fp8NotCompiled)
ON_LAUNCH = (SlotOffsetsWrap, HeadTooNarrow, SplitsNotAPowerOfTwo)
