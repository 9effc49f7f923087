"""Block-scaled attention: what the kernel refuses as it is traced, what only we say, and the operation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from kernels.checking import Category, Check, Fix, aside
from kernels.dtypes import DType
from kernels.flash_attn_fwd.input_assertions import INPUT_ASSERTIONS
from kernels.flash_attn_fwd.scale_assertions import BYTES, REQUANTIZE, SCALE_ASSERTIONS
from kernels.flash_attn_fwd.signature import (
    BLOCK,
    FUNCTION,
    INTERFACE,
    KERNEL,
    MODULE,
    PLAIN,
    QUANTIZED,
    SCALE,
    VALID,
    AttentionCall,
    fill,
    fit,
    like,
    scales_of,
)
from kernels.registry import Operation

CUTE = {
    DType.F16: "Float16",
    DType.BF16: "BFloat16",
    DType.F32: "Float32",
    DType.F8_E4M3FN: "Float8E4M3FN",
    DType.F8_E5M2: "Float8E5M2",
    DType.F8_E8M0: "Float8E8M0FNU",
    DType.U8: "Uint8",
    DType.I8: "Int8",
    DType.I32: "Int32",
}


@dataclass(frozen=True, slots=True)
class CuTe:
    """Prints a type as the kernel's own language does: `BFloat16`."""

    dtype: DType

    def __str__(self) -> str:
        return CUTE.get(self.dtype, self.dtype.torch_name)


class TracedTypes(Check[AttentionCall]):
    """Two types that have to be one while the kernel is traced."""

    raises: ClassVar[type[Exception]] = TypeError
    category: ClassVar[Category] = "dtype"

    def describe_actual(self, call: AttentionCall, /) -> str:
        return ", ".join(f"{name} is {tensor}" for name, tensor in call.tensors())


@dataclass(frozen=True)
class TracedQkDiffer(TracedTypes):
    """The first product multiplies one type; with sfv alone the interface does not compare k."""

    message = "Type mismatch: {self.q_dtype} != {self.k_dtype}"
    sites = (KERNEL.at("FlashAttentionForwardSm100.__call__", None, 873),)
    reason = "q is {q} and k is {k}; they have to have one type"
    looks_at = ("q.dtype", "k.dtype", "sfv")
    requires = "k of q's type"
    q: CuTe
    k: CuTe

    @classmethod
    def find(cls, call: AttentionCall, /) -> Iterator[Self]:
        if call.q.dtype is not call.k.dtype:
            yield cls(CuTe(call.q.dtype), CuTe(call.k.dtype))

    def fixes(self, call: AttentionCall, /) -> Iterator[Fix[AttentionCall]]:
        alike = call.with_dtype("k", call.q.dtype)
        yield Fix(f"Pass k as {call.q.dtype}", alike, safe=False, note="its numbers have to be converted")

    @classmethod
    def example(cls) -> AttentionCall:
        v = like(QUANTIZED)
        return PLAIN.replace(k=like(QUANTIZED), v=v, sfv=scales_of(v), v_sf_vec_size=BLOCK)


@dataclass(frozen=True)
class TracedQvDiffer(TracedTypes):
    """Without scales both products multiply one type."""

    message = "Type mismatch: {self.q_dtype} != {self.v_dtype}"
    sites = (KERNEL.at("FlashAttentionForwardSm100.__call__", None, 879),)
    reason = "q is {q} and v is {v}; without scales they have to have one type"
    looks_at = ("q.dtype", "v.dtype", "sfq", "sfv")
    requires = "v of q's type, or scales"
    q: CuTe
    v: CuTe

    @classmethod
    def find(cls, call: AttentionCall, /) -> Iterator[Self]:
        if not call.scales_qk and not call.scales_v and call.q.dtype is not call.v.dtype:
            yield cls(CuTe(call.q.dtype), CuTe(call.v.dtype))

    def fixes(self, call: AttentionCall, /) -> Iterator[Fix[AttentionCall]]:
        alike = call.with_dtype("v", call.q.dtype)
        yield Fix(f"Pass v as {call.q.dtype}", alike, safe=False, note="its numbers have to be converted")

    @classmethod
    def example(cls) -> AttentionCall:
        return PLAIN.with_dtype("v", QUANTIZED).replace(assertions=False)


@dataclass(frozen=True)
class TracedScalesDiffer(TracedTypes):
    """One instruction takes both scales, in one type; the interface lets only one type through."""

    message = "Type mismatch: {self.sfq_dtype} != {self.sfk_dtype}"
    sites = (KERNEL.at("FlashAttentionForwardSm100.__call__", None, 881),)
    reason = "sfq is {q} and sfk is {k}; they have to have one type, float8_e8m0fnu"
    looks_at = ("sfq.dtype", "sfk.dtype", "assertions")
    requires = "sfk of sfq's type"
    q: CuTe
    k: CuTe

    @classmethod
    def evaluable(cls, call: AttentionCall, /) -> bool:
        return call.sfq is None or call.sfk is not None

    @classmethod
    def find(cls, call: AttentionCall, /) -> Iterator[Self]:
        if call.sfq is not None and call.sfk is not None and call.sfq.dtype is not call.sfk.dtype:
            yield cls(CuTe(call.sfq.dtype), CuTe(call.sfk.dtype))

    def fixes(self, call: AttentionCall, /) -> Iterator[Fix[AttentionCall]]:
        assert call.sfq is not None and call.sfk is not None  # noqa: PT018 (both are given where it fails)
        alike = call.with_dtype("sfq", SCALE).with_dtype("sfk", SCALE)
        viewed = all(scale.dtype in (*BYTES, SCALE) for scale in (call.sfq, call.sfk))
        yield Fix("View both scales as float8_e8m0fnu", alike, safe=viewed, note="the bytes stay as they are")

    @classmethod
    def example(cls) -> AttentionCall:
        return VALID.with_dtype("sfk", DType.U8).replace(assertions=False)


@dataclass(frozen=True)
class ScalesTooFew(Check[AttentionCall]):
    """The shapes of sfq, sfk and sfv are never checked: too few are read past their end."""

    raises = ValueError
    message = "{name} has {count} scales, and {needed} are read"
    reason = "{name} has {count} elements; {tensor} of {elements} elements has {needed} blocks of 32"
    looks_at = ("sfq.shape", "sfk.shape", "sfv.shape")
    requires = "a scale for each 32 elements of q, k and v"
    category = "shape"
    name: str
    count: int
    needed: int
    tensor: str = aside()
    elements: int = aside()

    @classmethod
    def find(cls, call: AttentionCall, /) -> Iterator[Self]:
        for name in ("q", "k", "v"):
            scale: Any = getattr(call, f"sf{name}")
            numel = getattr(call, name).numel
            if scale is not None and scale.numel < numel // BLOCK:
                yield cls(f"sf{name}", scale.numel, numel // BLOCK, name, numel)

    def describe_actual(self, call: AttentionCall, /) -> str:
        return f"{self.name} = {getattr(call, self.name)}, {self.tensor} = {getattr(call, self.tensor)}"

    def fixes(self, call: AttentionCall, /) -> Iterator[Fix[AttentionCall]]:
        wanted = scales_of(getattr(call, self.tensor))
        changed = call.replace(**{self.name: replace(wanted, dtype=getattr(call, self.name).dtype)})
        yield Fix(f"Pass a scale for each block in {self.name}", changed, safe=False, note=REQUANTIZE)

    @classmethod
    def example(cls) -> AttentionCall:
        return VALID.with_tensor("sfk", shape=(1, 256, 1))


STAGES = (
    *SCALE_ASSERTIONS,
    *INPUT_ASSERTIONS,
    TracedQkDiffer,
    TracedQvDiffer,
    TracedScalesDiffer,
    ScalesTooFew,
)

OPERATIONS = (
    Operation(
        name="flash_attn_fwd",
        title="Block-scaled attention",
        summary="Attention over FP8 codes, a power of two for each 32 of them as their scale, on Blackwell",
        call=AttentionCall,
        stages=STAGES,
        valid=VALID,
        fit=fit,
        fill=fill,
        outputs=(),
        source=INTERFACE,
        module=MODULE,
        function=FUNCTION,
        needs="a GPU of compute capability 10.x, for which this project has no kernel",
    ),
)
