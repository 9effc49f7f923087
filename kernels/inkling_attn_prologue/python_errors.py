"""What Python raises in the prologues where upstream has no check of its own, up to its last MXFP8 check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from kernels.checking import Fix, aside
from kernels.inkling_attn_prologue.bound import PrologueCheck
from kernels.inkling_attn_prologue.parts import Part, PartCheck
from kernels.inkling_attn_prologue.signature import BLOCK, HEAD, PrologueCall

WIDTHS = ("dq", "dkv")


class PythonError(PrologueCheck):
    """Raised by Python or torch on upstream's behalf."""

    pythons_own = True


@dataclass(frozen=True)
class QkvrHasNoRows(PythonError):
    """The number of tokens is the first thing upstream reads."""

    raises = IndexError
    message = "tuple index out of range"
    reason = "qkvr has no dimensions; it must be [tokens, width]"
    looks_at = ("qkvr.shape",)
    requires = "qkvr of 2 dimensions"
    category = "shape"

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if call.qkvr.ndim == 0:
            yield cls()

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        tokens = call.loc.shape[0] if call.loc.ndim else 1
        if not all(type(getattr(call, name)) is int for name in ("v_off", "dkv")):
            return
        shape = (tokens, max(call.v_off + call.dkv, 1))
        yield Fix(
            f"Pass the projection's rows, {list(shape)}", call.with_tensor("qkvr", shape=shape), safe=False
        )

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_tensor("qkvr", shape=())


class Widths(PartCheck):
    """With MXFP8 the widths of q and of k and v are divided by that of a head, one after the other."""

    raises = TypeError
    parts = WIDTHS
    looks_at: ClassVar[tuple[str, ...]] = ("dq", "dkv", "mxfp8_quant")
    beside = ("mxfp8_quant",)
    requires = "dq and dkv whole numbers"
    category = "type"

    @staticmethod
    def divided(part: Part) -> object:
        """The width, whatever it is; 0 where it is not divided: upstream's `or` looks no further."""
        call = part.call
        first: object = call.dq
        ends = part.name == "dkv" and isinstance(first, (int, float)) and first % HEAD != 0
        width: object = getattr(call, part.name)
        return width if call.mxfp8_quant and not ends else 0

    def fixes(self, part: Part, /) -> Iterator[Fix[PrologueCall]]:
        wrong = (name for name in WIDTHS if not isinstance(getattr(part.call, name), (int, float)))
        yield from between_offsets(part.call, *wrong)


def between_offsets(call: PrologueCall, *names: str) -> Iterator[Fix[PrologueCall]]:
    """The widths that the slices' offsets leave room for, where they tell all those named."""
    ends = {"dq": (call.q_off, call.k_off), "dkv": (call.k_off, call.v_off)}
    widths = {name: _difference(*ends[name]) for name in names}
    if None not in widths.values():
        said = " and ".join(f"{name}={width}" for name, width in widths.items())
        yield Fix(f"Pass {said}, what lies between the offsets", call.replace(**widths), safe=False)


@dataclass(frozen=True)
class WidthIsNotANumber(Widths):
    """None is no width."""

    message = "unsupported operand type(s) for %: '{got}' and 'int'"
    reason = "{argument} is a {got}; it must be a whole number"
    got: str
    argument: str = aside()

    @classmethod
    def find(cls, part: Part, /) -> Iterator[Self]:
        width = cls.divided(part)
        if not isinstance(width, (int, float, str)):
            yield cls(type(width).__name__, part.name)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.quantized().replace(dq=None)


@dataclass(frozen=True)
class WidthIsText(Widths):
    """Between a text and a number, % is string formatting."""

    message = "not all arguments converted during string formatting"
    reason = "{argument} is the text {given_text!r}; it must be a whole number"
    argument: str = aside()
    given_text: str = aside()

    @classmethod
    def find(cls, part: Part, /) -> Iterator[Self]:
        width = cls.divided(part)
        if isinstance(width, str):
            yield cls(part.name, width)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.quantized().replace(dq="256")


@dataclass(frozen=True)
class KBufHasNoSlots(PythonError):
    """The number of pages is counted in the key pool's first size."""

    raises = IndexError
    message = "tuple index out of range"
    reason = "k_buf has no dimensions; it must be [slots, heads, 128]"
    looks_at = ("k_buf.shape", "mxfp8_quant")
    requires = "k_buf of 3 dimensions"
    category = "shape"

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if call.mxfp8_quant and call.k_buf.ndim == 0:
            yield cls()

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        if call.v_buf.ndim:
            yield Fix(
                "Pass a key pool of the value pool's shape",
                call.with_tensor("k_buf", shape=call.v_buf.shape),
                safe=False,
            )

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.quantized().with_tensor("k_buf", shape=())


class PageSize(PythonError):
    """The pool's slots are divided into pages."""

    looks_at = ("page_size", "mxfp8_quant")
    requires = "page_size a positive multiple of 32 with mxfp8_quant"

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        held = page_of(call)
        if held is not None and held != HEAD:
            yield Fix(
                f"Pass page_size={held}, for which the scale buffers were made",
                call.replace(page_size=held),
                safe=True,
            )
        yield Fix(f"Leave page_size at {HEAD}", call.without("page_size"), safe=held == HEAD)


@dataclass(frozen=True)
class PageSizeIsNotANumber(PageSize):
    """A page is a whole number of slots."""

    raises = TypeError
    message = "unsupported operand type(s) for //: 'int' and '{got}'"
    reason = "page_size is a {got}; it must be a whole number"
    category = "type"
    got: str

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if call.mxfp8_quant and not isinstance(call.page_size, (int, float)):
            yield cls(type(call.page_size).__name__)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.quantized().replace(page_size=None)


@dataclass(frozen=True)
class PageSizeIsZero(PageSize):
    """The pool's slots are divided into pages."""

    raises = ZeroDivisionError
    message = "integer division or modulo by zero"
    reason = "page_size is 0, and the scale buffers have one part for each page"
    category = "values"

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if call.mxfp8_quant and call.page_size == 0 and not isinstance(call.page_size, float):
            yield cls()

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.quantized().replace(page_size=0)


@dataclass(frozen=True)
class PageSizeIsFloatZero(PageSizeIsZero):
    """Python words the division of floats otherwise."""

    message = "float floor division by zero"

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if call.mxfp8_quant and call.page_size == 0 and isinstance(call.page_size, float):
            yield cls()

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.quantized().replace(page_size=0.0)


def page_of(call: PrologueCall) -> int | None:
    """The page size that the scale buffers' own shape implies, where both have the same."""
    if call.sfk is None or call.sfv is None or call.sfk.shape != call.sfv.shape or call.sfk.ndim != 5:
        return None
    return call.sfk.shape[3] * BLOCK or None


def _difference(first: object, second: object) -> int | None:
    held = second - first if type(first) is int and type(second) is int else 0
    return held if 0 < held < 2**63 else None
