"""What the launcher of per_token_group_quant asks of addresses, strides and widths.

Most of it has no text upstream, only a file and a line; the reasons here say what the line tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernels.checking import Fix, LauncherCheck, aside
from kernels.dtypes import DType
from kernels.per_token_group_quant.launcher_tensors import CodesDims, InputDims, ScalesDims, dense
from kernels.per_token_group_quant.repairs import no_size_divides, padded_rows
from kernels.per_token_group_quant.signature import (
    GROUP_SIZES,
    LAUNCHER,
    MASKED,
    VALID,
    QuantCall,
    column_major_strides,
)
from kernels.spec import TensorSpec, row_major
from kernels.upstream import Site

ROW_ALIGNMENT = 32
"""Bytes of one vectorised load: base address and strides of the input must be multiples of it."""


def _bare(pinned: int, released: int, expression: str) -> tuple[Site, ...]:
    return (LAUNCHER.at("run", pinned, released, expression=expression),)


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
            return
        width, whole = dense.shape[-1], ROW_ALIGNMENT // dense.itemsize
        stride = -(-width // whole) * whole
        buffer = row_major((*dense.shape[:-1], stride))
        yield Fix(
            f"Copy the input into rows of {stride} elements",
            call.with_tensor("input", strides=buffer, offset=0),
            safe=True,
            note=f"one copy of the input; {stride - width} elements behind each row are not used",
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
        if call.group_size in GROUP_SIZES:
            yield from padded_rows(call, call.group_size)

    def remedy(self, call: QuantCall, /) -> str:
        return no_size_divides(call)

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
