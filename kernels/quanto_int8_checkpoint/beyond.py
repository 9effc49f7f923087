"""What upstream's inspection takes and the load or the model then trips over: checks of our own on a file's
map, names and shapes. Those on what its scales hold are in beyond_values.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernels.checking import Check, Fix, Severity, aside
from kernels.checkpoint import Header, NameMapper
from kernels.quanto_int8_checkpoint.layer_check import LayerCheck
from kernels.quanto_int8_checkpoint.quantization_map import NO_ACTIVATIONS, QINT8, Repeated, repeated
from kernels.quanto_int8_checkpoint.repairs import Change
from kernels.quanto_int8_checkpoint.signature import (
    BIAS,
    DATA,
    PREFIX,
    REQUIRED,
    SCALE,
    VALID,
    Layer,
    QuantoCall,
    quanto,
)
from kernels.wording import Listing

SHOWN = 5


@dataclass(frozen=True)
class MapKeysRepeated(Check[QuantoCall]):
    """JSON readers keep the last of two members with one name; what the first said is lost silently."""

    raises = ValueError
    message = "Quanto quantization map repeats keys: {keys}"
    reason = "{where}: JSON as Python reads it keeps the last, and nobody is told of the other"
    looks_at = ("checkpoint.metadata",)
    requires = "every name once in the map, and once in each of its entries"
    category = "format"
    severity = Severity.WARNING
    keys: Listing
    where: str = aside()

    @classmethod
    def evaluable(cls, call: QuantoCall, /) -> bool:
        return isinstance(call.map, dict)

    @classmethod
    def find(cls, call: QuantoCall, /) -> Iterator[Self]:
        found = repeated(call.encoded_map or "")
        if found:
            keys = Listing(dict.fromkeys(member.key for member in found[:SHOWN]))
            yield cls(keys, ", ".join(_place(member) for member in found[:SHOWN]))

    def describe_actual(self, call: QuantoCall, /) -> str:
        return self.where

    def fixes(self, call: QuantoCall, /) -> Iterator[Fix[QuantoCall]]:
        note = "what is read today stays: compare it with the members that go"
        yield Fix("Keep the last of each key", call.with_map(call.map), safe=True, note=note)

    @classmethod
    def example(cls) -> QuantoCall:
        entry = f'{{"weights": "{QINT8}", "activations": "{NO_ACTIVATIONS}"}}'
        first = entry.replace(QINT8, "qint4")
        return VALID.with_map(f'{{"{PREFIX}": {first}, "{PREFIX}": {entry}}}')


def _place(member: Repeated) -> str:
    inside = "" if member.prefix is None else f" in the entry of {member.prefix!r}"
    return f"{member.key!r} stands {member.times} times{inside}"


class Hazard(LayerCheck):
    """A layer that upstream's inspection takes without a word."""


@dataclass(frozen=True)
class WeightEmpty(Hazard):
    """A matrix without rows or columns holds no weight: a slice or a shard came out empty."""

    message = "Quanto layer {prefix!r} has an empty weight {shape}"
    reason = "the packed weight of {prefix!r} has the shape {shape}: no model has a linear layer of that size"
    requires = "weight._data [N, K] with N and K of at least 1"
    category = "shape"
    shows = (DATA, SCALE)
    prefix: str
    shape: tuple[int, ...]

    @classmethod
    def evaluable(cls, layer: Layer, /) -> bool:
        return layer.matrix is not None

    @classmethod
    def find(cls, layer: Layer, /) -> Iterator[Self]:
        if layer.matrix is not None and not layer.matrix.numel:
            yield cls(layer.prefix, layer.matrix.shape)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        held = {layer.name(suffix): None for suffix in (*REQUIRED, BIAS)}
        note = "the layer itself must come from the export"
        yield Change(f"Remove the empty layer {layer.prefix!r}", False, note, held, {layer.prefix: None})

    @classmethod
    def example(cls) -> QuantoCall:
        other = PREFIX.replace("up_proj", "down_proj")
        file = quanto([PREFIX, other], 3, 2)
        return VALID.with_checkpoint(file.with_tensor(f"{other}.{DATA}", Header("I8", (3, 0))))


@dataclass(frozen=True)
class TensorsIgnored(Hazard):
    """Shifts, zero points and a second scale belong to other schemes; without them the codes mean nothing."""

    message = "Quanto layer {prefix!r} has tensors that are ignored: {names}"
    reason = (
        "a qint8 layer is codes times one scale a row, and nothing else of {prefix!r} is used: if these "
        "tensors are zero points, shifts or second scales, it was quantized by another scheme"
    )
    requires = "no tensors beside weight._data, weight._scale, input_scale, output_scale and bias"
    category = "presence"
    severity = Severity.WARNING
    prefix: str
    names: Listing

    @classmethod
    def find(cls, layer: Layer, /) -> Iterator[Self]:
        names = layer.ignored
        if names:
            yield cls(layer.prefix, Listing(names[:SHOWN]))

    def describe_actual(self, layer: Layer, /) -> str:
        tensors = layer.call.checkpoint.tensors
        return ", ".join(f"{name!r} {tensors[name]}" for name in self.names)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        names = layer.ignored
        what = repr(names[0]) if len(names) == 1 else f"{len(names)} tensors of {layer.prefix!r}"
        note = "right where they are left over from training; else export again with qint8"
        yield Change(f"Remove {what}", False, note, dict.fromkeys(names))

    @classmethod
    def example(cls) -> QuantoCall:
        shift = VALID.checkpoint.with_tensor(f"{PREFIX}.weight._shift", Header("I8", (3, 1)))
        return VALID.with_checkpoint(shift)


@dataclass(frozen=True)
class PrefixEmpty(Hazard):
    """A layer without a name is what a prefix that was cut off everywhere leaves; no model has such a one."""

    message = "Quanto layer has an empty prefix, mapped to {mapped!r}"
    reason = "the map has a layer '', so tensors are called '.weight._data'; in the model it is {mapped!r}"
    looks_at = ("checkpoint.metadata", "checkpoint.tensors", "name_mapper")
    requires = "a name in front of .weight._data"
    category = "format"
    severity = Severity.WARNING
    mapped: str

    @classmethod
    def find(cls, layer: Layer, /) -> Iterator[Self]:
        if not layer.prefix:
            yield cls(layer.mapped)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        """Give it in the file the name that it has in the model, where a mapper tells one."""
        call, name = layer.call, layer.mapped
        tensors = call.checkpoint.tensors
        own = {old: header for old, header in tensors.items() if old.startswith(".")}
        renamed = {f"{name}{old}": header for old, header in own.items()}
        free = name not in call.map and not renamed.keys() & tensors.keys()
        if name and free and call.mapped(name) == name:
            changes: dict[str, Header | None] = {**dict.fromkeys(own), **renamed}
            entries = {layer.prefix: None, name: layer.declared}
            yield Change(f"Call the layer {name!r} in the file too", True, "", changes, entries)

    @classmethod
    def example(cls) -> QuantoCall:
        mapper = NameMapper({"": f"model.{PREFIX}"})
        return VALID.replace(checkpoint=quanto([""], 3, 2), name_mapper=mapper)


@dataclass(frozen=True)
class BiasShape(Hazard):
    """The model's bias has one number for each output row; another length fails when it is copied in."""

    message = "Quanto layer {prefix!r} has a bias {shape} for {rows} rows"
    reason = "the bias of {prefix!r} has the shape {shape}, and its weight {rows} rows: the load fails there"
    requires = "bias of shape [N], N the rows of weight._data"
    category = "shape"
    shows = (DATA, BIAS)
    prefix: str
    shape: tuple[int, ...]
    rows: int

    @classmethod
    def evaluable(cls, layer: Layer, /) -> bool:
        return layer.tensor(BIAS) is None or layer.rows is not None

    @classmethod
    def find(cls, layer: Layer, /) -> Iterator[Self]:
        bias, rows = layer.tensor(BIAS), layer.rows
        if bias is not None and rows is not None and bias.shape != (rows,):
            yield cls(layer.prefix, bias.shape, rows)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        name, bias, rows = layer.name(BIAS), layer.tensor(BIAS), layer.rows
        if bias is None or rows is None:
            return
        if bias.numel == rows:
            reshaped = {name: bias.with_shape(rows)}
            yield Change(f"Reshape {name!r} from {list(bias.shape)} to {[rows]}", True, tensors=reshaped)
        else:
            note = "the layer then adds nothing: where the model has a bias, it must come from the export"
            yield Change(f"Remove {name!r}", False, note, {name: None})

    @classmethod
    def example(cls) -> QuantoCall:
        column = VALID.checkpoint.with_tensor(f"{PREFIX}.{BIAS}", Header("BF16", (3, 1)))
        return VALID.with_checkpoint(column)


ON_THE_MAP = (MapKeysRepeated,)
ON_LAYERS = (WeightEmpty, TensorsIgnored, PrefixEmpty, BiasShape)
