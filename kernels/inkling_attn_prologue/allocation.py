"""What Python and torch refuse on upstream's behalf while results are allocated and a kernel is chosen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernels.checking import Fix, aside
from kernels.dtypes import DType
from kernels.inkling_attn_prologue.bound import PrologueCheck
from kernels.inkling_attn_prologue.derived import INT64, tokens, whole
from kernels.inkling_attn_prologue.python_errors import (
    WIDTHS,
    PythonError,
    WidthIsNotANumber,
    WidthIsText,
    Widths,
)
from kernels.inkling_attn_prologue.signature import HEAD, PrologueCall
from kernels.upstream import SGLANG, File

CPP_ARGS = File(SGLANG, "python/sglang/kernels/jit/utils/compile/cpp_args.py")

CPP_DTYPES = frozenset(DType) - {DType.F8_E8M0, DType.C64, DType.C128, DType.F4, DType.F6_E2M3, DType.F6_E3M2}
"""Element types that upstream can name in C++."""


@dataclass(frozen=True)
class WidthIsNotASize(Widths):
    """Results are allocated with the widths as sizes, and torch takes whole numbers only."""

    message = (
        "empty(): argument 'size' failed to unpack the object at pos 2 with error "
        '"type must be tuple of ints,but got {got}"'
    )
    reason = "{argument} is a {got}; it must be an int"
    looks_at = ("dq", "dkv")
    requires = "dq and dkv ints"
    premises = (WidthIsNotANumber, WidthIsText)
    got: str
    argument: str = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        for name in WIDTHS:
            value: object = getattr(call, name)
            if not isinstance(value, int):
                yield cls(type(value).__name__, name)
            elif name == "dq" and not 0 <= value < INT64:
                return  # allocated first, dq is what torch refuses first

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        same = {name: whole(getattr(call, name)) for name in WIDTHS}
        if all(value is not None and value == getattr(call, name) for name, value in same.items()):
            said = " and ".join(f"{n}={v}" for n, v in same.items() if type(getattr(call, n)) is not int)
            yield Fix(f"Pass {said}, an int", call.replace(**same), safe=True)
        else:
            yield from super().fixes(call)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(dq=float(cls.valid.dq))


@dataclass(frozen=True)
class WidthTooLarge(PythonError):
    """torch's sizes have 64 bits."""

    raises = TypeError
    message = (
        "empty(): argument 'size' failed to unpack the object at pos 2 with error "
        '"Overflow when unpacking long long\nException raised from {trace}"'
    )
    reason = "{argument} is {width}, beyond 64 bits"
    looks_at = ("dq", "dkv")
    requires = "dq and dkv below 2^63"
    category = "values"
    premises = (WidthIsNotASize,)
    trace: str
    """torch's own stack trace, which no two builds share."""
    argument: str = aside()
    width: int = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        for name in WIDTHS:
            value = getattr(call, name)
            if not isinstance(value, int):
                continue  # dq speaks first, see WidthIsNotASize
            if not -INT64 <= value < INT64:
                yield cls("…", name, value)
            elif name == "dq" and value < 0:
                return

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        start, end = (call.q_off, call.k_off) if self.argument == "dq" else (call.k_off, call.v_off)
        offsets: tuple[object, ...] = (start, end)
        held = end - start if all(isinstance(offset, int) for offset in offsets) else 0
        if 0 < held < INT64:
            said = f"Pass {self.argument}={held}, what lies between the offsets"
            yield Fix(said, call.replace(**{self.argument: held}), safe=False)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(dq=2**63)


@dataclass(frozen=True)
class NegativeWidth(PythonError):
    """No tensor has a negative size."""

    raises = RuntimeError
    message = "Trying to create tensor with negative dimension {width}: {sizes}"
    reason = "{argument} is {width}"
    looks_at = ("dq", "dkv")
    requires = "dq and dkv not negative"
    category = "values"
    premises = (WidthIsNotASize, WidthTooLarge)
    width: int
    sizes: list[int]
    argument: str = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        for name in WIDTHS:
            value = getattr(call, name)
            if isinstance(value, int) and value < 0:
                yield cls(value, [tokens(call), value], name)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        widths = {name: getattr(call, name) for name in WIDTHS}
        positive = {name: abs(width) for name, width in widths.items() if isinstance(width, int)}
        said = f"{self.argument}={positive[self.argument]}"
        yield Fix(f"Pass {said}", call.replace(**positive), safe=False, note="check where the sign came from")

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(dq=-HEAD)


@dataclass(frozen=True)
class KWeightHasNoTaps(PythonError):
    """The convolution's width is the second size of its weights."""

    raises = IndexError
    message = "tuple index out of range"
    reason = "k_weight has {ndim} dimensions; it must be [dkv, W]"
    looks_at = ("k_weight.shape",)
    requires = "k_weight of 2 dimensions"
    category = "shape"
    ndim: int = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if call.k_weight.ndim < 2:
            yield cls(call.k_weight.ndim)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        if call.v_weight.ndim == 2:
            shape = call.v_weight.shape
            fixed = call.with_tensor("k_weight", shape=shape)
            yield Fix(f"Pass the weights as {list(shape)}, as v_weight is", fixed, safe=True)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_tensor("k_weight", shape=(cls.valid.k_weight.numel,))


@dataclass(frozen=True)
class FlagIsNotAFlag(PrologueCheck):
    """Flags become template arguments of the kernel that is compiled for them."""

    raises = TypeError
    message = "Unsupported argument type for cpp template: {type(arg)}"
    sites = (CPP_ARGS.at("make_cpp_args._convert", None, 48),)
    reason = "{argument} is of type {kind}; it must be True or False"
    looks_at = ("use_residual", "mxfp8_quant")
    requires = "use_residual and mxfp8_quant True or False"
    category = "type"
    got: type
    argument: str = aside()
    kind: str = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        for name in cls.looks_at:
            value: object = getattr(call, name)
            if not isinstance(value, (bool, int, float, str)):
                yield cls(type(value), name, type(value).__name__)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        absent = [name for name in self.looks_at if getattr(call, name) is None]
        yield Fix(f"Leave {' and '.join(absent)} out", call.without(*absent), safe=False)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(use_residual=None)


@dataclass(frozen=True)
class QkvrTypeHasNoName(PythonError):
    """The kernel is compiled for an element type, which must have a name in C++."""

    raises = KeyError
    message = "{dtype}"
    reason = "qkvr is {got}; there is no kernel for it, and no C++ type upstream knows"
    looks_at = ("qkvr.dtype",)
    requires = "qkvr bfloat16"
    category = "dtype"
    dtype: str
    got: DType = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if call.qkvr.dtype not in CPP_DTYPES:
            yield cls(f"torch.{call.qkvr.dtype}", call.qkvr.dtype)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        cast = call.with_dtype("qkvr", DType.BF16)
        yield Fix("Pass qkvr as bfloat16", cast, safe=False, note="such numbers are no projection's output")

    def exception(self) -> Exception:
        """A KeyError prints its key's repr, which for a torch dtype is its name."""
        error = KeyError(_Name(self.dtype))
        error.violation = self  # type: ignore[attr-defined]
        return error

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.with_dtype("qkvr", DType.C64)


class _Name(str):
    """A text whose repr is itself."""

    def __repr__(self) -> str:
        return str(self)


SIZES = (WidthIsNotASize, WidthTooLarge, NegativeWidth)

ALLOCATION = (*SIZES, KWeightHasNoTaps, FlagIsNotAFlag, QkvrTypeHasNoName)
