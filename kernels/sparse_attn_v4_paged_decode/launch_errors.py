"""What torch, Triton and Python raise while sparse_attn_v4_paged_decode launches its kernels.

With kv_splits 1 one kernel does everything. Otherwise partial results are allocated, one kernel computes a
share of the slots a split, and a second joins them. A kernel is compiled before its pointers are looked at:
of a call whose kernel does not compile, nothing is said of what comes behind that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from kernels.checking import Fix, aside
from kernels.dtypes import DType
from kernels.sparse_attn_v4_paged_decode.launches import (
    MULTIPROCESSORS,
    NARROWEST,
    PROGRAMS_A_MULTIPROCESSOR,
    compiles,
    joining_compiles,
    padded_heads,
    previous_power_of_two,
    splits,
)
from kernels.sparse_attn_v4_paged_decode.python_errors import PythonError
from kernels.sparse_attn_v4_paged_decode.signature import VALID, SparseCall
from kernels.spec import TensorSpec

JOINED_COLUMNS = 32
"""Fewest columns of the result that a program of the joining step writes."""

LEAST_SIZE = -(2**62)
"""The least number that torch takes for a size, if a wrong one: smaller ones stand for symbols."""

POINTERS = {"unified_kv": 1, "kv_scales": 2, "kv_indices": 3, "kv_indptr": 4}
"""Place of each argument among the first kernel's."""

SINK_POINTER, SINK_POINTER_JOINING = 5, 3


class Splits(PythonError):
    """Partial results are allocated for every split, which makes torch the judge of their number."""

    looks_at: ClassVar[tuple[str, ...]] = ("kv_splits",)
    requires = "kv_splits a power of two, or None"

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        yield Fix(
            "Leave kv_splits out", call.without("kv_splits"), safe=True, note="chosen from tokens and heads"
        )


@dataclass(frozen=True)
class SplitsNotAnInteger(Splits):
    """A size is a whole number, even where a float has the value of one."""

    raises = TypeError
    message = (
        "empty(): argument 'size' failed to unpack the object at pos 2 with error "
        '"type must be tuple of ints,but got {got}"'
    )
    reason = "kv_splits is a {got}; it becomes a size of the partial results, which takes an int"
    category = "type"
    got: str

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        given: object = call.kv_splits
        if given is not None and given != 1 and not isinstance(given, (int, TensorSpec)):
            yield cls(type(given).__name__)

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        given: object = call.kv_splits
        if isinstance(given, float) and given.is_integer() and given >= 1:
            count = previous_power_of_two(int(given))
            yield Fix(f"Pass the int {count}", call.replace(kv_splits=count), safe=True)
        yield from super().fixes(call)

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.replace(kv_splits=2.0)


@dataclass(frozen=True)
class SplitsTooLarge(Splits):
    """torch's sizes have 64 bits."""

    raises = TypeError
    message = (
        "empty(): argument 'size' failed to unpack the object at pos 2 with error "
        '"Overflow when unpacking long long\nException raised from {trace}"'
    )
    reason = "kv_splits is beyond 64 bits, and partial results are allocated for that many"
    category = "values"
    trace: str
    """torch's own stack trace, which no two builds share."""

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        given: object = call.kv_splits
        if isinstance(given, int) and not -(2**63) <= given < 2**63:
            yield cls("…")

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.replace(kv_splits=2**63)


@dataclass(frozen=True)
class SplitsNegative(Splits):
    """-1 does not mean "choose": None does."""

    raises = RuntimeError
    message = "Trying to create tensor with negative dimension {got}: {shape}"
    reason = "kv_splits is {got}, and partial results are allocated for that many"
    category = "values"
    got: int
    shape: list[int]

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        tokens, heads, _ = call.q.shape
        if isinstance(call.kv_splits, int) and LEAST_SIZE <= call.kv_splits < 0:
            yield cls(call.kv_splits, [tokens, call.kv_splits, padded_heads(heads)])

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.replace(kv_splits=-1)


class AtLaunch(PythonError):
    """What the launch of a kernel raises, and what comes behind the first one's."""

    at_launch = True

    @classmethod
    def evaluable(cls, call: SparseCall, /) -> bool:
        return compiles(call)


class OnHost(AtLaunch):
    """Only q's device is checked; of the other tensors Triton asks the driver, one by one."""

    raises = ValueError
    message = "Pointer argument (at {at}) cannot be accessed from Triton (cpu tensor?)"
    reason = "{argument} is on the CPU; only q's device is checked, and the kernel reads device memory"
    requires = "every tensor on q's GPU"
    category = "device"

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        device = call.q.device if call.q.device_type == "cuda" else "cuda"
        moved = {
            name: replace(tensor, device=device)
            for name, tensor in call.tensors()
            if name != "q" and tensor.device_type != "cuda"
        }
        yield Fix(f"Move {' and '.join(moved)} to the GPU", call.replace(**moved), safe=True, note="one copy")


@dataclass(frozen=True)
class PointerOnHost(OnHost):
    """The pool, its scales and the index lists are read by the first kernel."""

    looks_at = ("unified_kv.device", "kv_scales.device", "kv_indices.device", "kv_indptr.device")
    at: int
    argument: str = aside()

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        for name, tensor in sorted(call.tensors(), key=lambda item: POINTERS.get(item[0], 0)):
            if name in POINTERS and _is_on_host(tensor):
                yield cls(POINTERS[name], name)

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_tensor("kv_indices", device="cpu")


@dataclass(frozen=True)
class MultiprocessorsUnknown(PythonError):
    """How many splits are chosen, and how they are joined, depends on the GPU's multiprocessors."""

    raises = ModuleNotFoundError
    message = "No module named 'aiter'"
    reason = (
        "upstream asks a package for AMD's GPUs for the number of multiprocessors, and it is not installed"
    )
    looks_at = ("kv_splits",)
    requires = "kv_splits 1, which asks nobody, or the package"
    category = "values"
    unreachable = "a package that is not installed is no fault of a call; ours asks torch for the number"

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        return iter(())


@dataclass(frozen=True)
class NothingToReduce(AtLaunch):
    """The step that joins the splits divides the device by the number of (token, head) pairs."""

    raises = ZeroDivisionError
    message = "integer division or modulo by zero"
    reason = (
        "q is {tokens} tokens of {heads} heads: with no work, the step that joins the splits divides by zero"
    )
    looks_at = ("q.shape", "kv_splits")
    requires = "at least one token and one head, or kv_splits 1"
    category = "values"
    tokens: int = aside()
    heads: int = aside()

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        tokens, heads, _ = call.q.shape
        if call.kv_splits != 1 and not (tokens and heads):
            yield cls(tokens, heads)

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        yield Fix("Pass kv_splits=1, which returns the empty result", call.replace(kv_splits=1), safe=True)

    def library_fault(self, call: SparseCall, /) -> str:
        return "an empty batch asks for nothing unusual, and with kv_splits=1 the same call returns it"

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.replace(
            q=TensorSpec((0, 16, 128), DType.BF16),
            kv_indices=TensorSpec((0,), DType.I32),
            kv_indptr=TensorSpec((1,), DType.I32),
        )


@dataclass(frozen=True)
class HeadTooNarrowToJoin(AtLaunch):
    """With few tokens the joining step shares out chunks of 32 columns, of which 16 columns have none."""

    raises = ZeroDivisionError
    message = "integer division or modulo by zero"
    reason = (
        "heads of {width} columns hold no whole chunk of 32, and with {splits_used} splits the joining step "
        "divides by their number of chunks where there are fewer than {pairs} (token, head) pairs, twice the "
        "{multiprocessors} multiprocessors of a GPU"
    )
    looks_at = ("q.shape", "kv_splits")
    requires = "more than 16 columns a head, or kv_splits 1"
    category = "shape"
    width: int = aside()
    splits_used: int = aside()
    pairs: int = aside(default=PROGRAMS_A_MULTIPROCESSOR * MULTIPROCESSORS)
    multiprocessors: int = aside(default=MULTIPROCESSORS)

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        tokens, heads, width = call.q.shape
        used = splits(call)
        few = 0 < tokens * heads < PROGRAMS_A_MULTIPROCESSOR * MULTIPROCESSORS
        if few and NARROWEST <= width <= JOINED_COLUMNS // 2 and isinstance(used, int) and used > 1:
            yield cls(width, used)

    def fixes(self, call: SparseCall, /) -> Iterator[Fix[SparseCall]]:
        yield Fix("Pass kv_splits=1, which joins nothing", call.replace(kv_splits=1), safe=True)
        yield from padded_to(call, JOINED_COLUMNS)

    def library_fault(self, call: SparseCall, /) -> str:
        whose = "the library chose" if call.kv_splits is None else "every other width accepts"
        return f"heads so narrow are computed without splits, and {self.splits_used} splits are what {whose}"

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.replace(
            q=TensorSpec((2, 16, 16), DType.BF16),
            unified_kv=TensorSpec((8, 16), DType.BF16),
            softmax_scale=0.25,
        )


@dataclass(frozen=True)
class SinkOnHost(OnHost):
    """The sink is read by the last kernel: the only one, or the one that joins the splits."""

    looks_at = ("attn_sink.device", "kv_splits")
    at: int
    argument: str = aside(default="attn_sink")

    @classmethod
    def evaluable(cls, call: SparseCall, /) -> bool:
        return super().evaluable(call) and joining_compiles(call)

    @classmethod
    def find(cls, call: SparseCall, /) -> Iterator[Self]:
        if _is_on_host(call.attn_sink):
            yield cls(SINK_POINTER if splits(call) == 1 else SINK_POINTER_JOINING)

    @classmethod
    def example(cls) -> SparseCall:
        return VALID.with_tensor("attn_sink", device="cpu")


def padded_to(call: SparseCall, width: int) -> Iterator[Fix[SparseCall]]:
    """q and pool with columns of zeros, which change no score."""
    if call.unified_kv.ndim == 2 and call.unified_kv.shape[-1] == call.q.shape[-1] and call.kv_scales is None:
        yield Fix(
            f"Pad q and the pool with zero columns to {width}",
            call.with_tensor("q", shape=(*call.q.shape[:-1], width), values=None).with_tensor(
                "unified_kv", shape=(call.unified_kv.shape[0], width), values=None
            ),
            safe=True,
            note=f"the result has {width} columns, those beyond the real width 0; softmax_scale stays",
        )


def _is_on_host(tensor: TensorSpec) -> bool:
    """An empty tensor has no pointer to ask about."""
    return tensor.device_type == "cpu" and tensor.numel > 0
