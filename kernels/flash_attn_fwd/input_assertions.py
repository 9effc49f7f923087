"""What the interface asserts of types, lengths, devices and heads, after the block scales."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Self

from kernels.checking import Fix
from kernels.dtypes import DType, Torch
from kernels.flash_attn_fwd.scale_assertions import REQUANTIZE, Assertion, dtype_of
from kernels.flash_attn_fwd.signature import (
    FULL,
    HALVES,
    PLAIN,
    QUANTIZED,
    AttentionCall,
    at,
)
from kernels.spec import TensorSpec

INPUTS = (*HALVES, DType.F8_E4M3FN, DType.F8_E5M2)
LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")


@dataclass(frozen=True)
class InputTypeUnsupported(Assertion):
    """The kernels are written for two half precisions and two FP8 types."""

    message = "inputs must be float16, bfloat16, fp8 e4m3fn, or fp8 e5m2"
    sites = at(563)
    reason = "v is of none of the four types"
    looks_at = ("v.dtype", "sfq")
    requires = "v float16, bfloat16, float8_e4m3fn or float8_e5m2"

    @classmethod
    def broken(cls, call: AttentionCall) -> bool:
        return not call.scales_qk and call.v.dtype not in INPUTS

    def fixes(self, call: AttentionCall, /) -> Iterator[Fix[AttentionCall]]:
        wide = {name: replace(getattr(call, name), dtype=DType.BF16) for name in ("q", "k", "v")}
        yield Fix("Pass q, k and v in bfloat16", call.replace(**wide), safe=False, note="24 bits become 8")

    @classmethod
    def example(cls) -> AttentionCall:
        return PLAIN.with_dtype("v", DType.F32)


@dataclass(frozen=True)
class InputTypesDiffer(Assertion):
    """One product has one type; what carries scales is left out of the comparison."""

    message = "{a}.dtype {present[a].dtype} != {b}.dtype {present[b].dtype}"
    sites = at(584)
    reason = "{first} is {one} and {second} is {other}; without scales they have to have one type"
    looks_at = ("q.dtype", "k.dtype", "v.dtype")
    requires = "one type for q, k and v; with sfq for q and k"
    first: str
    one: Torch
    second: str
    other: Torch

    @classmethod
    def find(cls, call: AttentionCall, /) -> Iterator[Self]:
        names = ("q", "k") if call.scales_qk else ("q",) if call.scales_v else ("q", "k", "v")
        for a, b in combinations(names, 2):
            one, other = getattr(call, a).dtype, getattr(call, b).dtype
            if call.assertions and one is not other:
                yield cls(a, Torch(one), b, Torch(other))

    def fixes(self, call: AttentionCall, /) -> Iterator[Fix[AttentionCall]]:
        for dtype in dict.fromkeys((self.one.dtype, self.other.dtype)):
            alike = {name: replace(getattr(call, name), dtype=dtype) for name in ("q", "k", "v")}
            note = REQUANTIZE if dtype not in HALVES else "an FP8 cache has to be dequantized with its scales"
            yield Fix(f"Pass q, k and v as {dtype}", call.replace(**alike), safe=False, note=note)

    @classmethod
    def example(cls) -> AttentionCall:
        return PLAIN.with_dtype("k", QUANTIZED).with_dtype("v", QUANTIZED)


class LengthsCheck(Assertion):
    """A check of the four tensors of lengths."""

    @classmethod
    def refused(cls, call: AttentionCall) -> list[str]:
        """Names of those that break it."""
        tensors = [(name, getattr(call, name)) for name in LENGTHS]
        return [name for name, tensor in tensors if tensor is not None and cls.refuses(tensor)]

    def wrong(self, call: AttentionCall, /) -> list[str]:
        return self.refused(call)

    @classmethod
    def refuses(cls, tensor: TensorSpec) -> bool:
        """Whether a tensor breaks it."""
        raise NotImplementedError(cls.__name__)

    @classmethod
    def broken(cls, call: AttentionCall) -> bool:
        return bool(cls.refused(call))


@dataclass(frozen=True)
class LengthsNotInt32(LengthsCheck):
    """The kernel reads lengths in 32 bits."""

    message = "cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k must be int32"
    sites = at(592)
    reason = "one of cu_seqlens_q, cu_seqlens_k, seqused_q and seqused_k has another type than int32"
    looks_at = tuple(f"{name}.dtype" for name in LENGTHS)
    requires = "int32 lengths"

    @classmethod
    def refuses(cls, tensor: TensorSpec) -> bool:
        return tensor.dtype is not DType.I32

    def fixes(self, call: AttentionCall, /) -> Iterator[Fix[AttentionCall]]:
        wrong = self.wrong(call)
        converted = call.replace(**{name: replace(getattr(call, name), dtype=DType.I32) for name in wrong})
        yield Fix(f"Convert {' and '.join(wrong)} to int32", converted, safe=True)

    @classmethod
    def example(cls) -> AttentionCall:
        return PLAIN.replace(seqused_k=TensorSpec((1,), DType.I64))


@dataclass(frozen=True)
class LengthsStrided(LengthsCheck):
    """The kernel reads lengths one after the other."""

    message = "cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k must be contiguous"
    sites = at(595)
    reason = "one of cu_seqlens_q, cu_seqlens_k, seqused_q and seqused_k has a stride other than 1"
    looks_at = tuple(f"{name}.strides" for name in LENGTHS)
    requires = "lengths with stride 1"
    category = "layout"

    @classmethod
    def refuses(cls, tensor: TensorSpec) -> bool:
        return tensor.ndim > 0 and tensor.strides[0] != 1

    def fixes(self, call: AttentionCall, /) -> Iterator[Fix[AttentionCall]]:
        wrong = self.wrong(call)
        dense = call.replace(**{name: getattr(call, name).contiguous() for name in wrong})
        yield Fix(f"Pass {' and '.join(wrong)} contiguous", dense, safe=True)

    @classmethod
    def example(cls) -> AttentionCall:
        lengths = TensorSpec((2,), DType.I32, (2,))
        return PLAIN.replace(q=TensorSpec((256, 1, 128), DType.BF16), cu_seqlens_q=lengths)


@dataclass(frozen=True)
class SinkNotBfloat16(Assertion):
    """The sink's logit is added in the kernel from bfloat16."""

    message = "learnable_sink must be bfloat16"
    sites = at(600)
    reason = "learnable_sink has another type than bfloat16"
    looks_at = ("learnable_sink.dtype",)
    requires = "learnable_sink bfloat16"

    @classmethod
    def broken(cls, call: AttentionCall) -> bool:
        return dtype_of(call.learnable_sink) not in (None, DType.BF16)

    def fixes(self, call: AttentionCall, /) -> Iterator[Fix[AttentionCall]]:
        converted = call.with_dtype("learnable_sink", DType.BF16)
        yield Fix("Convert learnable_sink to bfloat16", converted, safe=False, note="rounded to 8 bits")

    @classmethod
    def example(cls) -> AttentionCall:
        return PLAIN.replace(learnable_sink=TensorSpec((1,), DType.F32))


ON_DEVICE = ("q", "k", "v", "q_descale", "k_descale", "v_descale", *LENGTHS, "page_table", "learnable_sink")
"""Tensors whose device is looked at; scales of blocks are not among them."""


@dataclass(frozen=True)
class NotOnGpu(Assertion):
    """A kernel reads its GPU's memory."""

    message = "inputs must be on CUDA device"
    sites = at(603)
    reason = "one of the inputs is on the host"
    looks_at = tuple(f"{name}.device" for name in ON_DEVICE)
    requires = "every input on a CUDA device"
    category = "device"

    @classmethod
    def broken(cls, call: AttentionCall) -> bool:
        return bool(cls.on_host(call))

    @classmethod
    def on_host(cls, call: AttentionCall) -> list[str]:
        """Names of the inputs that are not on a GPU."""
        tensors = ((name, tensor) for name, tensor in call.tensors() if name in ON_DEVICE)
        return [name for name, tensor in tensors if tensor.device_type != "cuda"]

    def wrong(self, call: AttentionCall, /) -> list[str]:
        return self.on_host(call)

    def fixes(self, call: AttentionCall, /) -> Iterator[Fix[AttentionCall]]:
        moved = {name: replace(tensor, device="cuda") for name, tensor in call.tensors() if name in ON_DEVICE}
        yield Fix("Move every input to the GPU", call.replace(**moved), safe=True)

    @classmethod
    def example(cls) -> AttentionCall:
        return PLAIN.with_tensor("k", device="cpu")


def own_arch(call: AttentionCall) -> Iterator[Fix[AttentionCall]]:
    """Nothing said of the architecture where something was: the device's own is then taken."""
    if call._arch is not None:
        yield Fix(
            "Leave _arch out",
            call.without("_arch"),
            safe=False,
            note="the device's own is then taken, which helps where _arch does not say what it is",
        )


class OnGeneration(Assertion):
    """A check of the GPU's generation, which `_arch` says where it is passed, else the target."""

    def describe_actual(self, call: AttentionCall, /) -> str:
        found = super().describe_actual(call)
        if call._arch is not None:
            return found
        return ", ".join(filter(None, [found, f"target = {call.target}"]))


@dataclass(frozen=True)
class CapabilityUnsupported(OnGeneration):
    """A kernel is written for a generation's own instructions."""

    message = (
        "Unsupported compute capability. Supported: 8.x, 9.x, 10.x, 11.x, and architectures registered "
        "through "
        "the forward-host bridge"
    )
    sites = at(621)
    reason = "the GPU is of no generation that there are kernels for"
    looks_at = ("_arch",)
    requires = "a GPU of compute capability 8.0 to 11.9"
    category = "values"

    @classmethod
    def broken(cls, call: AttentionCall) -> bool:
        return call.generation not in (None, 8, 9, 10, 11)

    def fixes(self, call: AttentionCall, /) -> Iterator[Fix[AttentionCall]]:
        yield from own_arch(call)

    def remedy(self, call: AttentionCall, /) -> str:
        return "no argument makes a kernel for this GPU: take another attention backend, or another GPU"

    @classmethod
    def example(cls) -> AttentionCall:
        return PLAIN.replace(_arch=120)


@dataclass(frozen=True)
class HeadsNotShared(Assertion):
    """Each head of K and V serves as many heads of Q."""

    message = "num_head must be divisible by num_head_kv"
    sites = at(625)
    reason = "the heads of q are no multiple of the heads of v"
    looks_at = ("q.shape", "v.shape")
    requires = "heads of q a multiple of heads of v"
    category = "divisibility"

    @classmethod
    def evaluable(cls, call: AttentionCall, /) -> bool:
        return call.q.ndim >= 2 and call.v.ndim >= 2 and call.v.shape[-2] > 0

    @classmethod
    def broken(cls, call: AttentionCall) -> bool:
        return bool(call.q.shape[-2] % call.v.shape[-2])

    @classmethod
    def example(cls) -> AttentionCall:
        three, two = (TensorSpec((1, 256, heads, 128), DType.BF16) for heads in (3, 2))
        return PLAIN.replace(q=three, k=two, v=two)


@dataclass(frozen=True)
class DescaleWithoutFp8(Assertion):
    """A scale of a whole head belongs to FP8 codes."""

    message = "q_descale/k_descale/v_descale are only supported for FP8 inputs"
    sites = at(723)
    reason = "a descale is given and v is not FP8"
    looks_at = ("q_descale", "k_descale", "v_descale", "v.dtype")
    requires = "no descale unless v is FP8"
    category = "presence"

    @classmethod
    def broken(cls, call: AttentionCall) -> bool:
        return not call.is_fp8 and any((call.q_descale, call.k_descale, call.v_descale))

    def fixes(self, call: AttentionCall, /) -> Iterator[Fix[AttentionCall]]:
        bare = call.without("q_descale", "k_descale", "v_descale")
        yield Fix(
            "Leave the descales out", bare, safe=False, note="right where they are 1, else multiply them in"
        )

    @classmethod
    def example(cls) -> AttentionCall:
        return PLAIN.replace(k_descale=TensorSpec((1, 1), DType.F32))


@dataclass(frozen=True)
class Fp8NeedsSm100(OnGeneration):
    """The FP8 products of this kernel are instructions of data-centre Blackwell."""

    message = "FP8 is only supported on SM100 (compute capability 10.x) for FA4 CuTe."
    sites = at(729)
    reason = "v is FP8 and the GPU is not of compute capability 10.x"
    looks_at = ("v.dtype", "_arch")
    requires = "compute capability 10.x for FP8"
    category = "device"

    @classmethod
    def broken(cls, call: AttentionCall) -> bool:
        return call.is_fp8 and call.generation not in (None, 10)

    def fixes(self, call: AttentionCall, /) -> Iterator[Fix[AttentionCall]]:
        yield from own_arch(call)
        wide = {name: replace(getattr(call, name), dtype=DType.BF16) for name in ("q", "k", "v")}
        bare = call.without("sfq", "sfk", "sfv", "qk_sf_vec_size", "v_sf_vec_size")
        bare = bare.without("q_descale", "k_descale", "v_descale")
        note = "FP8 numbers have to be dequantized with their scales: twice the memory for each tensor"
        yield Fix("Pass q, k and v in bfloat16, without scales", bare.replace(**wide), safe=False, note=note)

    def remedy(self, call: AttentionCall, /) -> str:
        return "FP8 itself needs another GPU, of compute capability 10.x, or another attention backend"

    @classmethod
    def example(cls) -> AttentionCall:
        return FULL.replace(_arch=90)


INPUT_ASSERTIONS = (
    InputTypeUnsupported,
    InputTypesDiffer,
    LengthsNotInt32,
    LengthsStrided,
    SinkNotBfloat16,
    NotOnGpu,
    CapabilityUnsupported,
    HeadsNotShared,
    DescaleWithoutFp8,
    Fp8NeedsSm100,
)
