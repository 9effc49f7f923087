"""What the compiled launchers refuse of rows, widths and factors.

One condition has one text and three lines, one in each launcher. The rest is in `launcher_sequences.py`,
`launcher_state.py` and `launcher_pool.py`; `checks.py` has the order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from kernels.checking import Fix, aside
from kernels.dtypes import DType
from kernels.inkling_attn_prologue.allocation import SIZES
from kernels.inkling_attn_prologue.bound import Launched, at
from kernels.inkling_attn_prologue.conversion import NUMBERS
from kernels.inkling_attn_prologue.derived import (
    offsets,
    pool_rows,
    tokens,
    width,
)
from kernels.inkling_attn_prologue.dimensions import (
    QkvrDimensions,
)
from kernels.inkling_attn_prologue.launcher_state import dense
from kernels.inkling_attn_prologue.signature import HEAD, ExtendCall, PrologueCall
from kernels.spec import TensorSpec

VECTOR = 8
"""Elements of one 16-byte vector."""
LANES = 1024
"""Threads of a block: one for each vector of a token's q, k and v."""


class Unreachable(Launched):
    """A condition that an earlier one implies, or that upstream's own Python makes true."""

    category = "format"
    looks_at: ClassVar[tuple[str, ...]] = ("dq", "dkv")

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        return iter(())


@dataclass(frozen=True)
class WidthsSplitHeads(Launched):
    """A head is 128 elements in 16 neighbouring threads, which its norm is summed over."""

    message = "dims % head_dim"
    sites = at(verify=405, decode=809, extend=1303)
    reason = "dq is {dq_given} and dkv {dkv_given}; both must be multiples of a head's 128"
    looks_at = ("dq", "dkv", "mxfp8_quant")
    requires = "dq and dkv multiples of 128"
    category = "divisibility"
    premises = SIZES
    dq_given: int = aside()
    dkv_given: int = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if not call.mxfp8_quant and (call.dq % HEAD or call.dkv % HEAD):
            yield cls(call.dq, call.dkv)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        near = {name: max(round(getattr(call, name) / HEAD), 1) * HEAD for name in ("dq", "dkv")}
        if self.dq_given % HEAD:
            found = offsets(call)
            between = found.get("k_off", 0) - found.get("q_off", 0)
            near["dq"] = between if between > 0 and between % HEAD == 0 else near["dq"]
        if self.dkv_given % HEAD and call.k_buf.ndim == 3:
            near["dkv"] = call.k_buf.shape[1] * HEAD or near["dkv"]
        said = " and ".join(f"{name}={value}" for name, value in near.items() if value != getattr(call, name))
        note = "the slices of qkvr, the weights and the state must hold that many heads"
        yield Fix(f"Pass {said}", call.replace(**near), safe=False, note=note)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(dq=192)


@dataclass(frozen=True)
class QueryLanesSplitHeads(Unreachable):
    """Sixteen threads of eight elements are one head."""

    message = "q lanes must tile heads"
    sites = at(verify=406, decode=810, extend=1304)
    reason = "dq / 8 is no multiple of 16"
    requires = "dq a multiple of 128"
    unreachable = "dq % 128 was refused before, and dq / 8 % 16 is the same condition"


@dataclass(frozen=True)
class QkvrRowsUnaligned(Launched):
    """A thread reads 16 bytes of a row at once, which must lie side by side and start at a multiple of 16."""

    message = "qkvr must be row-major with 16B-aligned rows"
    sites = at(verify=407, decode=811, extend=1305)
    reason = "qkvr has strides {strides}: the second must be 1, the first a multiple of 8 elements"
    looks_at = ("qkvr.strides",)
    requires = "qkvr with strides (a multiple of 8, 1)"
    category = "layout"
    premises = (QkvrDimensions,)
    strides: tuple[int, ...] = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if call.qkvr.strides[1] != 1 or call.qkvr.strides[0] % VECTOR:
            yield cls(call.qkvr.strides)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        rows, columns = call.qkvr.shape[:2]
        padded = -(-max(columns, call.qkvr.strides[0], _row_end(call)) // VECTOR) * VECTOR
        laid = replace(call.qkvr, shape=(rows, columns), strides=(padded, 1), offset=0)
        title = f"Pad the projection's rows to {padded} elements"
        yield Fix(title, call.replace(qkvr=laid), safe=True, note="the projection writes its output so")

    @classmethod
    def example(cls) -> PrologueCall:
        _, columns = cls.valid.qkvr.shape
        return cls.valid.with_tensor("qkvr", strides=(columns + 5, 1))


@dataclass(frozen=True)
class OffsetsUnaligned(Launched):
    """Each slice of a row starts a vector of 16 bytes."""

    message = "slice offsets must be 16B aligned"
    sites = at(verify=409, decode=813, extend=1307)
    reason = "{names}: no multiple of 8 elements"
    looks_at = ("q_off", "k_off", "v_off")
    requires = "q_off, k_off and v_off multiples of 8"
    category = "alignment"
    premises = NUMBERS
    names: str = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        odd = {name: offset for name, offset in offsets(call).items() if offset % VECTOR}
        if odd:
            yield cls(", ".join(f"{name} = {offset}" for name, offset in odd.items()))

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        down = {name: offset // VECTOR * VECTOR for name, offset in offsets(call).items()}
        said = ", ".join(f"{name}={down[name]}" for name, offset in offsets(call).items() if offset % VECTOR)
        note = "pad what stands before the slice, so that it starts there"
        yield Fix(f"Pass {said}", call.replace(**down), safe=False, note=note)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(k_off=cls.valid.k_off + 1)


@dataclass(frozen=True)
class TooManyLanes(Launched):
    """A block holds one token, with a thread for every eight elements of its q, k and v."""

    message = "token lanes must fit one block"
    sites = at(verify=419, decode=822, extend=1319)
    reason = "dq + 2 · dkv is {elements}, {lanes} threads of 8 elements; a block has 1024, so 8192 fit"
    looks_at = ("dq", "dkv")
    requires = "dq + 2 · dkv at most 8192"
    category = "values"
    premises = SIZES
    elements: int = aside()
    lanes: int = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        lanes = width(call.dq) // VECTOR + 2 * (width(call.dkv) // VECTOR)
        if lanes > LANES:
            yield cls(call.dq + 2 * call.dkv, lanes)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        found = offsets(call)
        between = found.get("k_off", 0) - found.get("q_off", 0)
        fitting = LANES * VECTOR - 2 * width(call.dkv)
        if between > 0 and between % HEAD == 0 and between <= fitting:
            note = "a rank of more heads needs a larger tensor-parallel size"
            title = f"Pass dq={between}, what lies between the offsets"
            yield Fix(title, call.replace(dq=between), safe=False, note=note)

    def remedy(self, call: PrologueCall, /) -> str:
        return "a rank of fewer heads has room in a block: use a larger tensor-parallel size"

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(dq=LANES * VECTOR)


@dataclass(frozen=True)
class TauNotFloat32(Unreachable):
    """Factors are read as float32."""

    message = "log_tau must be fp32"
    sites = at(verify=457, decode=861, extend=1363)
    reason = "log_scaling_tau is not float32"
    looks_at = ("log_scaling_tau.dtype",)
    requires = "log_scaling_tau of any float type"
    unreachable = "upstream's Python converts log_scaling_tau to float32 before the launcher sees it"


@dataclass(frozen=True)
class TauStrided(Launched):
    """Factors are read side by side; those that are float32 already are not copied on the way."""

    message = "log_tau must be contiguous"
    sites = at(verify=458, decode=862, extend=1364)
    reason = "log_scaling_tau is a float32 view with strides {strides}"
    looks_at = ("log_scaling_tau.strides", "log_scaling_tau.dtype")
    requires = "log_scaling_tau contiguous"
    category = "layout"
    strides: tuple[int, ...] = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        tau = call.log_scaling_tau
        if tau is None or tau.dtype is not DType.F32 or not tau.numel or _before_tau(call):
            return
        row = pool_rows(tau, tau.numel)
        if row is not None and row.shape[1] != 1 and row.strides[1] != 1:
            yield cls(tau.strides)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        yield dense(call, ("log_scaling_tau",))

    @classmethod
    def example(cls) -> PrologueCall:
        rows = tokens(cls.valid)
        return cls.valid.replace(log_scaling_tau=TensorSpec((rows,), DType.F32, strides=(2,)))


@dataclass(frozen=True)
class TauTooShort(Launched):
    """Every token has a factor."""

    message = "log_tau smaller than T"
    sites = at(verify=459, decode=863, extend=1365)
    reason = "log_scaling_tau has {got} elements for {rows} tokens"
    looks_at = ("log_scaling_tau.shape", "qkvr.shape")
    requires = "log_scaling_tau of at least T elements"
    category = "shape"
    got: int = aside()
    rows: int = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        tau = call.log_scaling_tau
        if tau is not None and 0 < tau.numel < tokens(call):
            yield cls(tau.numel, tokens(call))

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        longer = call.with_tensor("log_scaling_tau", shape=(self.rows,))
        yield Fix(f"Pass one factor for each of {self.rows} tokens", longer, safe=True)

    @classmethod
    def example(cls) -> PrologueCall:
        return cls.valid.replace(log_scaling_tau=TensorSpec((tokens(cls.valid) - 1,), DType.F32))


def _row_end(call: PrologueCall) -> int:
    """Where the last slice of a row ends."""
    widths = {"q_off": width(call.dq), "k_off": width(call.dkv), "v_off": width(call.dkv)}
    return max((offset + widths[name] for name, offset in offsets(call).items()), default=0)


def _before_tau(call: PrologueCall) -> bool:
    """Whether the launcher returns before it looks at tau."""
    return isinstance(call, ExtendCall) and tokens(call) == 0
