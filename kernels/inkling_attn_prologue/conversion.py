"""What Python, torch and the call into compiled code refuse on upstream's behalf, once a kernel is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, Self

from kernels.checking import Category, Check, Fix, aside
from kernels.dtypes import DType
from kernels.inkling_attn_prologue.allocation import SIZES, WidthIsNotASize
from kernels.inkling_attn_prologue.derived import pool_rows, tokens, whole
from kernels.inkling_attn_prologue.parts import Part, PartCheck
from kernels.inkling_attn_prologue.python_errors import KBufHasNoSlots, PythonError
from kernels.inkling_attn_prologue.signature import HEAD, DecodeCall, PrologueCall
from kernels.spec import Shape, TensorSpec

COUNTS = ("q_off", "k_off", "v_off", "draft_token_num", "do_store", "page_size", "do_cache_update")
"""Arguments that are passed through int()."""


def _counts(call: PrologueCall) -> Iterator[tuple[str, object]]:
    for name in COUNTS:
        # With MXFP8 the page size is divided by first, which has checks of its own.
        if hasattr(call, name) and not (name == "page_size" and call.mxfp8_quant):
            yield name, getattr(call, name)


class Eps(PythonError):
    """eps goes through float()."""

    looks_at = ("eps",)
    requires = "eps a number"
    category = "type"

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        yield Fix("Pass eps=1e-06, the models' default", call.replace(eps=1e-6), safe=False)


@dataclass(frozen=True)
class EpsIsNotANumber(Eps):
    """None is no number."""

    raises = TypeError
    message = "float() argument must be a string or a real number, not '{got}'"
    reason = "eps is a {got}; it must be a number"
    got: str

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        eps: object = call.eps
        if not isinstance(eps, (int, float, str)):
            yield cls(type(eps).__name__)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(eps=None)


@dataclass(frozen=True)
class EpsIsText(Eps):
    """A text that spells a number would do."""

    raises = ValueError
    message = "could not convert string to float: {eps!r}"
    reason = "eps is the text {got!r}, which spells no number"
    got: str

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        eps: object = call.eps
        if isinstance(eps, str):
            try:
                float(eps)
            except ValueError:
                yield cls(eps)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(eps="x")


class Pools(PartCheck):
    """Each pool is viewed as rows of whole heads, [-1, dkv // 128 · 128], the keys' before the values'."""

    raises = RuntimeError
    parts = ("k_buf", "v_buf")
    premises: ClassVar[tuple[type[Check[Any]], ...]] = (*SIZES, KBufHasNoSlots)
    looks_at: ClassVar[tuple[str, ...]] = ("k_buf.shape", "v_buf.shape", "dkv")
    beside = ("dkv",)
    category: ClassVar[Category] = "shape"

    @staticmethod
    def pool(part: Part) -> tuple[TensorSpec, int]:
        """The pool and the elements of a row."""
        pool: TensorSpec = getattr(part.call, part.name)
        return pool, part.call.dkv // HEAD * HEAD

    def fixes(self, part: Part, /) -> Iterator[Fix[PrologueCall]]:
        call = part.call
        row = call.dkv // HEAD * HEAD
        held = next(filter(None, map(_held, (call.k_buf, call.v_buf))), 0)
        if row == 0 and held:
            note = "the slices of qkvr, the weights and the state must hold that many heads"
            yield Fix(f"Pass dkv={held}, the pool's heads", call.replace(dkv=held), safe=False, note=note)
        if row and call.k_buf.ndim:
            shape = (call.k_buf.shape[0], row // HEAD, HEAD)
            fixed = call.with_tensor("k_buf", shape=shape).with_tensor("v_buf", shape=shape)
            note = "the pool is what attention reads: it must be allocated so"
            yield Fix(f"Allocate the pools dense as {list(shape)}", fixed, safe=False, note=note)


def _held(pool: TensorSpec) -> int:
    """Elements of a slot of whole heads; 0 for what is no such pool."""
    return pool.shape[1] * HEAD if pool.ndim == 3 and pool.shape[-1] == HEAD else 0


@dataclass(frozen=True)
class PoolRowsAmbiguous(Pools):
    """Of an empty pool any number of empty rows can be made."""

    message = (
        "cannot reshape tensor of 0 elements into shape {shape} because the unspecified dimension size -1 "
        "can be any value and is ambiguous"
    )
    reason = "{argument} has no elements, and dkv = {dkv_given} makes rows of none"
    requires = "dkv at least 128"
    shape: list[int]
    argument: str = aside()
    dkv_given: int = aside()

    @classmethod
    def find(cls, part: Part, /) -> Iterator[Self]:
        pool, row = cls.pool(part)
        if row == 0 and pool.numel == 0:
            yield cls([-1, row], part.name, part.call.dkv)

    def fixes(self, part: Part, /) -> Iterator[Fix[PrologueCall]]:
        call = part.call
        pool = next((pool for pool in (call.k_buf, call.v_buf) if _held(pool) and pool.numel), None)
        if pool is not None:
            changed = call.replace(dkv=_held(pool))
            for name in self.parts:
                if getattr(call, name).numel == 0:
                    changed = changed.with_tensor(name, shape=pool.shape)
            title = f"Pass dkv={_held(pool)} and pools of that width, {list(pool.shape)}"
            note = "the slices of qkvr, the weights and the state must hold that many heads"
            yield Fix(title, changed, safe=False, note=note)

    @classmethod
    def example(cls) -> PrologueCall:
        slots = cls.valid.k_buf.shape[0]
        return cls.valid.replace(dkv=64).with_tensor("k_buf", shape=(slots, 0, HEAD))


@dataclass(frozen=True)
class PoolSizeDoesNotDivide(Pools):
    """Rows of whole heads must tile the pool; with less than one head there is no row."""

    message = "shape '{shape}' is invalid for input of size {numel}"
    reason = "{argument} has {numel} elements, and dkv = {dkv_given} makes rows of {per_row} of them"
    requires = "pools of whole rows of dkv // 128 heads, dkv at least 128"
    premises = (*Pools.premises, PoolRowsAmbiguous)
    shape: list[int]
    numel: int
    argument: str = aside()
    dkv_given: int = aside()
    per_row: int = aside()

    @classmethod
    def find(cls, part: Part, /) -> Iterator[Self]:
        pool, row = cls.pool(part)
        if row == 0 or pool.numel % row:
            yield cls([-1, row], pool.numel, part.name, part.call.dkv, row)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(dkv=64)


@dataclass(frozen=True)
class PoolNotViewable(Pools):
    """Heads of one slot must lie one after the other; slots may lie apart."""

    message = (
        "view size is not compatible with input tensor's size and stride (at least one dimension spans "
        "across two contiguous subspaces). Use .reshape(...) instead."
    )
    reason = "{argument}{got} has strides {strides}: its heads do not form rows of {row_wanted} elements"
    looks_at = ("k_buf.strides", "v_buf.strides", "k_buf.shape", "v_buf.shape", "dkv")
    requires = "pools whose heads lie one after the other within a slot"
    category = "layout"
    premises = (*Pools.premises, PoolRowsAmbiguous, PoolSizeDoesNotDivide)
    argument: str = aside()
    got: Shape = aside()
    strides: Shape = aside()
    row_wanted: int = aside()

    @classmethod
    def find(cls, part: Part, /) -> Iterator[Self]:
        pool, row = cls.pool(part)
        if pool_rows(pool, row) is None:
            yield cls(part.name, pool.shape, pool.strides, row)

    @classmethod
    def example(cls) -> PrologueCall:
        slots = cls.valid.k_buf.shape[0]
        return cls.valid.with_tensor("k_buf", shape=(slots, 2, HEAD // 2), strides=(2 * HEAD, HEAD, 1))


class Counts(PythonError):
    """Offsets, counts and some flags go through int(), then into a 64-bit argument."""

    looks_at = COUNTS
    requires = "offsets, draft_token_num, page_size whole numbers"
    category: ClassVar[Category] = "type"
    argument: str

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        for parameter in call.arguments():
            if parameter.name == self.argument and not parameter.required:
                yield Fix(f"Leave {self.argument} out", call.without(self.argument), safe=False)
        known = {"q_off": 0, "k_off": call.dq, "v_off": call.dq + call.dkv}
        if self.argument in known:
            place = known[self.argument] + (whole(call.q_off) or 0) * (self.argument != "q_off")
            said = f"Pass {self.argument}={place}, where q, k and v follow one another"
            yield Fix(said, call.replace(**{self.argument: place}), safe=False)
        if self.argument == "draft_token_num" and call.cache_indices.numel:
            drafted = tokens(call) // call.cache_indices.numel
            yield Fix(f"Pass draft_token_num={drafted}", call.replace(draft_token_num=drafted), safe=False)


@dataclass(frozen=True)
class CountIsNotANumber(Counts):
    """None counts nothing."""

    raises = TypeError
    message = "int() argument must be a string, a bytes-like object or a real number, not '{got}'"
    reason = "{argument} is a {got}; it must be a whole number"
    premises = (WidthIsNotASize,)
    got: str
    argument: str = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        for name, value in _counts(call):
            if not isinstance(value, (int, float, str)):
                yield cls(type(value).__name__, name)
            elif isinstance(value, str) and not is_numeral(value):
                return  # converted before what follows it

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(k_off=None)


def is_numeral(text: str) -> bool:
    """Whether int() takes the text."""
    try:
        int(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class CountIsNotANumeral(Counts):
    """A text that spells a whole number would do."""

    raises = ValueError
    message = "invalid literal for int() with base 10: {literal!r}"
    reason = "{argument} is the text {literal!r}, which spells no whole number"
    premises = (WidthIsNotASize,)
    literal: str
    argument: str = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        for name, value in _counts(call):
            if isinstance(value, str) and not is_numeral(value):
                yield cls(value, name)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(k_off="x")


@dataclass(frozen=True)
class CountTooLarge(Counts):
    """Compiled code takes numbers of 64 bits."""

    raises = OverflowError
    message = "Python int too large to convert to C long"
    reason = "{argument} is {count}, beyond 64 bits"
    requires = "offsets, draft_token_num, page_size below 2^63"
    category = "values"
    premises = (CountIsNotANumber, CountIsNotANumeral)
    argument: str = aside()
    count: int = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        for name, value in _counts(call):
            if not (isinstance(value, float) and not isfinite(value)) and whole(value) is None:
                yield cls(name, int(value))  # type: ignore[call-overload]

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(k_off=2**63)


@dataclass(frozen=True)
class TrackIndicesMissing(PythonError):
    """With a mask of what to track, compiled code takes the slots to track it in."""

    raises = TypeError
    message = (
        "Mismatched type on argument #8 when calling: `attn_prologue_decode({signature}) -> void`. "
        "Expected `DLTensor*` but got `None`"
    )
    reason = "track_mask is given and track_indices is not"
    looks_at = ("track_indices", "track_mask")
    requires = "track_indices with track_mask"
    category = "presence"
    signature: str

    SIGNATURE: ClassVar[str] = ", ".join(
        f"{index}: {'float' if index == 11 else 'int' if 21 <= index <= 26 else 'DLTensor*'}"
        for index in range(28)
    )

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if isinstance(call, DecodeCall) and call.track_mask is not None and call.track_indices is None:
            yield cls(cls.SIGNATURE)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        yield Fix("Leave track_mask out: track nothing", call.without("track_mask"), safe=False)
        slots = TensorSpec((tokens(call),), DType.I64, device=call.qkvr.device)
        yield Fix("Pass the track slot of each token", call.replace(track_indices=slots), safe=False)

    @classmethod
    def example(cls) -> PrologueCall:
        mask = TensorSpec((tokens(cls.valid),), DType.BOOL)
        return cls.valid.replace(track_mask=mask)


POOLS = (PoolRowsAmbiguous, PoolSizeDoesNotDivide, PoolNotViewable)
NUMBERS = (CountIsNotANumber, CountIsNotANumeral, CountTooLarge)

CONVERSION = (EpsIsNotANumber, EpsIsText, *POOLS, *NUMBERS)
