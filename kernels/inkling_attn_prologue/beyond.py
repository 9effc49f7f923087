"""What upstream takes and then computes wrongly or corrupts memory with: devices and element types.

Upstream's kernel was seen doing so on an H200; README.md has the table. Sizes are in `beyond_sizes.py`,
strides and addresses in `beyond_layout.py`, described values in `beyond_values.py`, settings in
`beyond_settings.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from kernels.checking import Fix
from kernels.dtypes import DType, Kind
from kernels.inkling_attn_prologue.bound import PrologueCheck
from kernels.inkling_attn_prologue.conversion import NUMBERS
from kernels.inkling_attn_prologue.derived import stores, tokens, tracks
from kernels.inkling_attn_prologue.signature import ExtendCall, PrologueCall
from kernels.spec import TensorSpec


class Hazard(PrologueCheck):
    """A call that upstream takes without a word."""

    raises = ValueError


@dataclass(frozen=True)
class NotOnOneGpu(Hazard):
    """The kernel is launched on qkvr's device with plain addresses, which mean nothing on another device."""

    message = "{argument} is on {got}, the kernel runs on {expected}"
    reason = "{argument} is on {got}: a kernel on {expected} that follows its address faults"
    looks_at = (
        "qkvr.device", "k_cache.device", "v_cache.device", "cache_indices.device", "cache_mask.device",
        "has_initial_state.device", "cu.device", "si.device", "k_weight.device", "v_weight.device",
        "k_inter.device", "v_inter.device", "track_rows.device", "track_mask.device", "track_indices.device",
        "track_dst.device", "q_gamma.device", "k_gamma.device", "loc.device", "k_buf.device", "v_buf.device",
        "sfk.device", "sfv.device", "log_scaling_tau.device",
    )  # fmt: skip
    requires = "every tensor on one CUDA device"
    category = "device"
    argument: str
    got: str
    expected: str

    @staticmethod
    def wanted(call: PrologueCall) -> str:
        """qkvr's device where that is a GPU, else the first GPU that any tensor is on."""
        gpus = [tensor.device for _, tensor in call.tensors() if tensor.device_type == "cuda"]
        return call.qkvr.device if call.qkvr.device_type == "cuda" else (gpus or ["cuda"])[0]

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        expected = TensorSpec((), DType.U8, device=cls.wanted(call)).device_index
        for name, tensor in call.tensors():
            if tensor.device_index != expected:
                yield cls(name, tensor.device_index, expected)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        moved = [name for name, tensor in call.tensors() if tensor.device_index != self.expected]
        changed = call
        for name in moved:
            changed = changed.with_tensor(name, device=self.wanted(call))
        few = " and ".join(moved) if len(moved) < 3 else "every tensor"
        yield Fix(f"Move {few} to {self.expected}", changed, safe=True)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_tensor("loc", device="cpu")


@dataclass(frozen=True)
class Misread(Hazard):
    """A tensor of one type whose bytes the kernel reads as another."""

    category = "dtype"
    argument: str
    got: DType
    read: DType

    @classmethod
    def wanted(cls, call: PrologueCall) -> Iterator[tuple[str, DType]]:
        """Argument, the type its bytes are read as."""
        raise NotImplementedError

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        for name, dtype in cls.wanted(call):
            tensor: TensorSpec | None = getattr(call, name, None)
            if tensor is not None and tensor.numel and tensor.dtype is not dtype:
                yield cls(name, tensor.dtype, dtype)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        changed, names = call, []
        for name, dtype in self.wanted(call):
            tensor: TensorSpec | None = getattr(call, name, None)
            if tensor is not None and tensor.dtype is not dtype:
                names.append(name)
                changed = changed.with_dtype(name, dtype)
        title = f"Pass {' and '.join(names)} as {self.read}"
        yield Fix(title, changed, safe=True, note=self.advice)

    advice: ClassVar[str] = "one copy"


@dataclass(frozen=True)
class LocMisread(Misread):
    """Pool slots are read as 64-bit integers, so two of 32 bits become one wild slot."""

    message = "{argument} is {got} and read as {read}: slots become wild addresses"
    reason = "{argument} is {got}: two neighbouring entries are taken for one slot, and the store faults"
    looks_at = ("loc.dtype",)
    requires = "loc int64"

    @classmethod
    def wanted(cls, call: PrologueCall) -> Iterator[tuple[str, DType]]:
        if stores(call):
            yield "loc", DType.I64

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_dtype("loc", DType.I32)


@dataclass(frozen=True)
class SequenceMisread(Misread):
    """Sequence bounds and what is tracked are 64-bit integers, the owner of a token is a 32-bit one."""

    message = "{argument} is {got}, its bytes are read as {read} positions"
    reason = "{argument} is {got}, and its bytes are taken for {read}: positions come out wild"
    looks_at = ("cu.dtype", "si.dtype", "track_rows.dtype", "track_dst.dtype")
    requires = "cu, track_rows and track_dst int64, si int32"

    @classmethod
    def wanted(cls, call: PrologueCall) -> Iterator[tuple[str, DType]]:
        if isinstance(call, ExtendCall):
            yield from (("cu", DType.I64), ("si", DType.I32))
            if tracks(call):
                yield from (("track_rows", DType.I64), ("track_dst", DType.I64))

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_dtype("cu", DType.I32)


@dataclass(frozen=True)
class TrackSlotsMisread(Misread):
    """Track slots are 64-bit integers, unlike the state slots they are slots of."""

    message = "{argument} is {got}, its bytes are read as {read} track slots"
    reason = "{argument} is {got}: two entries are taken for one slot, and the state is written there"
    looks_at = ("track_indices.dtype", "track_mask")
    requires = "track_indices int64"

    @classmethod
    def wanted(cls, call: PrologueCall) -> Iterator[tuple[str, DType]]:
        if tracks(call):
            yield "track_indices", DType.I64

    @classmethod
    def example(cls) -> PrologueCall:
        rows = (tokens(cls.valid),)
        mask, slots = TensorSpec(rows, DType.BOOL), TensorSpec(rows, DType.I32)
        return cls.valid.replace(track_mask=mask, track_indices=slots)


@dataclass(frozen=True)
class MaskMisread(Misread):
    """A mask has one byte an entry; of a wider type the kernel reads the bytes of the first entries."""

    message = "{argument} is {got} and read as {read}, one byte an entry"
    reason = "{argument} is {got}: the kernel takes each of its bytes for an entry"
    looks_at = ("cache_mask.dtype", "has_initial_state.dtype", "track_mask.dtype")
    requires = "cache_mask, has_initial_state and track_mask bool"

    @classmethod
    def wanted(cls, call: PrologueCall) -> Iterator[tuple[str, DType]]:
        yield from ((name, DType.BOOL) for name in ("cache_mask", "has_initial_state", "track_mask"))

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_dtype("cache_mask", DType.I32)


@dataclass(frozen=True)
class StateSlotsNotWhole(Hazard):
    """State slots are converted to int32, which cuts fractions off."""

    message = "cache_indices is {got} and converted to int32"
    reason = "cache_indices is {got}: slots beyond the type's whole numbers are rounded to another's"
    looks_at = ("cache_indices.dtype",)
    requires = "cache_indices of an integer type"
    category = "dtype"
    got: DType

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if call.cache_indices.dtype.kind is not Kind.INT:
            yield cls(call.cache_indices.dtype)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        yield Fix("Pass cache_indices as int32", call.with_dtype("cache_indices", DType.I32), safe=True)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_dtype("cache_indices", DType.F32)


@dataclass(frozen=True)
class GammaMisread(Misread):
    """The norms' factors are read as bfloat16."""

    message = "{argument} is {got}, its bits are read as {read} factors"
    reason = "{argument} is {got}: half of each number is taken for a factor, and every head comes out wrong"
    looks_at = ("q_gamma.dtype", "k_gamma.dtype")
    requires = "q_gamma and k_gamma bfloat16"

    @classmethod
    def wanted(cls, call: PrologueCall) -> Iterator[tuple[str, DType]]:
        yield from ((name, DType.BF16) for name in ("q_gamma", "k_gamma"))

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_dtype("q_gamma", DType.F32)


@dataclass(frozen=True)
class StateMisread(Misread):
    """State, taps and windows are moved in vectors of eight bfloat16."""

    message = "{argument} is {got}, its bits are moved as {read}"
    reason = "{argument} is {got}: rows are found at half or double the distance, and read as other numbers"
    looks_at = (
        "k_cache.dtype", "v_cache.dtype", "k_weight.dtype", "v_weight.dtype", "k_inter.dtype",
        "v_inter.dtype",
    )  # fmt: skip
    requires = "caches, weights and windows bfloat16"
    advice = "state and windows are written: allocate them so, do not pass a copy"

    @classmethod
    def wanted(cls, call: PrologueCall) -> Iterator[tuple[str, DType]]:
        yield from ((path.partition(".")[0], DType.BF16) for path in cls.looks_at)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_dtype("k_cache", DType.F16).with_dtype("v_cache", DType.F16)


@dataclass(frozen=True)
class PoolMisread(Misread):
    """Without quantization 2-byte rows are written, at 2-byte distances."""

    message = "{argument} is {got} and written as {read}"
    reason = "{argument} is {got} without mxfp8_quant: a row lands at another slot's bytes"
    looks_at = ("k_buf.dtype", "v_buf.dtype", "mxfp8_quant", "do_store")
    requires = "bfloat16 pools without mxfp8_quant"
    premises = NUMBERS
    advice = "the pool is allocated anew; with a pool of codes set mxfp8_quant instead"

    @classmethod
    def wanted(cls, call: PrologueCall) -> Iterator[tuple[str, DType]]:
        if stores(call) and not call.mxfp8_quant:
            yield from (("k_buf", DType.BF16), ("v_buf", DType.BF16))

    @classmethod
    def example(cls) -> PrologueCall:
        call = cls.valid.with_dtype("k_buf", DType.F8_E4M3FN)
        return call.with_dtype("v_buf", DType.F8_E4M3FN)
