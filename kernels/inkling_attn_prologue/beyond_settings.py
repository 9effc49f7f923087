"""What upstream takes and does not mean: settings it ignores, and those nobody has tested."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from kernels.checking import Check, Fix, Severity, aside
from kernels.dtypes import DType
from kernels.inkling_attn_prologue.allocation import KWeightHasNoTaps
from kernels.inkling_attn_prologue.beyond import Hazard
from kernels.inkling_attn_prologue.conversion import NUMBERS
from kernels.inkling_attn_prologue.derived import taps, tokens, whole
from kernels.inkling_attn_prologue.signature import BLOCK, HEAD, ExtendCall, PrologueCall
from kernels.spec import TensorSpec

SILU_NAMES = ("silu", "swish")
TESTED_TAPS = 4
LARGEST_TAPS = 8


@dataclass(frozen=True)
class UnknownActivation(Hazard):
    """Only two names mean SiLU, and every other means none, without a word."""

    message = "activation {activation!r} is taken for none"
    reason = "activation is {activation!r}; upstream knows 'silu' and 'swish', and applies nothing for it"
    looks_at = ("activation",)
    requires = "activation None, 'silu' or 'swish'"
    category = "values"
    activation: object

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if call.activation is not None and call.activation not in SILU_NAMES:
            yield cls(call.activation)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        alike = isinstance(self.activation, str) and self.activation.strip().lower() in SILU_NAMES
        if alike:
            yield Fix("Spell it 'silu'", call.replace(activation="silu"), safe=False)
        note = "the same numbers as now"
        yield Fix("Leave activation out", call.without("activation"), safe=True, note=note)
        if not alike:
            note = "where the model was trained with SiLU"
            yield Fix("Pass 'silu'", call.replace(activation="silu"), safe=False, note=note)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(activation="gelu")


@dataclass(frozen=True)
class TauEmpty(Hazard):
    """A factor tensor without elements means no factor."""

    message = "log_scaling_tau has no elements: q is not scaled"
    reason = "log_scaling_tau is {shape}: upstream takes an empty tensor for none, and q stays unscaled"
    looks_at = ("log_scaling_tau.shape",)
    requires = "log_scaling_tau of T elements, or absent"
    category = "presence"
    severity = Severity.WARNING
    shape: tuple[int, ...] = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if call.log_scaling_tau is not None and call.log_scaling_tau.numel == 0 and tokens(call):
            yield cls(call.log_scaling_tau.shape)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        absent = call.without("log_scaling_tau")
        yield Fix("Leave log_scaling_tau out", absent, safe=True, note="the same numbers as now")
        one = call.with_tensor("log_scaling_tau", shape=(tokens(call),))
        yield Fix("Pass one factor a token", one, safe=False)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(log_scaling_tau=TensorSpec((0,), DType.F32))


@dataclass(frozen=True)
class WidthUntested(Hazard):
    """Models convolve over four rows; a wider convolution compiles, and nobody has tested it."""

    message = "convolution width {width} is untested upstream"
    reason = "k_weight has {width} taps; models use 4, and upstream tests no more"
    looks_at = ("k_weight.shape",)
    requires = "a convolution width of 2, 3 or 4"
    category = "values"
    severity = Severity.WARNING
    premises: ClassVar[tuple[type[Check[PrologueCall]], ...]] = (KWeightHasNoTaps,)
    width: int
    limits: ClassVar[tuple[float, float]] = (TESTED_TAPS, LARGEST_TAPS)

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        least, most = cls.limits
        if least < taps(call) <= most:
            yield cls(taps(call))

    @classmethod
    def example(cls) -> PrologueCall:
        return with_taps(cls.valid, TESTED_TAPS + 1)


@dataclass(frozen=True)
class WidthTooWide(WidthUntested):
    """A thread keeps the whole history in registers, eight channels of every row."""

    message = "convolution width {width} is beyond 8"
    reason = "k_weight has {width} taps; a thread holds {width} rows of eight channels in registers"
    requires = "a convolution width of at most 8"
    severity = Severity.ERROR
    limits = (LARGEST_TAPS, float("inf"))

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        if call.k_weight.shape[-1] <= LARGEST_TAPS:
            return
        note = "another convolution: a kernel of width 4 is what models use"
        yield Fix("Use a convolution of width 4", with_taps(call, TESTED_TAPS), safe=False, note=note)

    @classmethod
    def example(cls) -> PrologueCall:
        return with_taps(cls.valid, LARGEST_TAPS + 1)


@dataclass(frozen=True)
class PageSizeUnusual(Hazard):
    """This kernel interleaves any multiple of 32 slots; the attention kernels behind it read pages of 128."""

    message = "page_size {page} with mxfp8_quant: the rest of upstream reads pages of 128"
    reason = "page_size is {page}; it works here, and attention reads scales interleaved by 128 slots"
    looks_at = ("page_size", "mxfp8_quant")
    requires = "page_size 128 with mxfp8_quant"
    category = "values"
    severity = Severity.WARNING
    premises = NUMBERS
    page: int

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        page = whole(call.page_size) or 0
        if call.mxfp8_quant and page > 0 and page % BLOCK == 0 and page != HEAD:
            yield cls(page)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        changed = call.without("page_size")
        if call.k_buf.ndim and call.k_buf.shape[0] % HEAD == 0:
            scales = changed.new_scales()
            note = "the scale buffers are laid out anew, zero-filled: an untouched 0xFF byte reads as NaN"
            fixed = changed.replace(sfk=scales, sfv=scales)
            yield Fix("Use pages of 128 slots", fixed, safe=False, note=note)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(page_size=64).quantized()


def with_taps(call: PrologueCall, width: int) -> PrologueCall:
    """The call with a convolution of another width, state and windows to match."""
    for name in ("k_weight", "v_weight"):
        call = call.with_tensor(name, shape=(*getattr(call, name).shape[:1], width))
    for name in ("k_cache", "v_cache", "k_inter", "v_inter"):
        tensor: TensorSpec | None = getattr(call, name, None)
        if tensor is not None and tensor.ndim >= 2:
            call = call.with_tensor(name, shape=(*tensor.shape[:-2], width - 1, tensor.shape[-1]))
    if isinstance(call, ExtendCall):
        call = call.with_tensor("track_rows", shape=(*call.track_rows.shape[:1], width - 1), values=None)
    return call


ON_SETTINGS: tuple[type[Hazard], ...] = (
    UnknownActivation,
    TauEmpty,
    WidthUntested,
    WidthTooWide,
    PageSizeUnusual,
)
