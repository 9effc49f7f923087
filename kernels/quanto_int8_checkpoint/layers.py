"""What upstream's inspection refuses in a layer, in its order; it finishes a layer before the next one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from kernels.checking import Category, Check, Fix, aside
from kernels.checkpoint import Header, NameMapper, encodable
from kernels.collisions import mapped_apart
from kernels.quanto_int8_checkpoint.quantization_map import NO_ACTIVATIONS, QINT8, entry
from kernels.quanto_int8_checkpoint.repairs import Change, applied, matrix_shape, scalars, scale_faults
from kernels.quanto_int8_checkpoint.signature import (
    CODE_DTYPE,
    DATA,
    DENSE,
    INPUT,
    OUTPUT,
    PREFIX,
    REQUIRED,
    SCALE,
    SCALE_DTYPES,
    VALID,
    Layer,
    QuantoCall,
    at,
    is_float_scalar,
    quanto,
)
from kernels.values import Ones
from kernels.wording import Listing


class LayerCheck(Check[Layer]):
    """A check of one layer; `repairs` are a layer's own, `fixes` repair every layer that needs it."""

    raises = ValueError
    looks_at: ClassVar[tuple[str, ...]] = ("checkpoint.tensors",)
    category: ClassVar[Category] = "format"
    shows: ClassVar[tuple[str, ...]] = REQUIRED
    """Tensors that the violation is about."""

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        """Changes after which the layer passes, the best first."""
        return iter(())

    def fixes(self, layer: Layer, /) -> Iterator[Fix[QuantoCall]]:
        broken = (other for other in layer.call.layers if type(self).evaluable(other))
        failing = (other for other in broken if any(type(self).find(other)))
        first = next(failing)
        if first.prefix != layer.prefix or next(type(self).find(first)) != self:
            return  # what the first violation offers repairs them all
        others = list(failing)
        best = [next(iter(self.repairs(other)), None) for other in others]
        for change in self.repairs(layer):
            changes = [change, *(other for other in best if other is not None)]
            if len(changes) == 1 + len(others) and (call := applied(layer.call, changes)) is not None:
                more = f", and so in {len(others)} more layer{'s' * (len(others) > 1)}" if others else ""
                notes = dict.fromkeys(change.note for change in changes if change.note)
                yield Fix(change.title + more, call, safe=all(c.safe for c in changes), note="; ".join(notes))

    def describe_actual(self, layer: Layer, /) -> str:
        return layer.describe(*self.shows)


class EntryCheck(LayerCheck):
    """A check of the layer's entry in the map."""

    looks_at = ("checkpoint.metadata",)

    @classmethod
    def evaluable(cls, layer: Layer, /) -> bool:
        return isinstance(layer.declared, dict)

    def describe_actual(self, layer: Layer, /) -> str:
        return f"the map's entry of {layer.prefix!r} is {layer.declared!r}"


@dataclass(frozen=True)
class WeightTypeUnsupported(EntryCheck):
    """The linear unpacks one code a byte with one scale a row; Quanto's other types are packed otherwise."""

    message = "Unsupported Quanto weight type for {prefix!r}: {quantization.get('weights')!r}"
    sites = at(130)
    reason = "weights of {prefix!r} is {weights!r} in the map; only the text 'qint8' is supported"
    requires = "weights: qint8 in the layer's entry"
    prefix: str
    weights: Any

    @classmethod
    def find(cls, layer: Layer, /) -> Iterator[Self]:
        weights = layer.declared.get("weights")
        if weights != QINT8:
            yield cls(layer.prefix, weights)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        told = layer.declared.get("weights")
        entries = {layer.prefix: {**layer.declared, "weights": QINT8}}
        if told is None and layer.is_qint8:
            yield Change(
                f"State the weights of {layer.prefix!r} as qint8, as its tensors are", True, entries=entries
            )
        else:
            note = (
                f"correct only where the tensors hold qint8 codes, not {told}; else quantize again with qint8"
            )
            yield Change(f"State the weights of {layer.prefix!r} as qint8", False, note, entries=entries)

    @classmethod
    def example(cls) -> QuantoCall:
        return VALID.with_map({PREFIX: entry(weights="qint4")})


@dataclass(frozen=True)
class ActivationsQuantized(EntryCheck):
    """The linear takes activations as they are; calibrated input and output scales have no place in it."""

    message = "Quanto activation quantization is not supported for {prefix!r}"
    sites = at(135)
    reason = (
        "activations of {prefix!r} is {activations!r} in the map; it must be there and be the text 'none'"
    )
    requires = "activations: none in the layer's entry, as text"
    prefix: str
    activations: Any = aside()

    @classmethod
    def find(cls, layer: Layer, /) -> Iterator[Self]:
        activations = layer.declared.get("activations")
        if activations != NO_ACTIVATIONS:
            yield cls(layer.prefix, activations)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        entries = {layer.prefix: {**layer.declared, "activations": NO_ACTIVATIONS}}
        if layer.declared.get("activations") is None:
            yield Change(f"Write activations of {layer.prefix!r} as the text none", True, entries=entries)
        else:
            note = "the layer then runs on unquantized activations, and its input and output scales must be 1"
            yield Change(
                f"Leave the activations of {layer.prefix!r} unquantized", False, note, entries=entries
            )

    @classmethod
    def example(cls) -> QuantoCall:
        return VALID.with_map({PREFIX: entry(activations=QINT8)})


@dataclass(frozen=True)
class TensorsMissing(LayerCheck):
    """Quanto writes four tensors a layer, the activation scales too when activations are not quantized."""

    message = "Quanto layer {prefix!r} is missing tensors: {sorted(missing)}"
    sites = at(147)
    reason = "{prefix!r} is in the map, but the file does not have {missing}{hint}"
    requires = "weight._data, weight._scale, input_scale and output_scale under the layer's prefix"
    prefix: str
    missing: Listing
    hint: str = aside()

    @classmethod
    def find(cls, layer: Layer, /) -> Iterator[Self]:
        missing = sorted(layer.name(suffix) for suffix in REQUIRED if layer.tensor(suffix) is None)
        if missing:
            apart = layer.name(DATA) in missing or layer.name(SCALE) in missing
            hint = "; one file is inspected: another shard may have the rest" if apart else ""
            yield cls(layer.prefix, Listing(missing), hint)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        present = [
            tensor for suffix in (SCALE, INPUT, OUTPUT) if (tensor := layer.tensor(suffix)) is not None
        ]
        dtype = next((tensor.dtype for tensor in present if tensor.dtype in SCALE_DTYPES), SCALE_DTYPES[0])
        added = {
            layer.name(suffix): Header(dtype, (), Ones())
            for suffix in (INPUT, OUTPUT)
            if layer.tensor(suffix) is None
        }
        names = " and ".join(repr(name) for name in added)
        if layer.tensor(DATA) is None or not encodable(layer.prefix):
            note = "the layer then counts as dense; where another shard has its tensors, merge the shards"
            yield Change(f"Remove {layer.prefix!r} from the map", False, note, entries={layer.prefix: None})
        elif layer.tensor(SCALE) is not None:
            yield Change(f"Add {names} of value 1", True, "1 is what a weight-only export writes", added)
        elif layer.rows is not None:
            added = {layer.name(SCALE): Header(dtype, (layer.rows, 1)), **added}
            note = "the scales themselves must come from the export: without them the codes mean nothing"
            yield Change(f"Add {layer.name(SCALE)!r} of shape {[layer.rows, 1]}", False, note, added)

    @classmethod
    def example(cls) -> QuantoCall:
        names = (f"{PREFIX}.{INPUT}", f"{PREFIX}.{OUTPUT}")
        return VALID.with_checkpoint(VALID.checkpoint.without_tensors(*names))


@dataclass(frozen=True)
class DenseWeightToo(LayerCheck):
    """At load the packed weight takes the name of the dense one, so a file may hold only one of them."""

    message = "Quanto layer {prefix!r} contains both packed and dense weights"
    sites = at(151)
    reason = "the file has both {packed!r} and {dense!r}"
    requires = "no tensor .weight beside .weight._data"
    shows = (DATA, DENSE)
    prefix: str
    packed: str = aside()
    dense: str = aside()

    @classmethod
    def find(cls, layer: Layer, /) -> Iterator[Self]:
        if layer.tensor(DENSE) is not None:
            yield cls(layer.prefix, layer.name(DATA), layer.name(DENSE))

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        dense = layer.name(DENSE)
        yield Change(f"Remove {dense!r}", True, "the packed weight stays the layer's", {dense: None})
        packed = {layer.name(suffix): None for suffix in REQUIRED}
        note = "the layer then runs unquantized"
        yield Change(f"Keep {dense!r}, remove the packed one", False, note, packed, {layer.prefix: None})

    @classmethod
    def example(cls) -> QuantoCall:
        dense = VALID.checkpoint.with_tensor(f"{PREFIX}.{DENSE}", Header("BF16", (3, 2)))
        return VALID.with_checkpoint(dense)


@dataclass(frozen=True)
class WeightNotInt8Matrix(LayerCheck):
    """The linear reads [N, K] signed bytes, a code each; other types hold other codes, or several a byte."""

    message = "Quanto layer {prefix!r} needs a 2D I8 weight, got {data_slice.get_dtype()} {data_shape}"
    sites = at(160)
    reason = "the packed weight of {prefix!r} is {dtype} of shape {shape}; it must be I8 with two dimensions"
    requires = "weight._data I8 of shape [N, K]"
    shows = (DATA, SCALE)
    prefix: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def evaluable(cls, layer: Layer, /) -> bool:
        return layer.tensor(DATA) is not None

    @classmethod
    def find(cls, layer: Layer, /) -> Iterator[Self]:
        data = layer.tensor(DATA)
        if data is not None and (data.dtype != CODE_DTYPE or len(data.shape) != 2):
            yield cls(layer.prefix, data.dtype, data.shape)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        name, data = layer.name(DATA), layer.tensor(DATA)
        shape = None if data is None else matrix_shape(data.shape, layer.tensor(SCALE))
        if data is None or shape is None:
            return
        tensors = {name: Header(CODE_DTYPE, shape, data.values)}
        if data.dtype != CODE_DTYPE:
            note = f"{data.dtype} elements are no qint8 codes as they stand: quantize the layer's own weight"
            yield Change(
                f"Quantize {layer.prefix!r} again with qint8: {data.dtype} to I8", False, note, tensors
            )
        elif len(data.shape) < 2 or all(size == 1 for size in data.shape[2:]):
            yield Change(f"Reshape {name!r} from {list(data.shape)} to {list(shape)}", True, tensors=tensors)
        else:
            note = "a convolution's weight has no int8 path: keep such a layer out of the quantization"
            yield Change(f"Flatten {name!r} to {list(shape)}", False, note, tensors)

    @classmethod
    def example(cls) -> QuantoCall:
        unsigned = VALID.checkpoint.with_tensor(f"{PREFIX}.{DATA}", Header("U8", (3, 2)))
        return VALID.with_checkpoint(unsigned)


@dataclass(frozen=True)
class ScaleIncompatible(LayerCheck):
    """One scale a row, as a column, so that it broadcasts over the row's codes: the only granularity."""

    message = "Quanto layer {prefix!r} has incompatible scale {scale_slice.get_dtype()} {scale_shape}"
    sites = at(168)
    reason = "the scale of {prefix!r} {why}"
    requires = "weight._scale BF16, F16 or F32 of shape [N, 1], N the rows of weight._data"
    shows = (DATA, SCALE)
    prefix: str
    dtype: str
    shape: tuple[int, ...]
    why: str = aside()

    @classmethod
    def evaluable(cls, layer: Layer, /) -> bool:
        """With N unknown, whatever is wrong for every N can still be told."""
        scale = layer.tensor(SCALE)
        return scale is not None and (layer.rows is not None or bool(scale_faults(scale, None)))

    @classmethod
    def find(cls, layer: Layer, /) -> Iterator[Self]:
        scale = layer.tensor(SCALE)
        if scale is not None and (faults := scale_faults(scale, layer.matrix)):
            yield cls(layer.prefix, scale.dtype, scale.shape, "; ".join(faults))

    def describe_expected(self, layer: Layer, /) -> str:
        return self.requires if layer.rows is None else f"BF16, F16 or F32 of shape {[layer.rows, 1]}"

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        name, scale, matrix = layer.name(SCALE), layer.tensor(SCALE), layer.matrix
        if scale is None or matrix is None:
            return
        rows = matrix.shape[0]
        if scale.numel != rows and scale.numel != 1:
            return  # one scale a group or a column has no equal of one scale a row
        titles, notes, safe = [], [], True
        if scale.dtype not in SCALE_DTYPES:
            titles.append(f"Convert {name!r} from {scale.dtype} to F32")
            safe = scale.dtype.startswith("F")
            notes.append(
                "float32 keeps 24 bits" if safe else f"what {scale.dtype} means as a scale is not known"
            )
        if scale.numel != rows:
            titles.append(f"Repeat the one scale {name!r} for each of {rows} rows")
        elif scale.shape != (rows, 1):
            titles.append(f"Reshape {name!r} from {list(scale.shape)} to {[rows, 1]}")
            if scale.shape == (1, matrix.shape[1]):
                safe = False
                notes.append("a square weight: make sure that the scales are of rows, not of columns")
        dtype = scale.dtype if scale.dtype in SCALE_DTYPES else "F32"
        tensors = {name: Header(dtype, (rows, 1), scale.values)}
        yield Change("; ".join(titles), safe, "; ".join(notes), tensors)

    @classmethod
    def example(cls) -> QuantoCall:
        flat = VALID.checkpoint.with_tensor(f"{PREFIX}.{SCALE}", Header("F32", (3,)))
        return VALID.with_checkpoint(flat)


@dataclass(frozen=True)
class AuxScaleNotScalar(LayerCheck):
    """A weight-only layer's input and output scales are the number 1; with dimensions they are not that."""

    message = "Quanto auxiliary scale {scale_name!r} must be a float scalar"
    sites = at(178)
    reason = "{name!r} is {found}; it must be BF16, F16 or F32 without dimensions, shape []"
    requires = "input_scale and output_scale BF16, F16 or F32 of shape []"
    shows = (INPUT, OUTPUT)
    name: str
    found: Header = aside()

    @classmethod
    def evaluable(cls, layer: Layer, /) -> bool:
        return any(layer.tensor(suffix) is not None for suffix in (INPUT, OUTPUT))

    @classmethod
    def find(cls, layer: Layer, /) -> Iterator[Self]:
        for suffix in (INPUT, OUTPUT):
            scale = layer.tensor(suffix)
            if scale is not None and not is_float_scalar(scale):
                yield cls(layer.name(suffix), scale)

    def describe_actual(self, layer: Layer, /) -> str:
        return f"{self.name!r} {self.found}"

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        wrong = {one.name: one.found for one in cls.find(layer)}
        yield scalars(layer, wrong)
        if len(wrong) > 1:
            yield from (scalars(layer, {name: header}) for name, header in wrong.items())

    @classmethod
    def example(cls) -> QuantoCall:
        file = VALID.checkpoint.with_tensor(f"{PREFIX}.{INPUT}", Header("BF16", (1,)))
        return VALID.with_checkpoint(file)


@dataclass(frozen=True)
class LayersCollide(LayerCheck):
    """Each layer needs a parameter of its own in the model; two under one name would overwrite each other."""

    message = "Quanto layers collide after parameter mapping at {mapped_prefix!r}"
    sites = at(186)
    reason = "{taken_by!r} and {prefix!r} are both mapped to {mapped!r}"
    looks_at = ("name_mapper", "checkpoint.metadata")
    requires = "a mapping that gives every layer another name"
    category = "values"
    mapped: str
    prefix: str = aside()
    taken_by: str = aside()

    @classmethod
    def find(cls, layer: Layer, /) -> Iterator[Self]:
        if layer.taken_by is not None:
            yield cls(layer.mapped, layer.prefix, layer.taken_by)

    def describe_actual(self, layer: Layer, /) -> str:
        return f"{self.taken_by!r} → {self.mapped!r}, {self.prefix!r} → {self.mapped!r}"

    def fixes(self, layer: Layer, /) -> Iterator[Fix[QuantoCall]]:
        yield from mapped_apart(layer, "merged")

    @classmethod
    def example(cls) -> QuantoCall:
        names = [PREFIX.replace("up_proj", part) for part in ("gate_proj", "up_proj")]
        merged = PREFIX.replace("up_proj", "gate_up_proj")
        return VALID.replace(
            checkpoint=quanto(names, 3, 2), name_mapper=NameMapper(dict.fromkeys(names, merged))
        )


LAYER_CHECKS = (
    WeightTypeUnsupported,
    ActivationsQuantized,
    TensorsMissing,
    DenseWeightToo,
    WeightNotInt8Matrix,
    ScaleIncompatible,
    AuxScaleNotScalar,
    LayersCollide,
)
