"""What only the compiler refuses: upstream builds a kernel for each element type and convolution width."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from kernels.checking import Category, Fix, aside
from kernels.dtypes import DType
from kernels.inkling_attn_prologue.allocation import KWeightHasNoTaps, QkvrTypeHasNoName
from kernels.inkling_attn_prologue.bound import CUDA, PrologueCheck
from kernels.inkling_attn_prologue.derived import taps
from kernels.inkling_attn_prologue.signature import PrologueCall
from kernels.upstream import Site

CPP_NAMES = {
    DType.F64: "double",
    DType.F32: "fp32_t",
    DType.F16: "fp16_t",
    DType.BF16: "bf16_t",
    DType.F8_E4M3FN: "fp8_e4m3_t",
    DType.F8_E4M3FNUZ: "fp8_e4m3_t",
    DType.F8_E5M2: "fp8_e5m2_t",
    DType.F8_E5M2FNUZ: "fp8_e5m2_t",
    DType.BOOL: "bool",
}
"""Upstream's C++ names of element types; an integer type is called like torch's, with _t."""


ELEMENT_TYPES = {CPP_NAMES.get(dtype, f"{dtype}_t"): dtype for dtype in reversed(DType)}
"""The other way round; of two types of one name the plain one."""

MODULE_NAME = re.compile(
    r"sgl_kernel_jit_inkling_attn_prologue_fused_(\w{1,20}?)_([0-9]{1,4})_(true|false)_(true|false)_(true|false)_"
)


class CompilerCheck(PrologueCheck):
    """The kernel does not compile; one module holds all three prologues, so any of them fails alike."""

    raises = RuntimeError
    category: ClassVar[Category] = "dtype"
    module: str
    path: str
    line: int

    @property
    def text(self) -> str:
        return f"Failed to build JIT module {self.module} in …:\n{self.path}{super().text}"

    @classmethod
    def told(cls, call: PrologueCall, before: str, /) -> PrologueCall | None:
        """The call that the module's name tells, which stands before the compiler's own message."""
        names = list(MODULE_NAME.finditer(before))
        if not names:
            return None
        name, width, silu, residual, mxfp8 = names[-1].groups()
        changed = call.quantized() if mxfp8 == "true" else call
        changed = changed.replace(
            activation="silu" if silu == "true" else None, use_residual=residual == "true"
        )
        if name in ELEMENT_TYPES:
            changed = changed.with_dtype("qkvr", ELEMENT_TYPES[name])
        if int(width) >= 2:
            for tensor, axis, size in (
                ("k_weight", -1, int(width)),
                ("v_weight", -1, int(width)),
                ("k_cache", 1, int(width) - 1),
                ("v_cache", 1, int(width) - 1),
            ):
                shape = list(getattr(changed, tensor).shape)
                shape[axis] = size
                changed = changed.with_tensor(tensor, shape=tuple(shape))
        return changed


def module_of(call: PrologueCall) -> str:
    """The module's name: element type, W, SiLU, residual, MXFP8, programmatic dependent launch."""
    flags = (call.activation in ("silu", "swish"), call.use_residual, call.mxfp8_quant, True)
    name = CPP_NAMES.get(call.qkvr.dtype, f"{call.qkvr.dtype}_t")
    spelled = (str(flag).lower() if isinstance(flag, bool) else str(flag) for flag in flags)
    return "_".join(("sgl_kernel_jit_inkling_attn_prologue_fused", name, str(taps(call)), *spelled))


def _in_kernels(*lines: int) -> tuple[Site, ...]:
    names = (
        "inkling_attn_prologue_kernel",
        "inkling_attn_prologue_decode_kernel",
        "inkling_attn_prologue_extend_kernel",
    )
    return tuple(CUDA.at(name, line, line) for name, line in zip(names, lines, strict=True))


DIRECTORY = CUDA.path.removesuffix("inkling_attn_prologue_fused.cuh")


@dataclass(frozen=True)
class QkvrNotBfloat16(CompilerCheck):
    """Vector loads and roundings are written for bfloat16; a static assertion says so, without a sentence."""

    message = "inkling_attn_prologue_fused.cuh({line}): error: static assertion failed"
    sites = _in_kernels(145, 570, 977)
    reason = "qkvr is {got}; the kernel is written for bfloat16, and no other type compiles"
    looks_at = ("qkvr.dtype",)
    requires = "qkvr bfloat16"
    premises = (KWeightHasNoTaps, QkvrTypeHasNoName)
    line: int
    module: str = aside()
    path: str = aside()
    got: DType = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if call.qkvr.dtype is not DType.BF16:
            yield cls(145, module_of(call), DIRECTORY, call.qkvr.dtype)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        note = "the projection should write bfloat16; a slice that reaches beyond itself cannot be cast"
        yield Fix("Pass qkvr as bfloat16", call.with_dtype("qkvr", DType.BF16), safe=True, note=note)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_dtype("qkvr", DType.F16)


@dataclass(frozen=True)
class ConvolutionOfOneTap(CompilerCheck):
    """The history of a convolution of width 1 is an array of no elements, which device code may not have."""

    message = (
        'inkling_attn_prologue_fused.cuh({line}): error: zero-sized variable "{name}" is not allowed in '
        "device code"
    )
    sites = _in_kernels(233, 656, 1065)
    reason = "k_weight is {shape}, so the convolution's width is {width}; it must be at least 2"
    looks_at = ("k_weight.shape",)
    requires = "k_weight [dkv, W] with W at least 2"
    category = "shape"
    premises = (KWeightHasNoTaps, QkvrTypeHasNoName)
    line: int
    name: str
    module: str = aside()
    path: str = aside()
    shape: tuple[int, ...] = aside()
    width: int = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        width = taps(call)
        if width < 2:
            line, name = (656, "hist") if width else (234, "wt")
            yield cls(line, name, module_of(call), DIRECTORY, call.k_weight.shape, width)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        changed = call
        for name in ("k_weight", "v_weight"):
            shape = getattr(call, name).shape
            if len(shape) == 3 and shape[1] == 1:
                changed = changed.with_tensor(name, shape=(shape[0], shape[2]))
        if changed is not call:
            yield Fix("Pass the weights as [dkv, W]: weight.squeeze(1)", changed, safe=True, note="a view")

    @classmethod
    def example(cls) -> PrologueCall:
        call = cls.valid
        for name in ("k_weight", "v_weight"):
            channels, width = getattr(call, name).shape
            call = call.with_tensor(name, shape=(channels, 1, width))
        return call


COMPILED = (QkvrNotBfloat16, ConvolutionOfOneTap)
