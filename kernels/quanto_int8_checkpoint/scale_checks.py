"""What upstream's inspection refuses of a layer's scales, in its order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from kernels.checking import aside
from kernels.checkpoint import Header
from kernels.quanto_int8_checkpoint.layer_check import LayerCheck
from kernels.quanto_int8_checkpoint.repairs import Change, scalars, scale_faults
from kernels.quanto_int8_checkpoint.signature import (
    DATA,
    INPUT,
    OUTPUT,
    PREFIX,
    SCALE,
    SCALE_DTYPES,
    VALID,
    Layer,
    QuantoCall,
    at,
    is_float_scalar,
)


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


SCALE_CHECKS = (ScaleIncompatible, AuxScaleNotScalar)
