"""What upstream refuses where ranks share the columns of a layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from kernels.checking import Fix, aside
from kernels.comfy_checkpoint.build_checks import BuildCheck, backend_of, failing
from kernels.comfy_checkpoint.layers import ROTATIONS, Layer
from kernels.comfy_checkpoint.layouts import int8, w4a4, w4a8
from kernels.comfy_checkpoint.markers import INT8, W4A4, W4A8
from kernels.comfy_checkpoint.signature import ASYMMETRIC, ROTATED, ComfyCall, example
from kernels.comfy_checkpoint.sites import JIT_FILE, KITCHEN_FILE, W4A4_FILE, W4A8_FILE, at
from kernels.comfy_checkpoint.w4_checks import ROTATION, W4A4_GROUP


class ShardCheck(BuildCheck):
    """A check of the columns that one rank keeps of a layer whose input is shared out."""

    looks_at = ("tp_size", "checkpoint.metadata", "checkpoint.tensors")
    category = "divisibility"

    @classmethod
    def shard(cls, layer: Layer) -> int:
        """Columns of one rank."""
        ranks = layer.call.tp_size
        whole = isinstance(ranks, int) and not isinstance(ranks, bool) and ranks > 0
        return (layer.columns or 0) // ranks if whole else layer.columns or 0

    @classmethod
    def step(cls, layer: Layer) -> int | None:
        """What a shard's columns have to be a multiple of; None where the marker does not say."""
        return layer.whole("convrot_groupsize", ROTATION)

    @classmethod
    def evaluable(cls, layer: Layer, /) -> bool:
        return not cls.concerns(layer) or (layer.matrix is not None and bool(cls.step(layer)))

    @classmethod
    def faults(cls, layer: Layer, /) -> Iterator[Self]:
        shard, step = cls.shard(layer), cls.step(layer)
        if step and shard % step and layer.call.tp_size != 1:
            yield cls(shard, step, layer.prefix, layer.call.tp_size)  # type: ignore[call-arg]

    def describe_actual(self, layer: Layer, /) -> str:
        return f"tp_size = {layer.call.tp_size!r}, {layer.describe('weight')}"

    def fixes(self, layer: Layer, /) -> Iterator[Fix[ComfyCall]]:
        if not self.first(layer):
            return
        call = layer.call
        ranks = call.tp_size if isinstance(call.tp_size, int) else 1
        while ranks > 1 and failing(type(self), call.replace(tp_size=ranks)):
            ranks //= 2
        note = "or leave the layer unquantized with --quantization-ignored-layers"
        yield Fix(
            f"Share the columns between {ranks} rank{'s' * (ranks > 1)}",
            call.replace(tp_size=ranks),
            safe=True,
            note=note,
        )


class ConvRotShard(ShardCheck):
    """A check of a rotated INT8 layer's shard, in the library that serves it."""

    of = (INT8,)
    handlers = ("convrot_int8", "kitchen_w4a4")
    library: ClassVar[str]

    @classmethod
    def concerns(cls, layer: Layer, /) -> bool:
        if not super().concerns(layer) or layer.is_embedding:
            return False
        return layer.marker.get("convrot_groupsize") in ROTATIONS and backend_of(layer) == cls.library


SHARD_MESSAGE = (
    "convrot_int8 needs input_size_per_partition ({input_size_per_partition}) divisible by group_size "
    "{self.group_size}; leave the layer in BF16 with --quantization-ignored-layers"
)
SHARD_REASON = (
    "a rank of {ranks} keeps {columns} columns of {prefix!r}, no multiple of its rotation {rotation}"
)


@dataclass(frozen=True)
class Int8Shard(ConvRotShard):
    """A rank rotates the columns that it keeps: a rotation cannot be shared out."""

    message = SHARD_MESSAGE
    sites = at(112, "ConvRotInt8ComfyKitchenLinearMethod.create_weights", KITCHEN_FILE)
    reason = SHARD_REASON
    requires = "K / tp_size a multiple of convrot_groupsize"
    library = "comfy_kitchen"
    columns: int
    rotation: int
    prefix: str = aside()
    ranks: Any = aside()

    @classmethod
    def example(cls) -> ComfyCall:
        return example(ROTATED, int8(8, 256), tp_size=2)


@dataclass(frozen=True)
class JitShard(ConvRotShard):
    """A rank rotates the columns that it keeps: a rotation cannot be shared out."""

    message = SHARD_MESSAGE
    sites = at(195, "ConvRotInt8JitLinearMethod.create_weights", JIT_FILE)
    reason = SHARD_REASON
    requires = "K / tp_size a multiple of convrot_groupsize"
    library = "jit"
    columns: int
    rotation: int
    prefix: str = aside()
    ranks: Any = aside()

    @classmethod
    def example(cls) -> ComfyCall:
        return example(ROTATED, int8(8, 256), tp_size=2, capability=9.0)


@dataclass(frozen=True)
class W4a8Shard(ShardCheck):
    """A rank rotates the columns that it keeps: a rotation cannot be shared out."""

    message = (
        "W4A8 needs input_size_per_partition ({input_size_per_partition}) divisible by ConvRot group size "
        "{self.convrot_group_size}"
    )
    sites = at(66, "KitchenW4A8LinearMethod.create_weights", W4A8_FILE)
    reason = SHARD_REASON
    requires = "K / tp_size a multiple of convrot_groupsize"
    of = (W4A8,)
    handlers = ("kitchen_w4a8",)
    columns: int
    rotation: int
    prefix: str = aside()
    ranks: Any = aside()

    @classmethod
    def example(cls) -> ComfyCall:
        return example(ASYMMETRIC, w4a8(8, 256), tp_size=2)


@dataclass(frozen=True)
class W4a4Shard(ShardCheck):
    """A rank rotates the columns that it keeps: a rotation cannot be shared out."""

    message = (
        "W4A4 needs input_size_per_partition ({input_size_per_partition}) divisible by ConvRot group size "
        "{self.convrot_group_size}"
    )
    sites = at(44, "KitchenW4A4LinearMethod.create_weights", W4A4_FILE)
    reason = SHARD_REASON
    requires = "K / tp_size a multiple of convrot_groupsize"
    of = (W4A4,)
    handlers = ("kitchen_w4a4",)
    columns: int
    rotation: int
    prefix: str = aside()
    ranks: Any = aside()

    @classmethod
    def example(cls) -> ComfyCall:
        return example({"format": W4A4}, w4a4(8, 256), tp_size=2)


@dataclass(frozen=True)
class W4a4ShardGroups(ShardCheck):
    """Sums are taken over groups of 64 columns, which a rank has to have whole."""

    message = (
        "W4A4 needs input_size_per_partition ({input_size_per_partition}) divisible by quantization group "
        "size "
        "{_QUANT_GROUP_SIZE}"
    )
    sites = at(50, "KitchenW4A4LinearMethod.create_weights", W4A4_FILE)
    reason = "a rank of {ranks} keeps {columns} columns of {prefix!r}, no multiple of {group}"
    requires = "K / tp_size a multiple of 64"
    of = (W4A4,)
    handlers = ("kitchen_w4a4",)
    columns: int
    group: int
    prefix: str = aside()
    ranks: Any = aside()

    @classmethod
    def step(cls, layer: Layer) -> int | None:
        return W4A4_GROUP

    @classmethod
    def example(cls) -> ComfyCall:
        return example({"format": W4A4, "convrot_groupsize": 16}, w4a4(8, 64), tp_size=2)


SHARD_CHECKS = (Int8Shard, JitShard, W4a8Shard, W4a4Shard, W4a4ShardGroups)
