"""What upstream takes and then turns into zeros or noise: checks of our own on the numbers that enter the
scores of sparse_attn_v4_paged_decode.

They judge described values, and of those only what a token reads: slots that nobody lists may hold anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, Self

from kernels.checking import Fix, Given, Severity, aside
from kernels.dtypes import ROUNDS_TO_INFINITY, DType
from kernels.sparse_attn_v4_paged_decode.beyond import (
    ON_DEVICES,
    ON_LAUNCH,
    ON_POOL,
    Hazard,
    PoolHasTooManyDimensions,
    PoolWidthDiffers,
)
from kernels.sparse_attn_v4_paged_decode.beyond_lists import (
    ON_LISTS,
    ListNotDense,
    SinksTooFew,
    SpansTooFew,
)
from kernels.sparse_attn_v4_paged_decode.beyond_slots import ON_SLOTS, ON_SPANS, as_filled
from kernels.sparse_attn_v4_paged_decode.python_errors import (
    POOL_STRIDES,
    SCALE_CONVERTED,
    UNPACKED,
    usual_softmax_scale,
)
from kernels.sparse_attn_v4_paged_decode.reads import elements, rows_read
from kernels.sparse_attn_v4_paged_decode.signature import E4M3, GROUP, QUANTIZED, VALID, SparseCall
from kernels.spec import TensorSpec
from kernels.values import Full, Values, printable

USUAL_FACTOR = 4.0
"""How many times larger or smaller than D**-0.5 a factor may be; models that correct it stay below 2.5."""

FP8_LARGEST = 448.0
FLOAT16_LARGEST = 65_504.0
FLOAT16_ROUNDS_TO_ZERO = 2.0**-25
"""Half the smallest float16; ties go to zero."""


@dataclass(frozen=True)
class SoftmaxScaleNotFinite(Hazard):
    """NaN is not a positive sum of weights, and without one the result is zero."""

    message = "softmax_scale is {got}, which is not finite"
    reason = (
        "softmax_scale is {got}: every score is NaN or infinite, and the result zeros or NaN, not an error"
    )
    looks_at = ("softmax_scale",)
    requires = "softmax_scale finite"
    category = "values"
    premises = SCALE_CONVERTED
    got: float

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        factor = _factor(call)
        if factor is not None and not isfinite(factor):
            yield cls(factor)

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        yield from usual_softmax_scale(call)

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.replace(softmax_scale="nan")  # read by float(); JSON has no number for it


@dataclass(frozen=True)
class SoftmaxScaleUnusual(Hazard):
    """D**-0.5 keeps the scores' variance; a factor far from it makes the softmax flat, or picks one slot."""

    message = "softmax_scale is {got}, far from D**-0.5 = {usual}"
    reason = (
        "softmax_scale is {got} for heads of {width} columns, where {usual} is usual: the factor of another "
        "width, its reciprocal or one applied twice looks like this"
    )
    looks_at = ("softmax_scale", "q.shape")
    requires = "softmax_scale above 0 and within 4 times D**-0.5"
    category = "values"
    severity = Severity.WARNING
    premises = (*UNPACKED, *SCALE_CONVERTED, SoftmaxScaleNotFinite)
    got: float
    usual: float
    width: int = aside()

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        factor, width = _factor(call), call.q.shape[-1]
        if factor is None or not width:
            return
        usual = width**-0.5
        if not usual / USUAL_FACTOR <= factor <= usual * USUAL_FACTOR:
            yield cls(factor, round(usual, 6), width)

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        yield from usual_softmax_scale(call)

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.replace(softmax_scale=1.0)


@dataclass(frozen=True)
class ValuesNotFinite(Hazard):
    """A NaN makes the sum of weights NaN, which is not positive, and the result is then zero: it hides."""

    message = "{argument} holds {got}, which is not finite in {dtype}"
    reason = (
        "{argument} holds {got}, not finite in {dtype}: its scores are NaN or infinite, and every head that "
        "it reaches is written as zeros, or NaN, without an error"
    )
    looks_at = ("q.values", "q.dtype", "unified_kv.values", "attn_sink.values", "kv_scales.values")
    requires = "finite queries, slots and scales; sinks finite or -inf"
    category = "values"
    premises = (
        *UNPACKED,
        *POOL_STRIDES,
        PoolHasTooManyDimensions,
        PoolWidthDiffers,
        SpansTooFew,
        SinksTooFew,
    )
    reads_values = True
    argument: str
    got: float
    dtype: DType

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        for argument, values, places, dtype in _numbers(call):
            limit = inf if dtype in E4M3 else ROUNDS_TO_INFINITY.get(dtype)  # other codes are clamped
            for value in elements(values, places):
                if limit is not None and _overflows(value, limit, argument):
                    yield cls(argument, printable(value), dtype)
                    break

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        if self.dtype is DType.F16 and self.argument != "attn_sink" and isfinite(self.got):
            yield _in_bfloat16(call)
        elif self.argument == "attn_sink" and self.got == inf and isinstance(call.attn_sink.values, Full):
            changed = call.with_tensor("attn_sink", values=Full(-inf))
            yield Fix("Use -inf for heads without a sink", changed, safe=False)

    @classmethod
    def example(cls) -> SparseCall:
        return QUANTIZED.with_dtype("q", DType.F16).with_tensor("kv_scales", values=Full(70_000.0))


@dataclass(frozen=True)
class ScalesUnfitForFloat16(Hazard):
    """A scale is rounded to q's type before it is multiplied, and the product again."""

    message = "kv_scales holds {got}: with float16 queries {what}"
    reason = "a scale of {got} is rounded to float16, where {what}"
    looks_at = ("kv_scales.values", "q.dtype")
    requires = "scales from 2^-24 to 65504 / 448 with float16 queries"
    category = "values"
    severity = Severity.WARNING
    premises = (*UNPACKED, *POOL_STRIDES, PoolHasTooManyDimensions, SpansTooFew)
    reads_values = True
    got: float
    what: str

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if call.q.dtype is not DType.F16:
            return
        for scale in _scales(call):
            magnitude = abs(scale)
            if FLOAT16_LARGEST / FP8_LARGEST < magnitude < ROUNDS_TO_INFINITY[DType.F16]:
                yield cls(scale, "codes of 448 become infinite")
                return
            if 0 < magnitude <= FLOAT16_ROUNDS_TO_ZERO:
                yield cls(scale, "it becomes 0 and its 64 columns with it")
                return

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        yield _in_bfloat16(call)

    @classmethod
    def example(cls) -> SparseCall:
        return QUANTIZED.with_dtype("q", DType.F16).with_tensor("kv_scales", values=Full(200.0))


@dataclass(frozen=True)
class ScalesNotPositive(Hazard):
    """A scale is a magnitude: 0 erases its columns, and a negative one turns their sign."""

    message = "kv_scales holds {got}, which is not above 0"
    reason = "a slot that is read has the scale {got}: its 64 columns count as zeros, or with the other sign"
    looks_at = ("kv_scales.values",)
    requires = "scales above 0"
    category = "values"
    severity = Severity.WARNING
    premises = (*UNPACKED, *POOL_STRIDES, PoolHasTooManyDimensions, SpansTooFew)
    reads_values = True
    got: float

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        for scale in _scales(call):
            if scale <= 0:
                yield cls(printable(scale))
                return

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        yield as_filled(call, "kv_scales", "Pass the scales that the pool was quantized with")

    @classmethod
    def example(cls) -> SparseCall:
        return QUANTIZED.with_tensor("kv_scales", values=Full(0))


def _factor(call: SparseCall) -> float | None:
    """softmax_scale as upstream's float() makes it; None for a tensor, whose value is not described."""
    given: Any = call.softmax_scale
    return None if isinstance(given, TensorSpec) else float(given)


def _numbers(call: SparseCall) -> Iterator[tuple[str, Values | None, list[range], DType]]:
    """(argument, its values, the places read, the type computed in) of all that enters a score."""
    width = call.unified_kv.shape[-1]
    yield "q", call.q.values, [range(call.q.numel)], call.q.dtype
    yield "unified_kv", call.unified_kv.values, rows_read(call, width), call.unified_kv.dtype
    sink = DType.F32 if call.attn_sink.dtype is DType.F64 else call.attn_sink.dtype
    yield "attn_sink", call.attn_sink.values, [range(call.q.shape[1])], sink
    if call.kv_scales is not None:
        yield "kv_scales", call.kv_scales.values, rows_read(call, width // GROUP), call.q.dtype


def _scales(call: SparseCall) -> Iterator[float]:
    """Scales of the slots that are read, as far as values are described."""
    if call.kv_scales is not None and call.kv_scales.values is not None:
        yield from elements(call.kv_scales.values, rows_read(call, call.unified_kv.shape[-1] // GROUP))


def _overflows(value: float, limit: float, argument: str) -> bool:
    """Whether a type with this limit has no finite number for it; a sink of -inf is one that is absent."""
    return not (value if argument == "attn_sink" else abs(value)) < limit


def _in_bfloat16(call: SparseCall) -> Fix[SparseCall]:
    """bfloat16 has float32's range."""
    changed = call.with_dtype("q", DType.BF16)
    if call.kv_scales is None:
        changed = changed.with_dtype("unified_kv", DType.BF16)
    return Fix(
        "Compute in bfloat16", changed, safe=True, note="8 bits of precision; the result is bfloat16 too"
    )


ON_SOFTMAX_SCALE = (SoftmaxScaleNotFinite, SoftmaxScaleUnusual)
ON_NUMBERS = (ValuesNotFinite, ScalesUnfitForFloat16, ScalesNotPositive)

BEYOND = (
    *ON_POOL,
    *ON_DEVICES,
    *ON_LISTS,
    *ON_LAUNCH,
    *ON_SOFTMAX_SCALE,
    *ON_SPANS,
    Given((ListNotDense,), (*ON_SLOTS, *ON_NUMBERS)),
)
"""All checks of our own, those on layouts before those on values."""
