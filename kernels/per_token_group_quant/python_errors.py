"""What Python, torch and tvm-ffi raise on upstream's behalf in per_token_group_quant, in rarer cases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernels.checking import Fix, aside
from kernels.dtypes import DType
from kernels.per_token_group_quant.python_checks import QuantCheck
from kernels.per_token_group_quant.repairs import divides, group_sizes, whole_group_size
from kernels.per_token_group_quant.signature import VALID, QuantCall, width_of
from kernels.spec import Shape, TensorSpec

SCHEMA = (
    ("group_size", "int"),
    ("scale_ue8m0", "bool"),
    ("fuse_silu_and_mul", "bool"),
    ("expected_m", "Optional[int]"),
    ("num_valid_tokens", "int"),
    ("silu_and_mul_mode", "str"),
)
"""The operator's plain arguments in its schema's order, with their types as torch prints them."""


def accepted(value: object, wanted: str) -> bool:
    """Whether torch takes the value: numbers and None pass for a bool, one-element tensors for a number."""
    if isinstance(value, TensorSpec):
        return wanted != "str" and value.numel == 1
    match wanted:
        case "str":
            return isinstance(value, str)
        case "bool":
            return value is None or isinstance(value, (int, float))
        case "Optional[int]" if value is None:
            return True
    return isinstance(value, int) and -(2**63) <= value < 2**63


def allocates(call: QuantCall) -> bool:
    """Whether upstream allocates both outputs."""
    return call.output_q is None and call.output_s is None


@dataclass(frozen=True)
class AllocationOfAFloat(QuantCheck):
    """A float as the first of a buffer's sizes makes them no sizes, for which torch has another text."""

    raises = TypeError
    message = (
        "empty(): argument 'size' (position 1) must be tuple of ints, but found element of type float "
        "at pos 0"
    )
    formerly = ("empty() received an invalid combination of arguments - got (tuple, {rest}",)
    pythons_own = True
    reason = "group_size is a float, and so is the number of groups, the first size of the scales' buffer"
    looks_at = ("group_size", "column_major_scales")
    requires = "group_size an int"
    category = "type"

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        first = call.input.ndim == (2 if call.column_major_scales else 1)
        if allocates(call) and first and type(call.group_size) is float and call.group_size:
            yield cls()

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield from whole_group_size(call)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.without("output_q", "output_s").replace(group_size=128.0, column_major_scales=True)


@dataclass(frozen=True)
class InputCannotBeUnpacked(QuantCheck):
    """The allocation of packed column-major scales takes the input's sizes apart into rows and columns."""

    raises = ValueError
    message = "not enough values to unpack (expected at least 2, got 1)"
    pythons_own = True
    reason = "input has 1 dimension, and the scales are allocated from its last two sizes"
    looks_at = ("input.shape", "column_major_scales", "scale_ue8m0")
    requires = "input of 2 dimensions, or 3 with masked_m"
    category = "shape"

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if allocates(call) and call.input.ndim == 1 and call.column_major_scales and call.scale_ue8m0:
            yield cls()

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        rows = call.with_tensor("input", shape=(1, *call.input.shape))
        yield Fix("Give the input a token dimension", rows, safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return QuantCall(TensorSpec((256,), DType.BF16), column_major_scales=True, scale_ue8m0=True)


@dataclass(frozen=True)
class GroupSizeNegative(QuantCheck):
    """The scales to allocate have width // group_size columns, rounded down: fewer than none."""

    raises = RuntimeError
    message = "Trying to create tensor with negative dimension {columns}: {sizes}"
    pythons_own = True
    reason = "group_size is {group_size}, so the buffer of scales would have {columns} columns"
    looks_at = ("group_size", "input.shape")
    requires = "group_size in (16, 32, 64, 128, 256)"
    category = "values"
    columns: int
    sizes: list[int]
    group_size: int = aside()

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if not allocates(call) or not isinstance(call.group_size, int) or call.group_size >= 0:
            return
        columns = call.hidden // call.group_size
        if call.scale_ue8m0:
            columns = (columns + 3) // 4
        if columns < 0:
            yield cls(columns, _sizes(call, columns), call.group_size)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield from group_sizes(call)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.without("output_q", "output_s").replace(group_size=-128)


def _sizes(call: QuantCall, columns: int) -> list[int]:
    *batch, rows = call.input.shape[:-1] or (0,)
    if call.input.ndim < 2:
        return [columns]
    return [*batch, columns, -(-rows // 4) * 4] if call.column_major_scales else [*batch, rows, columns]


@dataclass(frozen=True)
class CodesHaveNoDimensions(QuantCheck):
    """The number of groups is the last size of output_q divided by group_size."""

    raises = IndexError
    message = "tuple index out of range"
    pythons_own = True
    reason = "output_q has no dimensions; the number of groups is taken from its last size"
    looks_at = ("output_q.shape",)
    requires = "output_q of 2 dimensions, or 3 with masked_m"
    category = "shape"

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if not call.codes.ndim:
            yield cls()

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        if call.input.ndim:
            shape = (*call.input.shape[:-1], width_of(call.input) // call.ways)
            yield Fix(f"Allocate output_q as {list(shape)}", _with_codes(call, shape), safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_q", shape=())


def _with_codes(call: QuantCall, shape: Shape) -> QuantCall:
    return call.replace(output_q=TensorSpec(shape, call.codes.dtype, device=call.codes.device))


@dataclass(frozen=True)
class ScalesHaveNoDimensions(QuantCheck):
    """Row- or column-major is read off the last two strides, of which a scalar has none."""

    raises = IndexError
    message = "Dimension specified as -2 but tensor has no dimensions"
    pythons_own = True
    reason = "output_s has no dimensions; its layout is read off its last two strides"
    looks_at = ("output_s.shape",)
    requires = "output_s of 2 dimensions, or 3 with masked_m"
    category = "shape"

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if not call.scales.ndim:
            yield cls()

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        if call.output_q is not None and divides(call.group_size):
            shape = (*call.output_q.shape[:-1], call.scale_columns)
            made = call.with_tensor("output_s", shape=shape)
            yield Fix(f"Allocate output_s as {list(shape)}", made, safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_tensor("output_s", shape=())


@dataclass(frozen=True)
class PaddedCountMissing(QuantCheck):
    """The sorted layout's launcher takes a tensor for the padded count, and converts before it checks."""

    raises = TypeError
    message = (
        "Mismatched type on argument #4 when calling: `per_token_group_quant(0: DLTensor*, 1: DLTensor*, "
        "2: DLTensor*, 3: DLTensor*, 4: DLTensor*, 5: int) -> void`. Expected `DLTensor*` but got `None`"
    )
    pythons_own = True
    reason = "sorted_token_ids is given and num_tokens_post_padded is not; they belong together"
    looks_at = ("sorted_token_ids", "num_tokens_post_padded")
    requires = "num_tokens_post_padded with sorted_token_ids"
    category = "presence"

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.sorted_token_ids is not None and call.num_tokens_post_padded is None:
            yield cls()

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        device = call.input.device
        count = call.replace(num_tokens_post_padded=TensorSpec((1,), DType.I32, device=device))
        yield Fix("Pass num_tokens_post_padded, [1] int32", count, safe=True)
        plain = call.without("sorted_token_ids", "num_valid_tokens")
        yield Fix("Leave the sorted layout out", plain, safe=False)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.replace(sorted_token_ids=TensorSpec((4,), DType.I32), num_valid_tokens=4)
