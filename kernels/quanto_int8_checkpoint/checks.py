"""What upstream's inspection of a Quanto int8 file refuses, in its order: first in the file as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, Self

from kernels.checking import Check, Each, Fix, Given, aside
from kernels.checkpoint import Checkpoint
from kernels.quanto_int8_checkpoint.beyond import ON_LAYERS, ON_THE_MAP
from kernels.quanto_int8_checkpoint.beyond_values import ON_VALUES
from kernels.quanto_int8_checkpoint.layers import LAYER_CHECKS
from kernels.quanto_int8_checkpoint.quantization_map import (
    FORMAT,
    FORMAT_KEY,
    MAP_KEY,
    QINT8,
    entry,
    recovered,
)
from kernels.quanto_int8_checkpoint.repairs import one_sided, renaming
from kernels.quanto_int8_checkpoint.signature import (
    ACTIVATION_DTYPES,
    FUNCTION,
    MODULE,
    PREFIX,
    SOURCE,
    VALID,
    QuantoCall,
    at,
    fill,
    fit,
)
from kernels.quanto_int8_checkpoint.wording import SHARDED, SHOWN, why_differ, why_not_quanto
from kernels.registry import Operation
from kernels.wording import Listing, count, json_kind, short

OWN_MAP = "the map that the export wrote to a JSON file, where it is at hand, is the better source"


class FileCheck(Check[QuantoCall]):
    """A check of the file's metadata as a whole."""

    raises = ValueError
    looks_at: ClassVar[tuple[str, ...]] = ("checkpoint.metadata",)
    category = "format"

    def describe_actual(self, call: QuantoCall, /) -> str:
        metadata = call.checkpoint.metadata
        shown = (
            f"{key} = {short(metadata[key]) if key in metadata else 'absent'}"
            for key in (FORMAT_KEY, MAP_KEY)
        )
        return ", ".join(shown)


@dataclass(frozen=True)
class ConfigFromDictionary(FileCheck):
    """A config.json cannot say which layers are int8; only the weight file itself can."""

    message = "QuantoInt8Config must be constructed from safetensors metadata"
    sites = at(63, "QuantoInt8Config.from_config")
    reason = "the configuration was asked for from a config.json, which never lists the int8 layers"
    requires = "the configuration made by inspecting the safetensors file"
    unreachable = "another entry point raises it: an inspection never calls QuantoInt8Config.from_config"

    @classmethod
    def find(cls, call: QuantoCall, /) -> Iterator[Self]:
        return iter(())


@dataclass(frozen=True)
class NotQuanto(FileCheck):
    """Upstream takes any other file as unquantized and says nothing; its packed tensors then fail to load."""

    message = "not a Quanto checkpoint: quantization_format is {declared!r}"
    reason = "{why}"
    requires = "metadata quantization_format = quanto, to the letter"
    declared: str | None
    why: str = aside()

    @classmethod
    def find(cls, call: QuantoCall, /) -> Iterator[Self]:
        if not call.is_quanto:
            declared = call.checkpoint.metadata.get(FORMAT_KEY)
            yield cls(declared, " ".join(why_not_quanto(call, declared)))

    def fixes(self, call: QuantoCall, /) -> Iterator[Fix[QuantoCall]]:
        if not call.packed:
            return
        declared = call.with_checkpoint(call.checkpoint.with_metadata(FORMAT_KEY, FORMAT))
        if call.encoded_map is not None:
            yield Fix(f"Set {FORMAT_KEY} to {FORMAT}", declared, safe=call.all_qint8)
        else:
            yield Fix(
                f"Set {FORMAT_KEY} to {FORMAT} and embed a map of every packed layer",
                declared.with_map(_listed(call)),
                safe=call.all_qint8,
                note=OWN_MAP,
            )

    @classmethod
    def example(cls) -> QuantoCall:
        return VALID.with_checkpoint(VALID.checkpoint.without_metadata(FORMAT_KEY, MAP_KEY))


@dataclass(frozen=True)
class MapMissing(FileCheck):
    """Which layers are int8 stands in the map alone; without it no tensor is trusted to be quantized."""

    message = "Quanto checkpoint is missing quantization_map_base64"
    sites = at(95)
    reason = "the metadata declares a Quanto file but has no key quantization_map_base64"
    requires = "metadata quantization_map_base64"
    premises = (NotQuanto,)

    @classmethod
    def find(cls, call: QuantoCall, /) -> Iterator[Self]:
        if call.encoded_map is None:
            yield cls()

    def fixes(self, call: QuantoCall, /) -> Iterator[Fix[QuantoCall]]:
        yield from _from_tensors(call)

    @classmethod
    def example(cls) -> QuantoCall:
        return VALID.with_checkpoint(VALID.checkpoint.without_metadata(MAP_KEY))


@dataclass(frozen=True)
class MapInvalid(FileCheck):
    """Metadata values are text without structure, so the map travels as JSON in base64, decoded strictly."""

    message = "Invalid Quanto quantization_map_base64"
    sites = at(101)
    reason = "quantization_map_base64 {fault}"
    requires = (
        "one line of standard base64 (A-Z a-z 0-9 + /, padded with =) of UTF-8 JSON without a byte order mark"
    )
    premises = (NotQuanto, MapMissing)
    fault: str = aside()

    @classmethod
    def find(cls, call: QuantoCall, /) -> Iterator[Self]:
        if call.map_fault:
            yield cls(call.map_fault)

    def fixes(self, call: QuantoCall, /) -> Iterator[Fix[QuantoCall]]:
        text = recovered(call.encoded_map or "")
        if text is not None:
            yield Fix("Encode the same map again, strictly", call.with_map(text), safe=True)
        yield from _from_tensors(call)

    @classmethod
    def example(cls) -> QuantoCall:
        encoded = VALID.checkpoint.metadata[MAP_KEY]
        wrapped = f"{encoded[:76]}\n{encoded[76:]}\n"
        return VALID.with_checkpoint(VALID.checkpoint.with_metadata(MAP_KEY, wrapped))


@dataclass(frozen=True)
class MapNotObject(FileCheck):
    """The map goes from layer prefix to that layer's types; a list or nothing at all names no layer."""

    message = "Quanto quantization map must be a non-empty object"
    sites = at(103)
    reason = "the map is {found}; it must be an object with at least one layer"
    requires = "a JSON object with one member for each layer"
    premises = (NotQuanto, MapMissing, MapInvalid)
    found: str = aside()

    @classmethod
    def find(cls, call: QuantoCall, /) -> Iterator[Self]:
        if call.map == {}:
            yield cls("an empty object")
        elif not isinstance(call.map, dict):
            yield cls(json_kind(call.map))

    def fixes(self, call: QuantoCall, /) -> Iterator[Fix[QuantoCall]]:
        text = recovered(call.map) if isinstance(call.map, str) else None
        if text is not None and json.loads(text):
            yield Fix("Encode the map once, not twice", call.with_map(text), safe=True)
        yield from _from_tensors(call)

    @classmethod
    def example(cls) -> QuantoCall:
        return VALID.with_map([PREFIX])


@dataclass(frozen=True)
class MapEntryNotObject(FileCheck):
    """Each layer states two types, of its weights and of its activations; one word cannot."""

    message = "Quanto quantization map entries must be named objects"
    sites = at(108)
    reason = "the entry of {prefix!r} is {found}; it must be an object with weights and activations"
    requires = "an object for each layer, such as weights: qint8, activations: none"
    premises = (NotQuanto, MapMissing, MapInvalid, MapNotObject)
    prefix: str = aside()
    found: str = aside()

    @classmethod
    def find(cls, call: QuantoCall, /) -> Iterator[Self]:
        for prefix, declared in call.map.items():
            if not isinstance(declared, dict):
                yield cls(prefix, json_kind(declared))

    def fixes(self, call: QuantoCall, /) -> Iterator[Fix[QuantoCall]]:
        if self.prefix != next(type(self).find(call)).prefix:
            return  # the first violation's fix repairs them all
        packed = set(call.packed)
        wrong = {prefix: declared for prefix, declared in call.map.items() if not isinstance(declared, dict)}
        layers = [prefix for prefix in wrong if prefix in packed]
        strays = [prefix for prefix in wrong if prefix not in packed]
        kept = {
            prefix: entry() if prefix in wrong else declared
            for prefix, declared in call.map.items()
            if prefix not in wrong or prefix in packed
        }
        if kept:
            steps = [f"Write {count(layers, 'entry', 'entries')} as an object"] if layers else []
            steps += [f"Drop {count(strays, 'entry', 'entries')} without a layer"] if strays else []
            yield Fix(
                "; ".join(steps),
                call.with_map(kept),
                safe=all(wrong[prefix] == QINT8 for prefix in layers),
                note="the entries are taken to mean qint8 weights and no activation quantization",
            )

    @classmethod
    def example(cls) -> QuantoCall:
        return VALID.with_map({PREFIX: QINT8})


@dataclass(frozen=True)
class PrefixesDiffer(FileCheck):
    """A layer that only one side names would be loaded as if it were not quantized, or not at all."""

    message = (
        "Quanto tensor/map prefixes do not match: missing metadata={sorted(missing_map)[:5]}, "
        "missing tensors={sorted(missing_data)[:5]}"
    )
    sites = at(121)
    reason = (
        "packed layers that the map lacks: {untold}; layers of the map that are not packed: {absent}{hint}"
    )
    looks_at = ("checkpoint.metadata", "checkpoint.tensors")
    requires = "the same prefixes in the map as before .weight._data in the file"
    premises = (NotQuanto, MapMissing, MapInvalid)
    missing_map: Listing
    missing_data: Listing
    untold: int = aside()
    absent: int = aside()
    hint: str = aside()

    @classmethod
    def evaluable(cls, call: QuantoCall, /) -> bool:
        return isinstance(call.map, dict)

    @classmethod
    def find(cls, call: QuantoCall, /) -> Iterator[Self]:
        untold, absent = one_sided(call)
        if untold or absent:
            shown = Listing(untold[:SHOWN]), Listing(absent[:SHOWN])
            yield cls(*shown, len(untold), len(absent), why_differ(untold, absent))

    def describe_actual(self, call: QuantoCall, /) -> str:
        untold, absent = (Listing(names[:SHOWN]) for names in one_sided(call))
        return f"only in the file: {untold}, only in the map: {absent}"

    def fixes(self, call: QuantoCall, /) -> Iterator[Fix[QuantoCall]]:
        packed = set(call.packed)
        untold, absent = one_sided(call)
        renamed = renaming(untold, absent)
        if renamed:
            old, new = next(iter(renamed.items()))
            yield Fix(
                f"Name the map's layers as the tensors are named: {old!r} is {new!r}",
                call.with_map({renamed.get(prefix, prefix): item for prefix, item in call.map.items()}),
                safe=True,
            )
        kept = {prefix: item for prefix, item in call.map.items() if prefix in packed}
        kept |= {prefix: entry() for prefix in untold}
        if kept:
            yield Fix(
                "; ".join(
                    [f"Add {count(untold, 'layer')} to the map"] * bool(untold)
                    + [f"Remove from the map {count(absent, 'layer')} without tensors"] * bool(absent)
                ),
                call.with_map(kept),
                safe=not absent and all(call.layer(prefix).is_qint8 for prefix in untold),
                note=SHARDED if absent else OWN_MAP,
            )

    @classmethod
    def example(cls) -> QuantoCall:
        other = PREFIX.replace("up_proj", "down_proj")
        return VALID.with_map({PREFIX: entry(), other: entry()})


@dataclass(frozen=True)
class ActivationDoesNotFit(Check[QuantoCall]):
    """The linear multiplies x by a layer's weight, converted to x's own type; torch raises otherwise."""

    raises = ValueError
    message = "no layer of the checkpoint takes the activation {x}"
    reason = "x is {x}; the layers take bfloat16, float16 or float32 with a last size of {widths}"
    looks_at = ("x",)
    requires = "x floating point, its last size one layer's number of columns"
    category = "shape"
    x: str
    widths: str = aside()

    @classmethod
    def evaluable(cls, call: QuantoCall, /) -> bool:
        return call.x is None or (call.is_quanto and any(layer.matrix for layer in call.layers))

    @classmethod
    def find(cls, call: QuantoCall, /) -> Iterator[Self]:
        if call.x is not None and (call.operand is None or call.x.dtype not in ACTIVATION_DTYPES):
            widths = dict.fromkeys(layer.columns for layer in call.layers if layer.columns is not None)
            yield cls(str(call.x), " or ".join(map(str, list(widths)[:SHOWN])))

    def fixes(self, call: QuantoCall, /) -> Iterator[Fix[QuantoCall]]:
        assert call.x is not None
        fitting, titles = call, []
        if call.x.dtype not in ACTIVATION_DTYPES:
            fitting, titles = fitting.with_dtype("x", ACTIVATION_DTYPES[0]), ["Convert x to bfloat16"]
        if call.operand is None:
            width = next(layer.columns for layer in call.layers if layer.columns is not None)
            shape = (*call.x.shape[:-1], width)
            fitting = fitting.with_tensor("x", shape=shape)
            titles.append(f"Give x the shape {list(shape)}")
        yield Fix("; ".join(titles), fitting, safe=False, note="x holds other numbers then")

    @classmethod
    def example(cls) -> QuantoCall:
        return VALID.with_tensor("x", shape=(1, 3))


def _listed(call: QuantoCall) -> dict[str, Any]:
    return {prefix: entry() for prefix in call.packed}


def _from_tensors(call: QuantoCall) -> Iterator[Fix[QuantoCall]]:
    """A map made from the tensors: each packed layer qint8, no activation quantization."""
    if call.packed:
        yield Fix(
            f"Embed a map that lists {count(call.packed, 'packed layer')} as qint8",
            call.with_map(_listed(call)),
            safe=call.all_qint8,
            note=OWN_MAP,
        )


def _claims(checkpoint: Checkpoint) -> bool:
    """Whether the file declares itself a Quanto checkpoint, or has tensors that only such a file has."""
    call = QuantoCall(checkpoint)
    return call.is_quanto or bool(call.packed)


READABLE = (NotQuanto, MapMissing, MapInvalid, MapNotObject)

STAGES = (
    ConfigFromDictionary,
    NotQuanto,
    MapMissing,
    MapInvalid,
    MapNotObject,
    MapEntryNotObject,
    PrefixesDiffer,
    Each(attrgetter("layers"), LAYER_CHECKS, premises=READABLE),
    Given(READABLE, ON_THE_MAP),
    Each(attrgetter("layers"), (*ON_LAYERS, *ON_VALUES), premises=READABLE),
    ActivationDoesNotFit,
)

OPERATIONS = (
    Operation(
        name="quanto_int8_checkpoint",
        title="Quanto int8 checkpoint",
        summary="Inspect a safetensors file of Quanto qint8 layers by its header; run one of its layers",
        call=QuantoCall,
        stages=STAGES,
        valid=VALID,
        fit=fit,
        fill=fill,
        outputs=(),
        source=SOURCE,
        module=MODULE,
        function=FUNCTION,
        claims=_claims,
    ),
)
