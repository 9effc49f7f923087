"""What upstream's Python raises itself in per_token_group_quant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernels.checking import Check, Fix
from kernels.dtypes import DType, Torch
from kernels.per_token_group_quant.repairs import (
    divides,
    group_sizes,
    no_size_divides,
    padded_rows,
    rebuilt_scales,
)
from kernels.per_token_group_quant.signature import (
    CODE_DTYPES,
    DEFAULT_GROUP_SIZE,
    GROUP_SIZES,
    INPUT_DTYPES,
    MASKED,
    PACKED,
    PYTHON,
    SILU_MODES,
    VALID,
    QuantCall,
    scale_form,
    width_of,
)
from kernels.spec import TensorSpec
from kernels.upstream import Site


class QuantCheck(Check[QuantCall]):
    """A check of this operation's call."""


def _assertion(function: str, released: int, expression: str) -> tuple[Site, ...]:
    return (PYTHON.at(function, None, released, expression=expression),)


@dataclass(frozen=True)
class ScalesWithoutCodes(QuantCheck):
    """Either both outputs are the caller's or both are allocated; one of each would be half initialised."""

    raises = AssertionError
    sites = _assertion("per_token_group_quant", 249, "assert output_s is None")
    reason = "output_s was passed without output_q; pass both outputs, or neither and take the returned ones"
    looks_at = ("output_q", "output_s")
    requires = "both outputs, or neither"
    category = "presence"

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.output_q is None and call.output_s is not None:
            yield cls()

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        codes = TensorSpec(
            (*call.input.shape[:-1], call.hidden), call.out_dtype or DType.F8_E4M3FN, device=call.input.device
        )
        yield Fix("Pass output_q as well", call.replace(output_q=codes), safe=True)
        yield Fix("Let both outputs be allocated", call.without("output_s"), safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.without("output_q")


@dataclass(frozen=True)
class CodesWithoutScales(QuantCheck):
    """The counterpart of ScalesWithoutCodes: codes without a place for their scales cannot be read back."""

    raises = AssertionError
    sites = _assertion("per_token_group_quant", 259, "assert output_s is not None")
    reason = "output_q was passed without output_s; pass both outputs, or neither and take the returned ones"
    looks_at = ("output_q", "output_s")
    requires = "both outputs, or neither"
    category = "presence"

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.output_q is not None and call.output_s is None:
            yield cls()

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        if call.output_q is not None and divides(call.group_size):
            groups = width_of(call.output_q) // call.group_size
            columns, dtype = scale_form(groups, ue8m0=call.scale_ue8m0)
            scales = TensorSpec((*call.output_q.shape[:-1], columns), dtype, device=call.output_q.device)
            yield Fix("Pass output_s as well", call.replace(output_s=scales), safe=True)
        yield Fix(
            "Let both outputs be allocated",
            call.without("output_q").replace(out_dtype=call.output_q.dtype if call.output_q else None),
            safe=True,
        )

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.without("output_s")


@dataclass(frozen=True)
class OutDtypeConflicts(QuantCheck):
    """out_dtype only chooses the type of codes that are allocated; with codes passed it can merely agree."""

    raises = AssertionError
    sites = _assertion(
        "per_token_group_quant", 260, "assert out_dtype is None or out_dtype == output_q.dtype"
    )
    reason = "out_dtype is {wanted} but the output_q passed is {got}"
    looks_at = ("out_dtype", "output_q.dtype")
    requires = "out_dtype absent, or equal to output_q.dtype"
    category = "dtype"
    wanted: DType
    got: DType

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.output_q is not None and call.out_dtype not in (None, call.output_q.dtype):
            assert call.out_dtype is not None
            yield cls(call.out_dtype, call.output_q.dtype)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield Fix("Drop out_dtype: output_q says the type", call.without("out_dtype"), safe=True)
        yield Fix(f"Allocate output_q as {self.wanted}", call.with_dtype("output_q", self.wanted), safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.replace(out_dtype=DType.I8)


@dataclass(frozen=True)
class PackedScalesWithoutUe8m0(QuantCheck):
    """An int32 scale buffer has room for four exponent bytes a word, which only scale_ue8m0 produces."""

    raises = ValueError
    message = "int32-packed scale buffers require scale_ue8m0=True"
    sites = (PYTHON.at("_infer_scale_layout", 75, 94),)
    reason = "output_s is int32, which holds packed UE8M0 exponents, but scale_ue8m0 is False"
    looks_at = ("output_s.dtype", "scale_ue8m0")
    requires = "scale_ue8m0 True with an int32 output_s, or a float32 output_s"
    category = "dtype"

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.scales.dtype is DType.I32 and not call.scale_ue8m0:
            yield cls()

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield Fix("Set scale_ue8m0=True", call.replace(scale_ue8m0=True), safe=True)
        yield from rebuilt_scales(call, ue8m0=False)

    @classmethod
    def example(cls) -> QuantCall:
        return PACKED.without("scale_ue8m0")


@dataclass(frozen=True)
class Ue8m0WithoutPackedScales(QuantCheck):
    """UE8M0 exponents are stored as bytes, four to an int32; a float32 buffer would leave three quarters
    unused.
    """

    raises = ValueError
    message = "scale_ue8m0=True requires an int32-packed output_s"
    sites = (PYTHON.at("_infer_scale_layout", 80, 99),)
    reason = "scale_ue8m0 is True, so scales are packed exponents, but output_s is float32"
    looks_at = ("output_s.dtype", "scale_ue8m0")
    requires = "an int32 output_s of ceil(G/4) columns with scale_ue8m0, or scale_ue8m0 False"
    category = "dtype"

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.scales.dtype is DType.F32 and call.scale_ue8m0:
            yield cls()

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield Fix("Set scale_ue8m0=False", call.without("scale_ue8m0"), safe=True)
        yield from rebuilt_scales(call, ue8m0=True)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.replace(scale_ue8m0=True)


@dataclass(frozen=True)
class UnsupportedScaleDtype(QuantCheck):
    """The kernel stores a scale as a float32, or as bytes of an int32 word; nothing else has a layout."""

    raises = ValueError
    message = "Unsupported output_s dtype {output_s.dtype}"
    sites = (PYTHON.at("_infer_scale_layout", 82, 101),)
    reason = "output_s is {got}; scales are float32, or int32 with four UE8M0 exponents a word"
    looks_at = ("output_s.dtype",)
    requires = "output_s float32, or int32 with scale_ue8m0"
    category = "dtype"
    got: Torch

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.scales.dtype not in (DType.I32, DType.F32):
            yield cls(Torch(call.scales.dtype))

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield from rebuilt_scales(call, ue8m0=call.scale_ue8m0 is True)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_dtype("output_s", DType.F16)


@dataclass(frozen=True)
class UnsupportedInputDtype(QuantCheck):
    """The kernel is compiled for two 16-bit float types and float32."""

    raises = AssertionError
    sites = _assertion("_jit_module", 39, "assert in_dtype in _SUPPORTED_INPUT_DTYPES")
    reason = "input is {got}; it must be bfloat16, float16 or float32"
    looks_at = ("input.dtype",)
    requires = "input bfloat16, float16 or float32"
    category = "dtype"
    got: DType

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.input.dtype not in INPUT_DTYPES:
            yield cls(call.input.dtype)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        wide = not call.fuse_silu_and_mul and call.input.dtype is DType.F64
        dtype = DType.F32 if wide else DType.BF16
        yield Fix(
            f"Cast the input to {dtype}",
            call.with_dtype("input", dtype),
            safe=True,
            note="one copy of the input",
        )

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_dtype("input", DType.F64)


@dataclass(frozen=True)
class UnsupportedCodeDtype(QuantCheck):
    """Codes are eight bits: E4M3 floats, or signed integers."""

    raises = AssertionError
    sites = _assertion("_jit_module", 40, "assert out_dtype in _SUPPORTED_OUTPUT_DTYPES")
    reason = "output_q is {got}; codes are float8_e4m3fn or int8"
    looks_at = ("output_q.dtype",)
    requires = "output_q float8_e4m3fn or int8"
    category = "dtype"
    got: DType

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.codes.dtype not in CODE_DTYPES:
            yield cls(call.codes.dtype)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        allocated = call.without("out_dtype") if call.out_dtype not in (None, *CODE_DTYPES) else call
        codes = allocated if call.output_q is None else allocated.with_dtype("output_q", DType.F8_E4M3FN)
        yield Fix("Make the codes float8_e4m3fn", codes, safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.with_dtype("output_q", DType.F8_E5M2)


@dataclass(frozen=True)
class UnsupportedGroupSize(QuantCheck):
    """A group is reduced by a fixed number of threads, so only five sizes are compiled."""

    raises = AssertionError
    sites = _assertion("_jit_module", 41, "assert group_size in _SUPPORTED_GROUP_SIZES")
    reason = "group_size is {got}; it must be 16, 32, 64, 128 or 256"
    looks_at = ("group_size",)
    requires = "group_size in (16, 32, 64, 128, 256)"
    category = "values"
    got: object

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.group_size not in GROUP_SIZES:
            yield cls(call.group_size)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield from group_sizes(call)
        if no_size_divides(call):
            yield from padded_rows(call, DEFAULT_GROUP_SIZE)

    def remedy(self, call: QuantCall, /) -> str:
        return no_size_divides(call)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.replace(
            input=TensorSpec((4, 192), DType.BF16),
            output_q=TensorSpec((4, 192), DType.F8_E4M3FN),
            output_s=TensorSpec((4, 2), DType.F32),
            group_size=96,
        )


@dataclass(frozen=True)
class UnknownSiluMode(QuantCheck):
    """Two ways to round silu(gate) · up are compiled."""

    raises = ValueError
    message = "Unknown silu_and_mul_mode: {silu_and_mul_mode}"
    sites = (PYTHON.at("_jit_module", None, 43),)
    reason = "silu_and_mul_mode is {mode!r}; it must be 'legacy' or 'dense'"
    looks_at = ("silu_and_mul_mode",)
    requires = "silu_and_mul_mode in ('legacy', 'dense')"
    category = "values"
    mode: object

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.silu_and_mul_mode not in SILU_MODES:
            yield cls(call.silu_and_mul_mode)

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield Fix("Leave silu_and_mul_mode at legacy", call.without("silu_and_mul_mode"), safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.replace(silu_and_mul_mode="fast")


@dataclass(frozen=True)
class DenseModeUnsupported(QuantCheck):
    """Dense mode is one kernel, compiled for the one combination that its caller uses."""

    raises = ValueError
    message = "dense mode requires flat BF16/FP16 SiLU+mul, FP8 output and group_size=128"
    sites = (PYTHON.at("_jit_module", None, 53),)
    reason = (
        "dense mode exists for a flat 16-bit input with fuse_silu_and_mul, FP8 codes and group_size 128 only"
    )
    looks_at = (
        "silu_and_mul_mode",
        "fuse_silu_and_mul",
        "masked_m",
        "sorted_token_ids",
        "input.dtype",
        "output_q.dtype",
        "group_size",
    )
    requires = "flat 16-bit input, fuse_silu_and_mul, float8_e4m3fn codes and group_size 128; or legacy mode"
    category = "values"

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.silu_and_mul_mode == "dense" and not (
            call.fuse_silu_and_mul
            and call.masked_m is None
            and call.sorted_token_ids is None
            and call.input.dtype in (DType.BF16, DType.F16)
            and call.codes.dtype is DType.F8_E4M3FN
            and call.group_size == 128
        ):
            yield cls()

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        yield Fix(
            "Use legacy mode",
            call.without("silu_and_mul_mode"),
            safe=False,
            note="legacy rounds silu(gate) before the product: a few per cent of 16-bit codes differ",
        )

    @classmethod
    def example(cls) -> QuantCall:
        return VALID.replace(silu_and_mul_mode="dense")


@dataclass(frozen=True)
class MaskedAndSorted(QuantCheck):
    """Two ways to say which rows are valid cannot hold at once."""

    raises = AssertionError
    sites = _assertion("_jit_module", 68, "assert not (masked_layout and sorted_layout)")
    reason = "masked_m and sorted_token_ids both say which rows are valid; pass one of them"
    looks_at = ("masked_m", "sorted_token_ids")
    requires = "masked_m or sorted_token_ids, not both"
    category = "presence"

    @classmethod
    def find(cls, call: QuantCall, /) -> Iterator[Self]:
        if call.masked_m is not None and call.sorted_token_ids is not None:
            yield cls()

    def fixes(self, call: QuantCall, /) -> Iterator[Fix[QuantCall]]:
        sorted_only = ("sorted_token_ids", "num_tokens_post_padded", "num_valid_tokens")
        yield Fix("Drop the sorted layout's arguments", call.without(*sorted_only), safe=True)

    @classmethod
    def example(cls) -> QuantCall:
        return MASKED.replace(
            sorted_token_ids=TensorSpec((8,), DType.I32), num_tokens_post_padded=TensorSpec((1,), DType.I32)
        )
