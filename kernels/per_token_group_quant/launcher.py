"""What upstream's compiled launcher of per_token_group_quant refuses, in its order.

Half of these conditions have no text upstream, only a file and a line; their reasons here say what the
line tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from kernels.checking import Fix, LauncherCheck, aside
from kernels.dtypes import DType
from kernels.launching import NotContiguous, WrongDevice, WrongDims, WrongDtype, WrongSize, WrongStride
from kernels.per_token_group_quant.signature import LAUNCHER, MASKED, VALID, QuantCall, column_major_strides
from kernels.spec import TensorSpec
from kernels.upstream import Site

ROW_ALIGNMENT = 32
"""Bytes of one vectorised load: base address and strides of the input must be multiples of it."""

COUNT_DTYPES = (DType.I32, DType.I64)


def _sites(flat: tuple[int, int], masked: tuple[int, int] | None = None) -> tuple[Site, ...]:
    return tuple(LAUNCHER.at("run", *lines) for lines in (flat, masked) if lines is not None)


def _bare(pinned: int, released: int, expression: str) -> tuple[Site, ...]:
    return (LAUNCHER.at("run", pinned, released, expression=expression),)


class _Launched:
    """Mixed into matches: the flat launcher reports from the first site, the masked one from the second."""

    @classmethod
    def variant(cls, call: QuantCall, /) -> int:
        return int(call.masked)


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


@dataclass(frozen=True)
class InputDims(_Launched, WrongDims[QuantCall]):
    """Rows are [T, H]; per expert, [E, P, H]."""

    tensor = "input"
    sites = _sites((487, 538), (481, 532))
    looks_at = ("input.shape", "masked_m")
    requires = "input of 2 dimensions, or 3 with masked_m"

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        yield from _dims(call, tensor)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        changed, wanted = call, 2 + call.masked
        for name in ("input", "output_q", "output_s"):
            tensor = getattr(call, name)
            if tensor is not None and tensor.ndim > wanted and tensor.is_contiguous:
                extra = tensor.ndim - wanted + 1
                merged = 1
                for size in tensor.shape[:extra]:
                    merged *= size
                changed = changed.with_tensor(name, shape=(merged, *tensor.shape[extra:]))
        if changed is not call:
            yield Fix(
                "View the leading dimensions as one", changed, safe=True, note="a view; nothing is copied"
            )

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("input", shape=(2, 2, 256))


@dataclass(frozen=True)
class InputColumnStride(_Launched, WrongStride[QuantCall]):
    """Vectorised loads need a row's elements side by side."""

    tensor = "input"
    sites = _sites((487, 538), (481, 532))
    looks_at = ("input.strides",)
    requires = "last stride of input 1"
    premises = (InputDims,)

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        yield from _column_stride(tensor)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield dense(call, "input")

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("input", strides=(512, 2))


@dataclass(frozen=True)
class CodesDims(_Launched, WrongDims[QuantCall]):
    """Codes have the input's dimensions."""

    tensor = "output_q"
    sites = _sites((488, 539), (482, 533))
    looks_at = ("output_q.shape", "masked_m")
    requires = "output_q of 2 dimensions, or 3 with masked_m"

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        yield from _dims(call, tensor)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield _like_input(call, "output_q", call.hidden)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_q", shape=(4, 1, 256))


@dataclass(frozen=True)
class CodesRows(_Launched, WrongSize[QuantCall]):
    """Every input row has a row of codes."""

    tensor = "output_q"
    sites = CodesDims.sites
    looks_at = ("output_q.shape", "input.shape")
    requires = "as many rows in output_q as in input"
    premises = (InputDims, CodesDims)

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        yield from _rows(call, tensor)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield _like_input(call, "output_q", call.codes.shape[-1])

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_q", shape=(5, 256))


@dataclass(frozen=True)
class CodesColumnStride(_Launched, WrongStride[QuantCall]):
    """Vectorised stores need a row's codes side by side."""

    tensor = "output_q"
    sites = CodesDims.sites
    looks_at = ("output_q.strides",)
    requires = "last stride of output_q 1"
    premises = (CodesDims,)

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        yield from _column_stride(tensor)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield dense(call, "output_q")

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_q", strides=(512, 2))


class _OnInputsDevice(_Launched, WrongDevice[QuantCall]):
    """Matched after the input, whose device the launcher recorded."""

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        if tensor.device_index != call.input.device_index:
            yield call.input.device_index, tensor.device_index

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        if self.got.startswith("cuda") and call.input.device == "cpu":
            yield Fix(
                "Move the input to the GPU", call.with_tensor("input", device=self.found.device), safe=True
            )
        else:
            moved = call.with_tensor(self.tensor, device=call.input.device)
            yield Fix(f"Move {self.tensor} to the input's device", moved, safe=True)


@dataclass(frozen=True)
class CodesDevice(_OnInputsDevice):
    """One launch, one device."""

    tensor = "output_q"
    sites = CodesDims.sites
    looks_at = ("output_q.device", "input.device")
    requires = "output_q on the input's device"

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("input", device="cpu")


@dataclass(frozen=True)
class ScalesDims(_Launched, WrongDims[QuantCall]):
    """Scales have the input's dimensions."""

    tensor = "output_s"
    sites = _sites((489, 540), (483, 534))
    looks_at = ("output_s.shape", "masked_m")
    requires = "output_s of 2 dimensions, or 3 with masked_m"

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        yield from _dims(call, tensor)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        if call.output_q is not None and type(call.group_size) is int and call.group_size > 0:
            yield _like_input(call, "output_s", call.scale_columns)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_s", shape=(4, 1, 2))


@dataclass(frozen=True)
class ScalesRows(_Launched, WrongSize[QuantCall]):
    """Every input row has a row of scales."""

    tensor = "output_s"
    sites = ScalesDims.sites
    looks_at = ("output_s.shape", "input.shape")
    requires = "as many rows in output_s as in input"
    premises = (InputDims, ScalesDims)

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        yield from _rows(call, tensor)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield _like_input(call, "output_s", call.scales.shape[-1])

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_s", shape=(3, 2))


@dataclass(frozen=True)
class ScalesDevice(_OnInputsDevice):
    """One launch, one device."""

    tensor = "output_s"
    sites = ScalesDims.sites
    looks_at = ("output_s.device", "input.device")
    requires = "output_s on the input's device"

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_s", device="cuda:1")


class _Aligned(LauncherCheck[QuantCall]):
    """The input is read in 32-byte vectors."""

    category = "alignment"

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        dense = call.input.contiguous()
        if dense.strides[-2] * dense.itemsize % ROW_ALIGNMENT == 0:
            yield Fix(
                "Copy the input into memory of its own",
                call.replace(input=dense),
                safe=True,
                note="one copy of the input",
            )


@dataclass(frozen=True)
class ExpertStrideUnaligned(_Aligned):
    """Every expert's first row must start on a vector."""

    message = "input expert stride must keep rows 32B-aligned for the vectorized loads"
    sites = (LAUNCHER.at("run", 484, 535),)
    reason = "the expert stride of input is {got} bytes, which is not a multiple of 32"
    looks_at = ("input.strides",)
    requires = "an expert stride of a multiple of 32 bytes"
    premises = (InputDims,)
    got: int = aside()

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        stride = call.input.strides[0] * call.input.itemsize
        if call.masked and stride % ROW_ALIGNMENT:
            yield cls(stride)

    @classmethod
    def example(cls) -> QuantCall:
        return MASKED.with_tensor("input", strides=(4104, 512, 1))


@dataclass(frozen=True)
class InputAddressUnaligned(_Aligned):
    """The first row must start on a vector."""

    message = "input base pointer must be 32B-aligned for the vectorized loads"
    sites = (LAUNCHER.at("run", 496, 547),)
    reason = "the input starts {got} bytes after an aligned address, which is not a multiple of 32"
    looks_at = ("input.offset",)
    requires = "an input address of a multiple of 32 bytes"
    premises = (InputDims,)
    got: int = aside()

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.input.address % ROW_ALIGNMENT:
            yield cls(call.input.address)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("input", offset=8)


@dataclass(frozen=True)
class InputRowStrideUnaligned(_Aligned):
    """Every row must start on a vector."""

    message = "input token stride must keep rows 32B-aligned for the vectorized loads"
    sites = (LAUNCHER.at("run", 498, 549),)
    reason = "the row stride of input is {got} bytes, which is not a multiple of 32"
    looks_at = ("input.strides",)
    requires = "a row stride of a multiple of 32 bytes"
    premises = (InputDims,)
    got: int = aside()

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        stride = call.input.strides[-2] * call.input.itemsize
        if stride % ROW_ALIGNMENT:
            yield cls(stride)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("input", strides=(264, 1))


class _Bare(LauncherCheck[QuantCall]):
    """A condition that upstream tests without a text: the user sees a file, a line and nothing else."""


@dataclass(frozen=True)
class GroupSizeDoesNotDivide(_Bare):
    """A group may not run past the end of its row."""

    sites = _bare(506, 557, "CHECK_HOST(hidden_size % Trait::kGroupSize == 0)")
    reason = "the row has {width} elements, and {width} % {group_size} = {left}"
    looks_at = ("output_q.shape", "group_size")
    requires = "a width that group_size divides"
    category = "divisibility"
    premises = (CodesDims,)
    width: int
    group_size: int
    left: int

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        width = call.codes.shape[-1]
        if width % call.group_size:
            yield cls(width, call.group_size, width % call.group_size)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        for size in (256, 128, 64, 32, 16):
            if self.width % size == 0:
                changed = call.replace(group_size=size)
                if call.output_s is not None:
                    shape = (*call.output_s.shape[:-1], changed.allocated().scale_columns)
                    changed = changed.with_tensor("output_s", shape=shape)
                yield Fix(
                    f"Use group_size={size}",
                    changed,
                    safe=False,
                    note="another number of elements shares a scale",
                )

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.replace(
            input=TensorSpec((4, 192), DType.BF16),
            output_q=TensorSpec((4, 192), DType.F8_E4M3FN),
            output_s=TensorSpec((4, 1), DType.F32),
        )


@dataclass(frozen=True)
class InputWidthDiffers(_Bare):
    """The input is as wide as the codes, or twice as wide with the fused SiLU."""

    sites = _bare(507, 558, "CHECK_HOST(input.size(-1) == hidden_size * kSiluFactor)")
    reason = "input is {got} wide; {ways} × {width} columns of codes need {expected}"
    looks_at = ("input.shape", "output_q.shape", "fuse_silu_and_mul")
    requires = "input width = output_q width, or twice that with fuse_silu_and_mul"
    category = "shape"
    premises = (InputDims, CodesDims)
    got: int
    ways: int
    width: int
    expected: int

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        got, width = call.input.shape[-1], call.codes.shape[-1]
        if got != call.ways * width:
            yield cls(got, call.ways, width, call.ways * width)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        if call.fuse_silu_and_mul and self.got == self.width:
            yield Fix("Leave fuse_silu_and_mul off", call.without("fuse_silu_and_mul"), safe=False)
        if not call.fuse_silu_and_mul and self.got == 2 * self.width:
            yield Fix("Set fuse_silu_and_mul=True", call.replace(fuse_silu_and_mul=True), safe=False)
        if call.output_q is not None and call.output_s is not None and self.got % call.ways == 0:
            resized = call.with_tensor("output_q", shape=(*call.codes.shape[:-1], call.hidden))
            resized = resized.with_tensor("output_s", shape=(*call.scales.shape[:-1], resized.scale_columns))
            yield Fix("Size the outputs to the input", resized, safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.replace(fuse_silu_and_mul=True)


@dataclass(frozen=True)
class ScaleColumnsDiffer(_Bare):
    """One scale a group: a float32, or a byte of a word."""

    sites = _bare(
        508,
        559,
        "CHECK_HOST(num_scale_groups == (Trait::kUe8m0 ? div_ceil(num_groups, 4) : num_groups))",
    )
    reason = "output_s has {got} columns; {groups} groups need {expected}"
    looks_at = ("output_s.shape", "output_q.shape", "group_size")
    requires = "G columns of float32 scales, or ceil(G/4) of packed int32"
    category = "shape"
    premises = (CodesDims, ScalesDims)
    got: int
    groups: int
    expected: int

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.scales.shape[-1] != call.scale_columns:
            yield cls(call.scales.shape[-1], call.groups, call.scale_columns)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        shape = (*call.scales.shape[:-1], self.expected)
        strides = () if call.row_major else column_major_strides(shape[:-1], self.expected)
        resized = call.with_tensor("output_s", shape=shape, strides=strides)
        yield Fix(f"Allocate output_s as {list(shape)}", resized, safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_s", shape=(4, 3))


@dataclass(frozen=True)
class RowMajorScalesHaveGaps(_Bare):
    """Row-major scales lie side by side within a row."""

    sites = _bare(524, 575, "CHECK_HOST(scale_args.group_stride == 1)")
    reason = "output_s is row-major and its last stride is {got}"
    looks_at = ("output_s.strides",)
    requires = "last stride of a row-major output_s 1"
    category = "layout"
    premises = (ScalesDims,)
    got: int

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.row_major and call.scales.strides[-1] != 1:
            yield cls(call.scales.strides[-1])

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield dense(call, "output_s")

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_s", strides=(4, 2))


@dataclass(frozen=True)
class ColumnMajorScalesHaveGaps(_Bare):
    """Column-major scales of consecutive tokens lie side by side."""

    sites = _bare(530, 581, "CHECK_HOST(scale_args.token_stride == 1)")
    reason = "output_s is column-major and its token stride is {got}"
    looks_at = ("output_s.strides",)
    requires = "token stride of a column-major output_s 1"
    category = "layout"
    premises = (ScalesDims,)
    got: int

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if not call.row_major and call.scales.strides[-2] != 1:
            yield cls(call.scales.strides[-2])

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        *rows, columns = call.scales.shape
        relaid = call.with_tensor("output_s", strides=column_major_strides(tuple(rows), columns), offset=0)
        yield Fix("Lay output_s out column-major without gaps", relaid, safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_s", strides=(2, 8))


UINT32_MAX = 2**32 - 1


@dataclass(frozen=True)
class ScaleOffsetsOverflow(LauncherCheck[QuantCall]):
    """The kernel addresses scales with 32-bit offsets."""

    message = (
        "Internal Error: ScaleStoreArgs overflow. Something wild must happened.\n"
        "More debug info:  expert_bytes={} token_bytes={} group_bytes={}"
    )
    sites = (LAUNCHER.at("ScaleStoreArgs", 98, 95),)
    reason = "the scale buffer spans {experts} + {tokens} + {groups}, more than 32-bit offsets reach"
    looks_at = ("output_s.shape", "output_s.strides")
    requires = "a scale buffer of less than 2^32 elements (float32) or bytes (int32)"
    category = "shape"
    premises = (ScalesDims, CodesDims)
    experts: int
    tokens: int
    groups: int

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        scales = call.scales
        unit = 4 if scales.dtype is DType.I32 else 1
        expert, token, column = (
            size * stride * unit
            for size, stride in zip((1, 1, *scales.shape)[-3:], (0, 0, *scales.strides)[-3:], strict=True)
        )
        if max(expert, token, column, expert + token + column) > UINT32_MAX:
            yield cls(expert, token, column)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        if not call.scales.is_contiguous:
            yield dense(call, "output_s")

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_s", strides=(2**31, 1))


@dataclass(frozen=True)
class MaskDims(WrongDims[QuantCall]):
    """One count an expert."""

    tensor = "masked_m"
    sites = _sites((616, 714))
    looks_at = ("masked_m.shape",)
    requires = "masked_m of 1 dimension"

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        if tensor.ndim != 1:
            yield 1, tensor.ndim

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield Fix("Make masked_m [E]", call.with_tensor("masked_m", shape=(call.input.shape[0],)), safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return MASKED.with_tensor("masked_m", shape=(2, 1))


@dataclass(frozen=True)
class MaskExperts(WrongSize[QuantCall]):
    """One count an expert."""

    tensor = "masked_m"
    sites = MaskDims.sites
    looks_at = ("masked_m.shape", "input.shape")
    requires = "as many counts in masked_m as experts in input"
    premises = (InputDims, MaskDims)

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        if tensor.shape[0] != call.input.shape[0]:
            yield 0, "num_experts", call.input.shape[0], tensor.shape[0]

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield Fix(
            "One count an expert", call.with_tensor("masked_m", shape=(call.input.shape[0],)), safe=True
        )

    @classmethod
    def example(cls) -> QuantCall:
        return MASKED.with_tensor("masked_m", shape=(3,))


@dataclass(frozen=True)
class MaskStrided(NotContiguous[QuantCall]):
    """Counts are read as a dense array."""

    tensor = "masked_m"
    sites = MaskDims.sites
    looks_at = ("masked_m.strides",)
    requires = "masked_m contiguous"
    premises = (MaskDims,)

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        if not tensor.is_contiguous:
            yield ()

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield dense(call, "masked_m")

    @classmethod
    def example(cls) -> QuantCall:
        return MASKED.with_tensor("masked_m", strides=(2,))


@dataclass(frozen=True)
class MaskDtype(WrongDtype[QuantCall]):
    """Counts are 32- or 64-bit integers."""

    tensor = "masked_m"
    sites = MaskDims.sites
    looks_at = ("masked_m.dtype",)
    requires = "masked_m int32 or int64"

    @classmethod
    def causes(cls, call: QuantCall, tensor: TensorSpec, /) -> Iterator[tuple[Any, ...]]:
        if tensor.dtype not in COUNT_DTYPES:
            yield tensor.dtype, ", ".join(map(str, COUNT_DTYPES))

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield Fix("Cast masked_m to int32", call.with_dtype("masked_m", DType.I32), safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return MASKED.with_dtype("masked_m", DType.I16)


@dataclass(frozen=True)
class MaskDevice(_OnInputsDevice):
    """One launch, one device."""

    tensor = "masked_m"
    sites = MaskDims.sites
    looks_at = ("masked_m.device", "input.device")
    requires = "masked_m on the input's device"

    @classmethod
    def variant(cls, call: QuantCall, /) -> int:
        return 0

    @classmethod
    def example(cls) -> QuantCall:
        return MASKED.with_tensor("masked_m", device="cpu")


class _SortedDtype(LauncherCheck[QuantCall]):
    """The sorted layout's index arrays are int32."""

    category = "dtype"


@dataclass(frozen=True)
class SortedIdsDtype(_SortedDtype):
    """Token ids are read as int32."""

    message = "sorted_token_ids must have dtype int32"
    sites = (LAUNCHER.at("run", None, 671),)
    reason = "sorted_token_ids is {got}"
    looks_at = ("sorted_token_ids.dtype",)
    requires = "sorted_token_ids int32"
    got: DType = aside()

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.sorted_token_ids is not None and call.sorted_token_ids.dtype is not DType.I32:
            yield cls(call.sorted_token_ids.dtype)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield Fix("Cast sorted_token_ids to int32", call.with_dtype("sorted_token_ids", DType.I32), safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return SORTED.with_dtype("sorted_token_ids", DType.I64)


@dataclass(frozen=True)
class PaddedCountDtype(_SortedDtype):
    """The padded row count is read as int32."""

    message = "num_tokens_post_padded must have dtype int32"
    sites = (LAUNCHER.at("run", None, 672),)
    reason = "num_tokens_post_padded is {got}"
    looks_at = ("num_tokens_post_padded.dtype",)
    requires = "num_tokens_post_padded int32"
    got: DType = aside()

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        count = call.num_tokens_post_padded
        if call.sorted_token_ids is not None and count is not None and count.dtype is not DType.I32:
            yield cls(count.dtype)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        cast = call.with_dtype("num_tokens_post_padded", DType.I32)
        yield Fix("Cast num_tokens_post_padded to int32", cast, safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return SORTED.with_dtype("num_tokens_post_padded", DType.I64)


@dataclass(frozen=True)
class ValidTokensOutOfRange(LauncherCheck[QuantCall]):
    """Ids are int32, so their bound must be one too."""

    message = "num_valid_tokens out of range: {num_valid_tokens}"
    sites = (LAUNCHER.at("run", None, 673),)
    reason = "num_valid_tokens is {got}, outside 0 … 2^31 - 1"
    looks_at = ("num_valid_tokens",)
    requires = "0 <= num_valid_tokens < 2^31"
    category = "values"
    got: int

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        count = call.num_valid_tokens
        if call.sorted_token_ids is not None and isinstance(count, int) and not 0 <= count < 2**31:
            yield cls(count)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        rows = call.input.shape[0]
        yield Fix(f"Pass num_valid_tokens={rows}", call.replace(num_valid_tokens=rows), safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return SORTED.replace(num_valid_tokens=-1)


@dataclass(frozen=True)
class SortedIdsTooFew(LauncherCheck[QuantCall]):
    """Every row looks its token id up."""

    message = "sorted_token_ids must cover every row"
    sites = (LAUNCHER.at("run", None, 676),)
    reason = "sorted_token_ids has {got} ids for {rows} rows"
    looks_at = ("sorted_token_ids.shape", "input.shape")
    requires = "at least as many ids as input rows"
    category = "shape"
    premises = (InputDims,)
    got: int = aside()
    rows: int = aside()

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.sorted_token_ids is not None and call.sorted_token_ids.numel < call.input.shape[0]:
            yield cls(call.sorted_token_ids.numel, call.input.shape[0])

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield Fix(
            "One id a row", call.with_tensor("sorted_token_ids", shape=(call.input.shape[0],)), safe=True
        )

    @classmethod
    def example(cls) -> QuantCall:
        return SORTED.with_tensor("sorted_token_ids", shape=(3,))


SORTED = VALID.replace(
    sorted_token_ids=TensorSpec((4,), DType.I32),
    num_tokens_post_padded=TensorSpec((1,), DType.I32),
    num_valid_tokens=4,
)


def _dims(call: QuantCall, tensor: TensorSpec) -> Iterator[tuple[int, int]]:
    if tensor.ndim != 2 + call.masked:
        yield 2 + call.masked, tensor.ndim


def _rows(call: QuantCall, tensor: TensorSpec) -> Iterator[tuple[int, str, int, int]]:
    names = ("num_experts", "num_tokens") if call.masked else ("num_tokens",)
    for dim, name in enumerate(names):
        if tensor.shape[dim] != call.input.shape[dim]:
            yield dim, name, call.input.shape[dim], tensor.shape[dim]


def _column_stride(tensor: TensorSpec) -> Iterator[tuple[int, int, int]]:
    if tensor.shape[-1] != 1 and tensor.strides[-1] != 1:
        yield tensor.ndim - 1, 1, tensor.strides[-1]


def dense(call: QuantCall, name: str) -> Fix[QuantCall]:
    dense = replace(getattr(call, name), strides=(), offset=0)
    return Fix(
        f"Make {name} contiguous", call.replace(**{name: dense}), safe=True, note=f"one copy of {name}"
    )


def _like_input(call: QuantCall, name: str, columns: int) -> Fix[QuantCall]:
    shape = (*call.input.shape[:-1], columns)
    return Fix(f"Allocate {name} as {list(shape)}", call.with_tensor(name, shape=shape), safe=True)


BEFORE_OUTPUTS = (Fp32WithFusedSilu, Int8WithUe8m0, InputDims, InputColumnStride)
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
    MaskDims,
    MaskExperts,
    MaskStrided,
    MaskDtype,
    MaskDevice,
    SortedIdsDtype,
    PaddedCountDtype,
    ValidTokensOutOfRange,
    SortedIdsTooFew,
)
