"""What upstream's compiled launcher of per_token_group_quant refuses, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernels.checking import Fix, LauncherCheck
from kernels.dtypes import DType
from kernels.per_token_group_quant.launcher_counts import (
    MaskDevice,
    MaskDims,
    MaskDtype,
    MaskExperts,
    MaskStrided,
    MaskTypeHasNoName,
    PaddedCountDtype,
    SortedIdsDtype,
    SortedIdsTooFew,
    ValidTokensOutOfRange,
)
from kernels.per_token_group_quant.launcher_rows import (
    ColumnMajorScalesHaveGaps,
    ExpertStrideUnaligned,
    GroupSizeDoesNotDivide,
    InputAddressUnaligned,
    InputRowStrideUnaligned,
    InputWidthDiffers,
    RowMajorScalesHaveGaps,
    ScaleColumnsDiffer,
    ScaleOffsetsOverflow,
)
from kernels.per_token_group_quant.launcher_tensors import (
    CodesColumnStride,
    CodesDevice,
    CodesDims,
    CodesRows,
    InputColumnStride,
    InputDims,
    ScalesDevice,
    ScalesDims,
    ScalesRows,
)
from kernels.per_token_group_quant.signature import (
    LAUNCHER,
    VALID,
    QuantCall,
)
from kernels.spec import TensorSpec


class CompilerCheck(LauncherCheck[QuantCall]):
    """A static assertion: the kernel of this combination does not compile, and the build log carries the
    text.
    """

    @property
    def text(self) -> str:
        return (
            "Failed to build JIT module sgl_kernel_jit_per_token_group_quant: "
            f'error: static assertion failed with "{self.message}"'
        )


@dataclass(frozen=True)
class Fp32WithFusedSilu(CompilerCheck):
    """SiLU's product is rounded to the input type, which is only defined here for 16-bit types."""

    message = "fp32 inputs do not implement the fused silu"
    sites = (LAUNCHER.at("static_assert", None, 256),)
    reason = "the input is float32, and fuse_silu_and_mul is compiled for bfloat16 and float16 only"
    looks_at = ("input.dtype", "fuse_silu_and_mul")
    requires = "a bfloat16 or float16 input with fuse_silu_and_mul"
    category = "dtype"

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.fuse_silu_and_mul and call.input.dtype is DType.F32:
            yield cls()

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield Fix(
            "Cast the input to bfloat16", call.with_dtype("input", DType.BF16), safe=True, note="one copy"
        )

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.replace(input=TensorSpec((4, 512), DType.F32), fuse_silu_and_mul=True)


@dataclass(frozen=True)
class Int8WithUe8m0(CompilerCheck):
    """Power-of-two scales are defined relative to E4M3's largest value."""

    message = "ue8m0 scales imply fp8 output"
    sites = (LAUNCHER.at("static_assert", None, 260),)
    reason = "scale_ue8m0 is True and the codes are int8; packed exponents exist for FP8 codes only"
    looks_at = ("scale_ue8m0", "output_q.dtype", "out_dtype")
    requires = "float8_e4m3fn codes with scale_ue8m0"
    category = "dtype"

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        codes = call.output_q.dtype if call.output_q is not None else call.out_dtype
        if call.scale_ue8m0 and codes is DType.I8:
            yield cls()

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        if call.out_dtype is DType.I8:
            call = call.without("out_dtype")
        fp8 = call if call.output_q is None else call.with_dtype("output_q", DType.F8_E4M3FN)
        yield Fix("Make the codes float8_e4m3fn", fp8, safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.without("output_q", "output_s").replace(out_dtype=DType.I8, scale_ue8m0=True)


COMPILED = (Fp32WithFusedSilu, Int8WithUe8m0)


ON_SORTED = (SortedIdsDtype, PaddedCountDtype, ValidTokensOutOfRange)


ON_INPUT = (InputDims, InputColumnStride)


ON_CODES = (CodesDims, CodesRows, CodesColumnStride, CodesDevice)


ON_SCALES = (ScalesDims, ScalesRows, ScalesDevice)


ON_ALIGNMENT = (ExpertStrideUnaligned, InputAddressUnaligned, InputRowStrideUnaligned)


ON_WIDTHS = (
    GroupSizeDoesNotDivide,
    InputWidthDiffers,
    ScaleColumnsDiffer,
    RowMajorScalesHaveGaps,
    ColumnMajorScalesHaveGaps,
    ScaleOffsetsOverflow,
)


ON_COUNTS = (
    MaskTypeHasNoName,
    MaskDims,
    MaskExperts,
    MaskStrided,
    MaskDtype,
    MaskDevice,
    SortedIdsTooFew,
)
