"""What Python and torch raise in sparse_attn_v4_paged_decode where upstream has no check of its own.

Around its kernels, upstream's code unpacks q's shape, converts softmax_scale and reads the pool's strides.
What fails in the launches themselves is in launch_errors.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernels.checking import Check, Fix, aside
from kernels.sparse_attn_v4_paged_decode.signature import QUANTIZED, VALID, SparseCall
from kernels.spec import TensorSpec


class PythonError(Check[SparseCall]):
    """Raised by Python or torch on upstream's behalf."""

    pythons_own = True


@dataclass(frozen=True)
class PoolHasNoWidth(PythonError):
    """With scales, the pool's last size is the first thing looked at."""

    raises = IndexError
    message = "tuple index out of range"
    reason = "unified_kv has no dimensions, so it has no width to count groups in"
    looks_at = ("unified_kv.shape", "kv_scales")
    requires = "unified_kv of 2 dimensions"
    category = "shape"

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if call.kv_scales is not None and call.unified_kv.ndim == 0:
            yield cls()

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        yield from _pool_as_wide_as_q(call)

    @classmethod
    def example(cls) -> SparseCall:
        return QUANTIZED.with_tensor("unified_kv", shape=())


class QDimensions(PythonError):
    """q's shape is unpacked into tokens, heads and width."""

    raises = ValueError
    reason = "q has {got} dimensions; it must be [tokens, heads, width]"
    looks_at = ("q.shape",)
    requires = "q of 3 dimensions"
    category = "shape"

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        if call.q.ndim == 0 or call.attn_sink.ndim != 1:
            return
        heads, width = call.attn_sink.shape[0], call.q.shape[-1]
        row = heads * width
        if row and call.q.numel % row == 0 and call.q.numel:
            shape = (call.q.numel // row, heads, width)
            yield Fix(
                f"Reshape q to {list(shape)}: attn_sink says {heads} heads",
                call.with_tensor("q", shape=shape),
                safe=True,
            )


@dataclass(frozen=True)
class QHasTooFewDimensions(QDimensions):
    """A single token's queries still need the token dimension."""

    message = "not enough values to unpack (expected 3, got {got})"
    got: int

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if call.q.ndim < 3:
            yield cls(call.q.ndim)

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_tensor("q", shape=(16, 128))


@dataclass(frozen=True)
class QHasTooManyDimensions(QDimensions):
    """Batch and position are one dimension here: tokens."""

    message = "too many values to unpack (expected 3)"
    got: int = aside()

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if call.q.ndim > 3:
            yield cls(call.q.ndim)

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_tensor("q", shape=(2, 1, 16, 128))


class SoftmaxScale(PythonError):
    """The factor is made a float before it is multiplied by log2(e)."""

    looks_at = ("softmax_scale",)
    requires = "softmax_scale a number"
    category = "type"

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        yield from usual_softmax_scale(call)


@dataclass(frozen=True)
class SoftmaxScaleIsNotANumeral(SoftmaxScale):
    """A text is accepted as long as it reads as a number."""

    raises = ValueError
    message = "could not convert string to float: {softmax_scale!r}"
    reason = "softmax_scale is the text {text_given!r}, which is no number"
    text_given: str

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        scale: object = call.softmax_scale
        if isinstance(scale, str):
            try:
                float(scale)
            except ValueError:
                yield cls(scale)

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.replace(softmax_scale="x")


@dataclass(frozen=True)
class SoftmaxScaleIsNotANumber(SoftmaxScale):
    """None is not "the default" here: the factor is required."""

    raises = TypeError
    message = "float() argument must be a string or a real number, not '{got}'"
    reason = "softmax_scale is a {got}; it must be a number"
    got: str

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if not isinstance(call.softmax_scale, (int, float, str, TensorSpec)):
            yield cls(type(call.softmax_scale).__name__)

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.replace(softmax_scale=None)


@dataclass(frozen=True)
class SoftmaxScaleIsTooLarge(SoftmaxScale):
    """Python's integers have no limit; its floats end at 1.8e308."""

    raises = OverflowError
    message = "int too large to convert to float"
    reason = "softmax_scale is a whole number of {digits} bits, more than a float can hold"
    digits: int = aside()

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        scale: object = call.softmax_scale
        if isinstance(scale, int):
            try:
                float(scale)
            except OverflowError:
                yield cls(scale.bit_length())

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.replace(softmax_scale=10**400)


@dataclass(frozen=True)
class PoolHasNoSlots(PythonError):
    """The launch reads the pool's two strides; a flat pool has one."""

    raises = IndexError
    message = "Dimension out of range (expected to be in range of [-1, 0], but got 1)"
    reason = "unified_kv has one dimension; it must be [slots, width]"
    looks_at = ("unified_kv.shape",)
    requires = "unified_kv of 2 dimensions"
    category = "shape"

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if call.unified_kv.ndim == 1:
            yield cls()

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        yield from _pool_as_wide_as_q(call)

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_tensor("unified_kv", shape=(8 * 128,))


@dataclass(frozen=True)
class PoolHasNoDimensions(PythonError):
    """The launch reads the pool's two strides; a single number has none."""

    raises = IndexError
    message = "Dimension specified as 0 but tensor has no dimensions"
    reason = "unified_kv has no dimensions; it must be [slots, width]"
    looks_at = ("unified_kv.shape",)
    requires = "unified_kv of 2 dimensions"
    category = "shape"

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if call.unified_kv.ndim == 0:
            yield cls()

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        yield from _pool_as_wide_as_q(call)

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_tensor("unified_kv", shape=())


def usual_softmax_scale(call: SparseCall) -> Iterator[Fix[SparseCall]]:
    """The factor that keeps the variance of the scores at 1."""
    width = call.q.shape[-1] if call.q.ndim else 0
    if width:
        scale = width**-0.5
        yield Fix(
            f"Pass D**-0.5 = {scale:.6g}",
            call.replace(softmax_scale=scale),
            safe=False,
            note="the usual factor; some models use another",
        )


def _pool_as_wide_as_q(call: SparseCall) -> Iterator[Fix[SparseCall]]:
    """The pool's numbers as rows of q's width; scales, where given, sized to them."""
    width = call.q.shape[-1] if call.q.ndim else 0
    if not width:
        return
    held = call.unified_kv.numel
    fits = held % width == 0
    changed = call.with_tensor("unified_kv", shape=(max(held // width, 1), width))
    if call.kv_scales is not None and call.kv_scales.shape != changed.scale_shape:
        changed = changed.with_scales()
    yield Fix(
        f"{'Reshape' if fits else 'Allocate'} the pool as {list(changed.unified_kv.shape)}",
        changed,
        safe=fits,
    )


UNPACKED = (QHasTooFewDimensions, QHasTooManyDimensions)

SCALE_CONVERTED = (SoftmaxScaleIsNotANumeral, SoftmaxScaleIsNotANumber, SoftmaxScaleIsTooLarge)
POOL_STRIDES = (PoolHasNoSlots, PoolHasNoDimensions)
