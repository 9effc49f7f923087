"""What the interface asserts of block scales and of what carries them, in its order."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from kernels.call import shown
from kernels.checking import Category, Check, Fix
from kernels.dtypes import DType
from kernels.flash_attn_fwd.signature import (
    BLOCK,
    FULL,
    HALVES,
    QUANTIZED,
    SCALE,
    VALID,
    AttentionCall,
    at,
    scales_of,
)
from kernels.spec import TensorSpec

REQUANTIZE = "its numbers have to be quantized for it, with scales of their own"
BYTES = (DType.U8, DType.I8)


class Assertion(Check[AttentionCall]):
    """An assertion of the interface; under python -O there are none."""

    raises: ClassVar[type[Exception]] = AssertionError
    category: ClassVar[Category] = "dtype"

    @classmethod
    def find(cls, call: AttentionCall, /) -> Iterator[Self]:
        if call.assertions and cls.broken(call):
            yield cls()

    @classmethod
    def broken(cls, call: AttentionCall) -> bool:
        """Whether the condition does not hold."""
        raise NotImplementedError(cls.__name__)

    def wrong(self, call: AttentionCall, /) -> Collection[str]:
        """Of the arguments that it reads those that break it."""
        return self.arguments()

    def blames(self, call: AttentionCall, /) -> tuple[str, ...]:
        """Those that break it; optional ones that are absent only where that is the fault."""
        wrong = self.wrong(call)
        return tuple(
            name
            for name in self.arguments()
            if name in wrong and (self.category == "presence" or getattr(call, name) is not None)
        )

    def describe_actual(self, call: AttentionCall, /) -> str:
        blamed = self.blames(call)
        paths = (path for path in self.looks_at if path.partition(".")[0] in blamed)
        return ", ".join(f"{path} = {shown(call, path)}" for path in paths)


def dtype_of(tensor: TensorSpec | None) -> DType | None:
    """A tensor's type, None for an absent one."""
    return None if tensor is None else tensor.dtype


class ScaleType(Assertion):
    """Exponents alone: a scale is a power of two, and its byte is the exponent."""

    scale: ClassVar[str]

    @classmethod
    def broken(cls, call: AttentionCall) -> bool:
        relevant = call.scales_v if cls.scale == "sfv" else call.scales_qk
        return relevant and dtype_of(getattr(call, cls.scale)) not in (None, SCALE)

    def fixes(self, call: AttentionCall, /) -> Iterator[Fix[AttentionCall]]:
        viewed = getattr(call, self.scale).dtype in BYTES
        title = f"{'View' if viewed else 'Convert'} {self.scale} as float8_e8m0fnu"
        note = "the bytes stay as they are" if viewed else "powers of two stay exact, others do not"
        yield Fix(title, call.with_dtype(self.scale, SCALE), safe=viewed, note=note)


@dataclass(frozen=True)
class PagedWithoutScaledV(Assertion):
    """With pages K and V come through one path, which is made for scales on both."""

    message = "paged KV with qk_blockscaled requires v_blockscaled"
    sites = at(538)
    reason = "page_table and sfq are given, sfv is not"
    looks_at = ("page_table", "sfq", "sfv")
    requires = "sfv where there are both page_table and sfq"
    category = "presence"

    @classmethod
    def broken(cls, call: AttentionCall) -> bool:
        return call.page_table is not None and call.scales_qk and not call.scales_v

    def fixes(self, call: AttentionCall, /) -> Iterator[Fix[AttentionCall]]:
        v = replace(call.v, dtype=QUANTIZED)
        scaled = call.replace(v=v, sfv=scales_of(v), v_sf_vec_size=BLOCK)
        yield Fix("Quantize v too and pass sfv", scaled, safe=False, note=REQUANTIZE)

    @classmethod
    def example(cls) -> AttentionCall:
        k, v = (TensorSpec((2, 128, 1, 128), dtype) for dtype in (QUANTIZED, DType.BF16))
        table = TensorSpec((1, 2), DType.I32)
        return VALID.replace(k=k, v=v, sfk=scales_of(k), page_table=table)


@dataclass(frozen=True)
class ScaledVNotE4m3(Assertion):
    """V is dequantized in the kernel from E4M3 and nothing else."""

    message = "v_blockscaled V must be float8_e4m3fn"
    sites = at(540)
    reason = "sfv is given, so v has to be float8_e4m3fn"
    looks_at = ("v.dtype", "sfv")
    requires = "v float8_e4m3fn where there is sfv"

    @classmethod
    def broken(cls, call: AttentionCall) -> bool:
        return call.scales_v and call.v.dtype is not QUANTIZED

    def fixes(self, call: AttentionCall, /) -> Iterator[Fix[AttentionCall]]:
        if call.v.dtype in HALVES:
            yield Fix(
                "Leave sfv out", call.replace(sfv=None, v_sf_vec_size=None), safe=True, note="v is no codes"
            )
        yield Fix("Quantize v to float8_e4m3fn", call.with_dtype("v", QUANTIZED), safe=False, note=REQUANTIZE)

    @classmethod
    def example(cls) -> AttentionCall:
        return FULL.with_dtype("v", DType.BF16)


@dataclass(frozen=True)
class VScaleType(ScaleType):
    """Exponents alone: a scale is a power of two, and its byte is the exponent."""

    message = "sfv must be float8_e8m0fnu"
    sites = at(541)
    reason = "sfv has another type than float8_e8m0fnu"
    looks_at = ("sfv.dtype",)
    requires = "sfv float8_e8m0fnu"
    scale = "sfv"

    @classmethod
    def example(cls) -> AttentionCall:
        return FULL.with_dtype("sfv", DType.U8)


class VectorSize(Assertion):
    """The kernel is compiled for a number of elements that share a scale."""

    category = "presence"
    size: ClassVar[str]

    @classmethod
    def broken(cls, call: AttentionCall) -> bool:
        relevant = call.scales_v if cls.size == "v_sf_vec_size" else call.scales_qk
        return relevant and getattr(call, cls.size) is None

    def fixes(self, call: AttentionCall, /) -> Iterator[Fix[AttentionCall]]:
        yield Fix(f"Pass {self.size}={BLOCK}", call.replace(**{self.size: BLOCK}), safe=True)


@dataclass(frozen=True)
class VVectorSizeMissing(VectorSize):
    """The kernel is compiled for a number of elements that share a scale."""

    message = "v_sf_vec_size must be provided for v_blockscaled"
    sites = at(542)
    reason = "sfv is given and v_sf_vec_size is not"
    looks_at = ("sfv", "v_sf_vec_size")
    requires = "v_sf_vec_size where there is sfv"
    size = "v_sf_vec_size"

    @classmethod
    def example(cls) -> AttentionCall:
        return FULL.replace(v_sf_vec_size=None)


@dataclass(frozen=True)
class OneOfTwoScales(Assertion):
    """Both sides of the first product are scaled, or none."""

    message = "sfq and sfk must both be provided for qk_blockscaled"
    sites = at(546, 562)
    reason = "of sfq and sfk only one is given"
    looks_at = ("sfq", "sfk")
    requires = "sfq and sfk, or neither"
    category = "presence"

    @classmethod
    def broken(cls, call: AttentionCall) -> bool:
        return (call.sfq is None) != (call.sfk is None)

    def fixes(self, call: AttentionCall, /) -> Iterator[Fix[AttentionCall]]:
        both = call.replace(sfq=call.sfq or scales_of(call.q), sfk=call.sfk or scales_of(call.k))
        yield Fix("Pass the other one too", both.replace(qk_sf_vec_size=BLOCK), safe=False, note=REQUANTIZE)

    @classmethod
    def example(cls) -> AttentionCall:
        return VALID.replace(sfk=None)


@dataclass(frozen=True)
class QkVectorSizeMissing(VectorSize):
    """The kernel is compiled for a number of elements that share a scale."""

    message = "qk_sf_vec_size must be provided for qk_blockscaled"
    sites = at(547)
    reason = "sfq is given and qk_sf_vec_size is not"
    looks_at = ("sfq", "qk_sf_vec_size")
    requires = "qk_sf_vec_size where there is sfq"
    size = "qk_sf_vec_size"

    @classmethod
    def example(cls) -> AttentionCall:
        return VALID.replace(qk_sf_vec_size=None)


@dataclass(frozen=True)
class ScaledQNotE4m3(Assertion):
    """The block-scaled product takes E4M3 codes on both sides."""

    message = "qk_blockscaled Q must be float8_e4m3fn"
    sites = at(550)
    reason = "sfq is given, so q has to be float8_e4m3fn"
    looks_at = ("q.dtype", "sfq")
    requires = "q float8_e4m3fn where there is sfq"

    @classmethod
    def broken(cls, call: AttentionCall) -> bool:
        return call.scales_qk and call.q.dtype is not QUANTIZED

    def fixes(self, call: AttentionCall, /) -> Iterator[Fix[AttentionCall]]:
        quantized = call.with_dtype("q", QUANTIZED).with_dtype("k", QUANTIZED)
        yield Fix("Quantize q and k to float8_e4m3fn", quantized, safe=False, note=REQUANTIZE)

    @classmethod
    def example(cls) -> AttentionCall:
        return VALID.with_dtype("q", DType.BF16).with_dtype("k", DType.BF16)


@dataclass(frozen=True)
class ScaledQkDiffer(Assertion):
    """The block-scaled product takes one type of codes."""

    message = "qk_blockscaled Q and K must have the same dtype"
    sites = at(553)
    reason = "sfq is given, so k has to be float8_e4m3fn as q is"
    looks_at = ("q.dtype", "k.dtype", "sfq")
    requires = "k of q's type where there is sfq"

    @classmethod
    def broken(cls, call: AttentionCall) -> bool:
        return call.scales_qk and call.q.dtype is not call.k.dtype

    def fixes(self, call: AttentionCall, /) -> Iterator[Fix[AttentionCall]]:
        quantized = call.with_dtype("k", call.q.dtype)
        yield Fix(f"Quantize k to {call.q.dtype}", quantized, safe=False, note=REQUANTIZE)

    @classmethod
    def example(cls) -> AttentionCall:
        return VALID.with_dtype("k", DType.F8_E5M2)


@dataclass(frozen=True)
class QScaleType(ScaleType):
    """Exponents alone: a scale is a power of two, and its byte is the exponent."""

    message = "sfq must be float8_e8m0fnu"
    sites = at(554)
    reason = "sfq has another type than float8_e8m0fnu"
    looks_at = ("sfq.dtype",)
    requires = "sfq float8_e8m0fnu"
    scale = "sfq"

    @classmethod
    def example(cls) -> AttentionCall:
        return VALID.with_dtype("sfq", DType.U8)


@dataclass(frozen=True)
class KScaleType(ScaleType):
    """Exponents alone: a scale is a power of two, and its byte is the exponent."""

    message = "sfk must be float8_e8m0fnu"
    sites = at(555)
    reason = "sfk has another type than float8_e8m0fnu"
    looks_at = ("sfk.dtype",)
    requires = "sfk float8_e8m0fnu"
    scale = "sfk"

    @classmethod
    def example(cls) -> AttentionCall:
        return VALID.with_dtype("sfk", DType.F32)


@dataclass(frozen=True)
class UnscaledVNotHalf(Assertion):
    """Without scales of its own V enters the second product as it is, in half precision."""

    message = "qk_blockscaled V must be float16 or bfloat16"
    sites = at(557)
    reason = "sfq is given and sfv is not, so v has to be float16 or bfloat16"
    looks_at = ("v.dtype", "sfq", "sfv")
    requires = "v float16 or bfloat16 where there is sfq and no sfv"

    @classmethod
    def broken(cls, call: AttentionCall) -> bool:
        return call.scales_qk and not call.scales_v and call.v.dtype not in HALVES

    def fixes(self, call: AttentionCall, /) -> Iterator[Fix[AttentionCall]]:
        if call.v.dtype is QUANTIZED:
            scaled = call.replace(sfv=scales_of(call.v), v_sf_vec_size=BLOCK)
            yield Fix("Pass sfv too", scaled, safe=False, note="the scales that v was quantized with")
        yield Fix("Pass v in bfloat16", call.with_dtype("v", DType.BF16), safe=False, note="not quantized")

    @classmethod
    def example(cls) -> AttentionCall:
        return VALID.with_dtype("v", QUANTIZED)


SCALE_ASSERTIONS = (
    PagedWithoutScaledV,
    ScaledVNotE4m3,
    VScaleType,
    VVectorSizeMissing,
    OneOfTwoScales,
    QkVectorSizeMissing,
    ScaledQNotE4m3,
    ScaledQkDiffer,
    QScaleType,
    KScaleType,
    UnscaledVNotHalf,
)
