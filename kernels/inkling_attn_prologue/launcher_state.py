"""What the compiled launchers refuse of the state, of windows and of strides that k and v must share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernels.checking import Fix, aside
from kernels.inkling_attn_prologue.allocation import KWeightHasNoTaps
from kernels.inkling_attn_prologue.bound import Launched, at
from kernels.inkling_attn_prologue.conversion import POOLS
from kernels.inkling_attn_prologue.derived import pool_rows, width
from kernels.inkling_attn_prologue.dimensions import STATE_DIMENSIONS, StateDimensions, WindowDimensions
from kernels.inkling_attn_prologue.signature import HEAD, PrologueCall, VerifyCall
from kernels.spec import TensorSpec


@dataclass(frozen=True)
class StateChannelsStrided(Launched):
    """A thread reads eight neighbouring channels of the state at once."""

    message = "conv caches must be channel-contiguous"
    sites = at(verify=413, decode=816, extend=1313)
    reason = "{argument} has strides {strides}; the last must be 1"
    looks_at = ("k_cache.strides", "v_cache.strides")
    requires = "k_cache and v_cache with a last stride of 1"
    category = "layout"
    premises = (StateDimensions,)
    argument: str = aside()
    strides: tuple[int, ...] = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        for name in ("k_cache", "v_cache"):
            tensor: TensorSpec = getattr(call, name)
            if tensor.ndim > 2 and tensor.strides[2] != 1:
                yield cls(name, tensor.strides)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        yield dense(call, ("k_cache", "v_cache"))

    @classmethod
    def example(cls) -> PrologueCall:
        _, earlier, channels = cls.valid.k_cache.shape
        strides = (earlier * channels, 1, earlier)
        return cls.valid.with_tensor("k_cache", strides=strides)


@dataclass(frozen=True)
class WindowsStrided(Launched):
    """One set of strides serves both windows, and channels are written eight at once."""

    message = "inter buffers must be channel-contiguous with equal strides"
    sites = at(verify=414)
    reason = "k_inter has strides {k}, v_inter {v}; they must be equal and end in 1"
    looks_at = ("k_inter.strides", "v_inter.strides")
    requires = "k_inter and v_inter with equal strides, the last 1"
    category = "layout"
    premises = (WindowDimensions,)
    k: tuple[int, ...] = aside()
    v: tuple[int, ...] = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if isinstance(call, VerifyCall):
            k, v = call.k_inter.strides, call.v_inter.strides
            if k[3] != 1 or (len(v) > 3 and k[:4] != v[:4]):
                yield cls(k, v)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        yield dense(call, ("k_inter", "v_inter"), like="k_inter")

    @classmethod
    def example(cls) -> PrologueCall:
        assert isinstance(cls.valid, VerifyCall)
        _, drafted, earlier, channels = cls.valid.v_inter.shape
        strides = (2 * drafted * earlier * channels, earlier * channels, channels, 1)
        return cls.valid.with_tensor("v_inter", strides=strides)


@dataclass(frozen=True)
class StateStridesDiffer(Launched):
    """One set of strides serves k and v: of the state's slots and rows, and of the weights' channels."""

    message = "k/v cache+weight strides must match"
    sites = at(verify=501, decode=817, extend=1314)
    reason = "{what} of k are {k} and of v {v}; the kernel addresses both with k's"
    looks_at = ("k_cache.strides", "v_cache.strides", "k_weight.strides", "v_weight.strides")
    requires = "caches of equal slot and row strides, weights of equal channel strides"
    category = "layout"
    premises = (*STATE_DIMENSIONS, KWeightHasNoTaps)
    what: str = aside()
    k: tuple[int, ...] = aside()
    v: tuple[int, ...] = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if call.k_cache.strides[:2] != call.v_cache.strides[:2]:
            yield cls("the cache strides", call.k_cache.strides, call.v_cache.strides)
        if call.v_weight.ndim and call.k_weight.strides[0] != call.v_weight.strides[0]:
            yield cls("the weight strides", call.k_weight.strides, call.v_weight.strides)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        names = ("k_cache", "v_cache")
        if call.k_cache.strides[:2] == call.v_cache.strides[:2]:
            names = ("k_weight", "v_weight")
        yield dense(call, names, like=names[0])

    @classmethod
    def example(cls) -> PrologueCall:
        _, earlier, channels = cls.valid.v_cache.shape
        return cls.valid.with_tensor("v_cache", strides=((earlier + 1) * channels, channels, 1))


@dataclass(frozen=True)
class PoolStridesDiffer(Launched):
    """One slot stride serves both pools."""

    message = "kv buf stride mismatch"
    sites = at(verify=412, decode=823, extend=1320)
    reason = "a slot of k_buf is {k} elements from the next, one of v_buf {v}"
    looks_at = ("k_buf.strides", "v_buf.strides", "dkv")
    requires = "k_buf and v_buf with one slot stride"
    category = "layout"
    premises = POOLS
    k: int = aside()
    v: int = aside()

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        k, v = slot_stride(call, "k_buf"), slot_stride(call, "v_buf")
        if k != v:
            yield cls(k, v)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        yield dense(call, ("k_buf", "v_buf"), like="k_buf")

    @classmethod
    def example(cls) -> PrologueCall:
        heads = cls.valid.v_buf.shape[1]
        return cls.valid.with_tensor("v_buf", strides=(2 * heads * HEAD, HEAD, 1))


def slot_stride(call: PrologueCall, name: str) -> int:
    """Elements between two slots of a pool, as upstream views it."""
    rows = pool_rows(getattr(call, name), width(call.dkv) // HEAD * HEAD)
    return rows.strides[0] if rows is not None else 0


def dense(call: PrologueCall, names: tuple[str, ...], like: str = "") -> Fix[PrologueCall]:
    """The tensors in memory of their own; `like`: all in the shape of this one."""
    shape = getattr(call, like).shape if like else None
    changed = call
    for name in names:
        tensor: TensorSpec = getattr(call, name)
        laid = tensor.contiguous() if shape is None else tensor.with_shape(*shape)
        changed = changed.replace(**{name: laid})
    note = "what is written must be the buffer itself, not a copy of it"
    return Fix(f"Allocate {' and '.join(names)} dense", changed, safe=True, note=note)
