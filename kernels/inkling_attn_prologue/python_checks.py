"""What upstream's Python refuses in the three inkling prologues, in its order.

All four checks concern MXFP8. Verify and extend share their texts; decode's name it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Self

from kernels.checking import Fix, aside
from kernels.inkling_attn_prologue.bound import PrologueCheck
from kernels.inkling_attn_prologue.python_errors import (
    KBufHasNoSlots,
    PageSizeIsFloatZero,
    PageSizeIsNotANumber,
    PageSizeIsZero,
    WidthIsNotANumber,
    WidthIsText,
    page_of,
)
from kernels.inkling_attn_prologue.signature import HEAD, PYTHON, PrologueCall
from kernels.spec import Shape, row_major
from kernels.upstream import Site

PAGE_SIZE = (PageSizeIsNotANumber, PageSizeIsZero, PageSizeIsFloatZero)

ZERO_FILL = "an untouched byte 0xFF would read as NaN, so do not leave a scale buffer uninitialised"


def _shared(verify: int, extend: int) -> tuple[Site, ...]:
    return (
        PYTHON.at("inkling_attn_prologue_verify", verify, verify),
        PYTHON.at("inkling_attn_prologue_extend", extend, extend),
    )


def _decode(line: int) -> tuple[Site, ...]:
    return (PYTHON.at("inkling_attn_prologue_decode", line, line),)


@dataclass(frozen=True)
class HeadsNotAligned(PrologueCheck):
    """A scale belongs to 32 elements of one head, so only whole heads of 128 can be quantized."""

    raises = ValueError
    message = "MXFP8 fused prologue requires head_dim-aligned Q/K/V."
    sites = _shared(92, 209)
    reason = "dq is {dq_given} and dkv {dkv_given}; with mxfp8_quant both must be multiples of a head's 128"
    looks_at = ("dq", "dkv", "mxfp8_quant")
    requires = "dq and dkv multiples of 128 with mxfp8_quant"
    category = "divisibility"
    premises = (WidthIsNotANumber, WidthIsText)
    dq_given: int = aside()
    dkv_given: int = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if call.mxfp8_quant and (call.dq % HEAD != 0 or call.dkv % HEAD != 0):
            yield cls(call.dq, call.dkv)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        widths = {}
        if self.dq_given % HEAD != 0:
            widths["dq"] = _whole_heads(self.dq_given, _gap(call.q_off, call.k_off))
        if self.dkv_given % HEAD != 0:
            pool = call.k_buf.shape[1] * HEAD if call.k_buf.ndim == 3 else None
            widths["dkv"] = _whole_heads(self.dkv_given, pool or _gap(call.k_off, call.v_off))
        yield Fix(
            "Pass " + " and ".join(f"{name}={width}" for name, width in widths.items()),
            call.replace(**widths),
            safe=False,
            note="the slices of qkvr, the weights and the state must hold that many heads",
        )

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.quantized().replace(dq=192)


@dataclass(frozen=True)
class ScaleBuffersMissing(PrologueCheck):
    """Quantized keys and values cannot be read back without the scales that go with them."""

    raises = ValueError
    message = "MXFP8 fused prologue requires K/V scale buffers."
    sites = _shared(94, 211)
    reason = "mxfp8_quant is set, and {absent} not given"
    looks_at = ("sfk", "sfv", "mxfp8_quant")
    requires = "sfk and sfv with mxfp8_quant"
    category = "presence"
    absent: str = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if call.mxfp8_quant and (call.sfk is None or call.sfv is None):
            names = [name for name in ("sfk", "sfv") if getattr(call, name) is None]
            yield cls(" and ".join(names) + (" are" if len(names) == 2 else " is"))

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        if not _has_scale_shape(call):
            return
        scales = call.new_scales()
        if other := call.sfk or call.sfv:
            scales = scales.with_dtype(other.dtype)
        yield Fix(
            f"Allocate them zero-filled as {list(scales.shape)}",
            call.replace(sfk=call.sfk or scales, sfv=call.sfv or scales),
            safe=True,
            note=ZERO_FILL,
        )

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.quantized().without("sfk")


@dataclass(frozen=True)
class ScaleBufferShape(PrologueCheck):
    """Scales lie as the matrix instruction reads them: 32 tokens by 4 blocks, interleaved within a page."""

    raises = ValueError
    message = (
        "MXFP8 fused prologue requires interleaved K/V scale buffers with shape {sf_shape}, "
        "got {tuple(sfk.shape)} and {tuple(sfv.shape)}."
    )
    sites = _shared(97, 214)
    reason = (
        "k_buf's slots, page_size and dkv ask for scale buffers {expected}, but sfk is {sfk} and sfv {sfv}"
    )
    looks_at = ("sfk.shape", "sfv.shape", "k_buf.shape", "page_size", "dkv", "mxfp8_quant")
    requires = "sfk and sfv of shape (S // page_size, dkv // 128, 32, page_size // 32, 4)"
    category = "shape"
    premises = (ScaleBuffersMissing, WidthIsNotANumber, WidthIsText, KBufHasNoSlots, *PAGE_SIZE)
    expected: Shape
    sfk: Shape
    sfv: Shape

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        # A dq that splits heads hides what dkv is: upstream's `or` looks no further.
        counted: object = call.dkv
        if not isinstance(counted, (int, float)):
            return
        if call.mxfp8_quant and call.sfk is not None and call.sfv is not None:
            expected = call.scale_shape
            if call.sfk.shape != expected or call.sfv.shape != expected:
                yield cls(expected, call.sfk.shape, call.sfv.shape)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        yield from _other_page_size(call)
        if not _has_scale_shape(call):
            return
        slots, page = call.k_buf.shape[0], call.page_size
        if slots % page:  # buffers of whole pages alone would leave the last slots without scales
            pages = max(-(-slots // page), call.sfk.shape[0] if call.sfk is not None and call.sfk.ndim else 1)
            yield _with_scales(_with_pool(call, pages * page), f"Give the pools {pages} whole pages")
        else:
            yield _with_scales(call, "")

    @classmethod
    def example(cls) -> PrologueCall:
        call = cls.valid.quantized()
        _, *rest = call.scale_shape
        return call.with_tensor("sfk", shape=(1, *rest))


@dataclass(frozen=True)
class ScaleBufferGaps(PrologueCheck):
    """A scale byte's address is computed from the shape alone."""

    raises = ValueError
    message = "MXFP8 fused prologue requires contiguous interleaved SFK/SFV."
    sites = _shared(102, 219)
    reason = "{names} not dense: scale bytes are addressed from the shape, not from strides"
    looks_at = ("sfk.strides", "sfv.strides", "mxfp8_quant")
    requires = "sfk and sfv contiguous"
    category = "layout"
    premises = (ScaleBuffersMissing,)
    names: str = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if call.mxfp8_quant and call.sfk is not None and call.sfv is not None:
            gaps = [name for name in ("sfk", "sfv") if not getattr(call, name).is_contiguous]
            if gaps:
                yield cls(" and ".join(gaps) + (" are" if len(gaps) == 2 else " is"))

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        dense = {
            name: tensor.contiguous()
            for name in ("sfk", "sfv")
            if (tensor := getattr(call, name)) is not None and not tensor.is_contiguous
        }
        yield Fix(
            "Allocate the scale buffers dense",
            call.replace(**dense),
            safe=True,
            note="the call writes them: a copy made for the call alone would be lost",
        )

    @classmethod
    def example(cls) -> PrologueCall:
        call = cls.valid.quantized()
        strides = tuple(2 * stride for stride in row_major(call.scale_shape))
        return call.with_tensor("sfk", strides=strides)


@dataclass(frozen=True)
class DecodeHeadsNotAligned(HeadsNotAligned):
    """Decode's wording."""

    message = "MXFP8 fused decode prologue requires head_dim-aligned Q/K/V."
    sites = _decode(323)


@dataclass(frozen=True)
class DecodeScaleBuffersMissing(ScaleBuffersMissing):
    """Decode's wording."""

    message = "MXFP8 fused decode prologue requires K/V scale buffers."
    sites = _decode(327)


@dataclass(frozen=True)
class DecodeScaleBufferShape(ScaleBufferShape):
    """Decode's wording."""

    message = (
        "MXFP8 fused decode prologue requires interleaved K/V scale buffers with shape {sf_shape}, "
        "got {tuple(sfk.shape)} and {tuple(sfv.shape)}."
    )
    sites = _decode(330)
    premises = (DecodeScaleBuffersMissing, WidthIsNotANumber, WidthIsText, KBufHasNoSlots, *PAGE_SIZE)


@dataclass(frozen=True)
class DecodeScaleBufferGaps(ScaleBufferGaps):
    """Decode's wording."""

    message = "MXFP8 fused decode prologue requires contiguous interleaved SFK/SFV."
    sites = _decode(335)
    premises = (DecodeScaleBuffersMissing,)


def _gap(first: object, second: object) -> int:
    """Elements between two offsets, 0 where that is unknown."""
    return second - first if type(first) is int and type(second) is int else 0


def _whole_heads(width: float, held: int) -> int:
    """The width that is held, where that is whole heads; else the nearest one."""
    if held > 0 and held % HEAD == 0:
        return held
    return max(int(width / HEAD + 0.5), 1) * HEAD if isfinite(width) else HEAD


def _has_scale_shape(call: PrologueCall) -> bool:
    """Whether the shape that upstream computes is that of a tensor."""
    counts = (call.page_size, call.dkv)
    return call.k_buf.ndim > 0 and all(type(count) is int and count > 0 for count in counts)


def _other_page_size(call: PrologueCall) -> Iterator[Fix[PrologueCall]]:
    """The page size that both buffers were made for, where they fit the pool with it."""
    page = page_of(call)
    if page is not None and page != call.page_size and type(call.dkv) is int:
        changed = call.replace(page_size=page)
        if call.sfk is not None and call.sfk.shape == changed.scale_shape:
            yield Fix(
                f"Pass page_size={page}, for which the buffers were made",
                changed,
                safe=page == HEAD,
                note="" if page == HEAD else "attention must read pages of this size too",
            )


def _with_pool(call: PrologueCall, slots: int) -> PrologueCall:
    """The call with pools of so many slots."""
    for name in ("k_buf", "v_buf"):
        _, *row = getattr(call, name).shape
        call = call.with_tensor(name, shape=(slots, *row))
    return call


def _with_scales(call: PrologueCall, first: str) -> Fix[PrologueCall]:
    """The call with those scale buffers replaced that do not fit its pool."""
    expected = call.scale_shape
    names = [
        name
        for name in ("sfk", "sfv")
        if (tensor := getattr(call, name)) is not None and tensor.shape != expected
    ]
    scales = {name: call.new_scales().with_dtype(getattr(call, name).dtype) for name in names}
    then = f"llocate {' and '.join(names)} zero-filled as {list(expected)}" if names else ""
    title = f"{first}, and a{then}" if first and then else first or f"A{then}"
    return Fix(title, call.replace(**scales), safe=True, note=ZERO_FILL if names else "")
