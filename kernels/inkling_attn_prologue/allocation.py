"""What Python and torch refuse on upstream's behalf while results are allocated and a kernel is chosen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from kernels.checking import Category, Fix, aside
from kernels.dtypes import DType
from kernels.inkling_attn_prologue.bound import PrologueCheck
from kernels.inkling_attn_prologue.derived import INT64, tokens, whole
from kernels.inkling_attn_prologue.parts import Part, PartCheck
from kernels.inkling_attn_prologue.python_errors import (
    WIDTHS,
    PythonError,
    WidthIsNotANumber,
    WidthIsText,
    between_offsets,
)
from kernels.inkling_attn_prologue.signature import HEAD, PrologueCall
from kernels.upstream import SGLANG, File

CPP_ARGS = File(SGLANG, "python/sglang/kernels/jit/utils/compile/cpp_args.py")

CPP_DTYPES = frozenset(DType) - {DType.F8_E8M0, DType.C64, DType.C128, DType.F4, DType.F6_E2M3, DType.F6_E3M2}
"""Element types that upstream can name in C++."""

LEAST_SIZE = -(2**62)
"""The least number that torch takes for a size, if a wrong one: smaller ones stand for symbols."""


class Width(PartCheck):
    """Results are allocated one after the other: q's with dq as a size, then those of k and v with dkv."""

    raises: ClassVar[type[Exception]] = TypeError
    parts = WIDTHS
    looks_at = WIDTHS
    category: ClassVar[Category] = "values"

    @staticmethod
    def asked(part: Part) -> Any:
        """The width, whatever it is."""
        return getattr(part.call, part.name)

    def fixes(self, part: Part, /) -> Iterator[Fix[PrologueCall]]:
        yield from between_offsets(part.call, part.name)


@dataclass(frozen=True)
class WidthIsNotASize(Width):
    """torch takes whole numbers only as sizes."""

    message = (
        "empty(): argument 'size' failed to unpack the object at pos 2 with error "
        '"type must be tuple of ints,but got {got}"'
    )
    reason = "{argument} is a {got}; it must be an int"
    requires = "dq and dkv ints"
    category = "type"
    premises = (WidthIsNotANumber, WidthIsText)
    got: str
    argument: str = aside()

    @classmethod
    def find(cls, part: Part, /) -> Iterator[Self]:
        if not isinstance(cls.asked(part), int):
            yield cls(type(cls.asked(part)).__name__, part.name)

    def fixes(self, part: Part, /) -> Iterator[Fix[PrologueCall]]:
        call = part.call
        same = {name: whole(getattr(call, name)) for name in WIDTHS}
        if all(value is not None and value == getattr(call, name) for name, value in same.items()):
            said = " and ".join(f"{n}={v}" for n, v in same.items() if type(getattr(call, n)) is not int)
            yield Fix(f"Pass {said}, an int", call.replace(**same), safe=True)
        else:
            wrong = (name for name in WIDTHS if not isinstance(getattr(call, name), (int, float)))
            yield from between_offsets(call, *wrong)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(dq=float(cls.valid.dq))


@dataclass(frozen=True)
class WidthTooLarge(Width):
    """torch's sizes have 64 bits."""

    message = (
        "empty(): argument 'size' failed to unpack the object at pos 2 with error "
        '"Overflow when unpacking long long\nException raised from {trace}"'
    )
    reason = "{argument} is {width}, beyond 64 bits"
    requires = "dq and dkv below 2^63"
    premises = (WidthIsNotASize,)
    trace: str
    """torch's own stack trace, which no two builds share."""
    argument: str = aside()
    width: int = aside()

    @classmethod
    def find(cls, part: Part, /) -> Iterator[Self]:
        width = cls.asked(part)
        if not -INT64 <= width < INT64:
            yield cls("…", part.name, width)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(dq=2**63)


@dataclass(frozen=True)
class WidthTakenForASymbol(Width):
    """Numbers below -2^62 are how torch writes down sizes that it does not know yet."""

    raises = RuntimeError
    message = "{place}: SymIntArrayRef expected to contain only concrete integers"
    reason = "{argument} is {width}; torch takes sizes below -2^62 for symbols"
    requires = "dq and dkv not negative"
    premises = (WidthIsNotASize, WidthTooLarge)
    place: str
    """A file and line of the build of torch."""
    argument: str = aside()
    width: int = aside()

    @classmethod
    def find(cls, part: Part, /) -> Iterator[Self]:
        width = cls.asked(part)
        if width < LEAST_SIZE:
            yield cls("…", part.name, width)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(dq=-INT64)


@dataclass(frozen=True)
class NegativeWidth(Width):
    """No tensor has a negative size."""

    raises = RuntimeError
    message = "Trying to create tensor with negative dimension {width}: {sizes}"
    reason = "{argument} is {width}"
    requires = "dq and dkv not negative"
    premises = (WidthIsNotASize, WidthTooLarge, WidthTakenForASymbol)
    width: int
    sizes: list[int]
    argument: str = aside()

    @classmethod
    def find(cls, part: Part, /) -> Iterator[Self]:
        width = cls.asked(part)
        if width < 0:
            yield cls(width, [tokens(part.call), width], part.name)

    def fixes(self, part: Part, /) -> Iterator[Fix[PrologueCall]]:
        call = part.call
        widths = {name: getattr(call, name) for name in WIDTHS}
        positive = {name: abs(width) for name, width in widths.items() if isinstance(width, int)}
        said = f"{self.argument}={positive[self.argument]}"
        yield Fix(f"Pass {said}", call.replace(**positive), safe=False, note="check where the sign came from")

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(dq=-HEAD)


@dataclass(frozen=True)
class StorageOverflows(Width):
    """The bytes of a result are counted in 64 bits, the sign's among them."""

    raises = RuntimeError
    message = "Storage size calculation overflowed with sizes={sizes}"
    reason = "a result of {rows} rows of {argument} = {width} elements has more than 2^63 - 1 bytes"
    requires = "results of fewer than 2^63 bytes"
    premises = (WidthIsNotASize, WidthTooLarge, WidthTakenForASymbol, NegativeWidth)
    beside = ("qkvr.shape", "qkvr.dtype")
    sizes: list[int]
    argument: str = aside()
    rows: int = aside()
    width: int = aside()

    @classmethod
    def find(cls, part: Part, /) -> Iterator[Self]:
        call, width, rows = part.call, cls.asked(part), tokens(part.call)
        coded = call.mxfp8_quant and part.name == "dq"
        itemsize = DType.F8_E4M3FN.itemsize if coded else call.qkvr.itemsize
        if rows * width * itemsize >= INT64:
            yield cls([rows, width], part.name, rows, width)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(dq=2**63 - 1)


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


SIZES = (WidthIsNotASize, WidthTooLarge, WidthTakenForASymbol, NegativeWidth, StorageOverflows)

ALLOCATION = (*SIZES, KWeightHasNoTaps, FlagIsNotAFlag, QkvrTypeHasNoName)
