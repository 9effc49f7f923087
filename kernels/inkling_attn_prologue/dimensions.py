"""Tensors with too few dimensions: the compiled launchers ask for a size or stride they do not have.

A condition on two tensors is `&&`: where it fails for the first, the second is never asked, and its
dimensions come after the condition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from kernels.checking import Fix, aside
from kernels.inkling_attn_prologue.derived import owners, taps, tokens, tracks, updates, width
from kernels.inkling_attn_prologue.python_errors import PythonError, QkvrHasNoRows
from kernels.inkling_attn_prologue.signature import ExtendCall, PrologueCall, VerifyCall
from kernels.spec import Shape, TensorSpec


@dataclass(frozen=True)
class TooFewDimensions(PythonError):
    """Sizes and strides are asked for by number, each checked on its own, where it is first needed."""

    raises = IndexError
    message = "Index {index} out of bounds for tensor with {ndim} dimensions"
    reason = "{argument} has {ndim} dimensions; it must be {wanted}"
    category = "shape"
    index: int
    ndim: int
    argument: str = aside()
    wanted: str = aside()

    asks: ClassVar[tuple[tuple[str, int, str], ...]]
    """Argument, dimension asked for, what the argument must be."""

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        for name, index, wanted in cls.asks:
            tensor = getattr(call, name, None)
            if tensor is not None and tensor.ndim <= index:
                yield cls(index, tensor.ndim, name, wanted)

    def fixes(self, call: PrologueCall, /) -> Iterator[Fix[PrologueCall]]:
        shapes = {name: shape_of(call, name) for name, index, _ in self.asks if _short(call, name, index)}
        changed = call
        for name, shape in shapes.items():
            changed = changed.with_tensor(name, shape=shape)
        said = " and ".join(f"{name} as {list(shape)}" for name, shape in shapes.items())
        yield Fix(f"Pass {said}", changed, safe=False)

    @classmethod
    def example(cls) -> PrologueCall:
        name, index, _ = cls.asks[0]
        tensor: TensorSpec = getattr(cls.valid, name)
        return cls.valid.with_tensor(name, shape=tensor.shape[:index])


def _short(call: PrologueCall, name: str, index: int) -> bool:
    tensor = getattr(call, name, None)
    return tensor is not None and tensor.ndim <= index


def shape_of(call: PrologueCall, name: str) -> Shape:
    """The shape that an argument has in this call, from the others."""
    count, earlier = owners(call), max(taps(call) - 1, 0)
    channels = max(width(call.dkv), 0)
    drafted = max(width(call.draft_token_num), 0) if isinstance(call, VerifyCall) else 0
    if name == "qkvr":
        return (max(tokens(call), 1), max(width(call.v_off) + channels, 1))
    if name in ("k_cache", "v_cache"):
        other = call.v_cache if name == "k_cache" else call.k_cache
        return (other.shape[0] if other.ndim else max(count, 1), earlier, channels)
    if name in ("k_inter", "v_inter") and isinstance(call, VerifyCall):
        return (count, drafted, earlier, channels)
    if name == "v_weight":
        return (channels, taps(call))
    if name == "cache_indices" and isinstance(call, VerifyCall):
        return (tokens(call) // max(drafted, 1),)
    if name == "cache_indices" and isinstance(call, ExtendCall):
        return (max(call.cu.numel - 1, 0),)
    return {"si": (tokens(call),), "cu": (count + 1,)}.get(name, (count,))


STATE = "[N, W - 1, dkv]"
WINDOW = "[B, n, W - 1, dkv]"


@dataclass(frozen=True)
class IndicesDimensions(TooFewDimensions):
    """One state slot a sequence: their number is that of the sequences."""

    looks_at = ("cache_indices.shape",)
    requires = "cache_indices of 1 dimension"
    asks = (("cache_indices", 0, "[B]"),)


@dataclass(frozen=True)
class QkvrDimensions(TooFewDimensions):
    """Rows of the projection, one a token."""

    looks_at = ("qkvr.shape",)
    requires = "qkvr of 2 dimensions"
    premises = (QkvrHasNoRows,)
    asks = (("qkvr", 1, "[T, width]"),)


@dataclass(frozen=True)
class StateDimensions(TooFewDimensions):
    """A state slot holds the last W - 1 rows of k."""

    looks_at = ("k_cache.shape",)
    requires = "k_cache of 3 dimensions"
    asks = (("k_cache", 2, STATE),)


@dataclass(frozen=True)
class VStateDimensions(TooFewDimensions):
    """A state slot holds the last W - 1 rows of v too."""

    looks_at = ("v_cache.shape",)
    requires = "v_cache of 3 dimensions"
    asks = (("v_cache", 2, STATE),)


@dataclass(frozen=True)
class WindowDimensions(TooFewDimensions):
    """A window holds the state after each drafted token."""

    looks_at = ("k_inter.shape",)
    requires = "k_inter of 4 dimensions"
    asks = (("k_inter", 3, WINDOW),)


@dataclass(frozen=True)
class VWindowDimensions(TooFewDimensions):
    """A window of v is as one of k."""

    looks_at = ("v_inter.shape",)
    requires = "v_inter of 4 dimensions"
    asks = (("v_inter", 3, WINDOW),)


@dataclass(frozen=True)
class WeightDimensions(TooFewDimensions):
    """Taps of each channel."""

    looks_at = ("v_weight.shape",)
    requires = "v_weight of 2 dimensions"
    asks = (("v_weight", 0, "[dkv, W]"),)


@dataclass(frozen=True)
class OwnersDimensions(TooFewDimensions):
    """The sequence of each token."""

    looks_at = ("si.shape",)
    requires = "si of 1 dimension"
    asks = (("si", 0, "[T]"),)


@dataclass(frozen=True)
class StartsDimensions(TooFewDimensions):
    """The first token of each sequence."""

    looks_at = ("cu.shape",)
    requires = "cu of 1 dimension"
    asks = (("cu", 0, "[B + 1]"),)


@dataclass(frozen=True)
class MasksDimensions(TooFewDimensions):
    """One mask of the convolution a sequence."""

    looks_at = ("cache_mask.shape",)
    requires = "cache_mask of 1 dimension"
    asks = (("cache_mask", 0, "[B]"),)


@dataclass(frozen=True)
class InitialMasksDimensions(TooFewDimensions):
    """One mask of the state a sequence."""

    looks_at = ("has_initial_state.shape",)
    requires = "has_initial_state of 1 dimension"
    asks = (("has_initial_state", 0, "[B]"),)


@dataclass(frozen=True)
class TrackDimensions(TooFewDimensions):
    """Track slots may lie apart, so their stride is asked for; in extend behind the first kernel."""

    at_launch = True
    looks_at = ("track_indices.shape", "track_dst.shape")
    requires = "track_indices or track_dst of 1 dimension"
    asks = (("track_indices", 0, "[T]"), ("track_dst", 0, "[B]"))

    @classmethod
    def find(cls, call: PrologueCall, /) -> Iterator[Self]:
        if tracks(call) and (not isinstance(call, ExtendCall) or updates(call)):
            yield from super().find(call)

    @classmethod
    def example(cls) -> PrologueCall:
        if isinstance(cls.valid, ExtendCall):
            return cls.valid.with_tensor("track_dst", shape=())
        slots = TensorSpec((), cls.valid.loc.dtype)
        mask = TensorSpec((tokens(cls.valid),), cls.valid.cache_mask.dtype)
        return cls.valid.replace(track_mask=mask, track_indices=slots)


STATE_DIMENSIONS = (StateDimensions, VStateDimensions)
WINDOW_DIMENSIONS = (WindowDimensions, VWindowDimensions)
