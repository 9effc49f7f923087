"""What upstream's inspection refuses of the tensors that hold a layer's weight, in its order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernels.checking import aside
from kernels.checkpoint import Header, encodable
from kernels.quanto_int8_checkpoint.layer_check import LayerCheck
from kernels.quanto_int8_checkpoint.repairs import Change, matrix_shape
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
)
from kernels.values import Ones
from kernels.wording import Listing


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


WEIGHT_CHECKS = (TensorsMissing, DenseWeightToo, WeightNotInt8Matrix)
