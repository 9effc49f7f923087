"""What upstream takes and then refuses or computes wrongly for what a file's scales hold: checks of our own.

They judge described values. A tensor whose values are left open proves nothing and passes; a live inspection
reads no tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, Self

from kernels.checking import Category, Fix, Severity, aside
from kernels.checkpoint import Header
from kernels.dtypes import DType
from kernels.quanto_int8_checkpoint.beyond import Hazard
from kernels.quanto_int8_checkpoint.repairs import Change
from kernels.quanto_int8_checkpoint.signature import (
    ACTIVATION_DTYPES,
    INPUT,
    OUTPUT,
    PREFIX,
    SCALE,
    VALID,
    Layer,
    QuantoCall,
)
from kernels.stored import proved, stored
from kernels.values import Full, Listed, Ones

LOSS = 1e-3
"""Share of a scale that a conversion may change before it is worth a word."""

EXPORT = "the numbers must come from the export, or the layer be quantized again"


class ValueHazard(Hazard):
    """A hazard that the described values of a scale prove."""

    category: ClassVar[Category] = "values"
    reads_values: ClassVar[bool] = True
    shows: ClassVar[tuple[str, ...]] = (SCALE,)


@dataclass(frozen=True)
class AuxScaleNotOne(ValueHazard):
    """The linear has no place for activation scales: the load refuses any but 1, minutes after this."""

    message = "auxiliary scale {scale!r} of a weight-only layer holds {got}, not 1"
    reason = (
        "{scale!r} is {got}: the inspection does not read it, and the load ends with "
        "\"Quanto weight-only scale '…' must equal 1\""
    )
    requires = "input_scale and output_scale of value 1"
    shows = (INPUT, OUTPUT)
    scale: str
    got: float

    @classmethod
    def find(cls, layer: Layer, /) -> Iterator[Self]:
        for suffix in (INPUT, OUTPUT):
            other = next((got for _, got in proved(layer.tensor(suffix)) if got != 1), None)
            if other is not None:
                yield cls(layer.name(suffix), other)

    def describe_actual(self, layer: Layer, /) -> str:
        return f"{self.scale!r} is {self.got}"

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        wrong = [one.scale for one in cls.find(layer)]
        tensors = layer.call.checkpoint.tensors
        ones = {name: Header(tensors[name].dtype, tensors[name].shape, Ones()) for name in wrong}
        note = "other values are of calibrated activations: if those were meant, export again without them"
        yield Change(f"Set {' and '.join(map(repr, wrong))} to 1", False, note, ones)

    @classmethod
    def example(cls) -> QuantoCall:
        return VALID.with_checkpoint(
            VALID.checkpoint.with_tensor(f"{PREFIX}.{INPUT}", Header("BF16", (), Full(0.5)))
        )


@dataclass(frozen=True)
class ScaleNotFinite(ValueHazard):
    """A row whose scale is NaN or infinite gives NaN for every activation, whatever its codes are."""

    message = "scale of Quanto layer {prefix!r} holds {got} in {dtype}"
    reason = (
        "{described} in the scale of {prefix!r} is {got} in {dtype}: its row's outputs are NaN or infinite"
    )
    requires = "finite row scales"
    prefix: str
    got: float
    dtype: str
    described: float = aside()

    @classmethod
    def find(cls, layer: Layer, /) -> Iterator[Self]:
        scale = layer.tensor(SCALE)
        for described, got in proved(scale):
            if scale is not None and not isfinite(got):
                yield cls(layer.prefix, got, scale.dtype, described)
                return

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        return _kept_or_exported(layer, isfinite)

    @classmethod
    def example(cls) -> QuantoCall:
        return _with_scale(Header("F16", (3, 1), Listed((0.5, 81_920.0, 0.25))))


@dataclass(frozen=True)
class ScaleNotPositive(ValueHazard):
    """A scale of 0 makes its row 0, and no quantizer writes a negative one."""

    message = "scale of Quanto layer {prefix!r} holds {got}, which is not positive"
    reason = (
        "{described} in the scale of {prefix!r} is stored as {got}: a row of scale 0 is dead, as an export "
        "has it only for a row of zeros, and a negative scale turns its row's sign"
    )
    requires = "row scales greater than 0"
    severity = Severity.WARNING
    prefix: str
    got: float
    described: float = aside()

    @classmethod
    def find(cls, layer: Layer, /) -> Iterator[Self]:
        for described, got in proved(layer.tensor(SCALE)):
            if isfinite(got) and got <= 0:
                yield cls(layer.prefix, got, described)
                return

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        return _kept_or_exported(layer, lambda value: value > 0)

    @classmethod
    def example(cls) -> QuantoCall:
        return _with_scale(Header("BF16", (3, 1), Listed((0.5, 0.0, 0.25))))


@dataclass(frozen=True)
class ScaleLosesPrecision(ValueHazard):
    """A scale becomes a parameter of the model's type: bfloat16 keeps 8 bits, float16 few of small ones."""

    message = "scale of Quanto layer {prefix!r}: {described} in {source} becomes {got} in {target}"
    reason = (
        "the load converts the scale of {prefix!r} to the model's type, and {described} becomes {got} in "
        "{target}, {percent} off: so is every weight of its row"
    )
    looks_at = ("checkpoint.tensors", "x.dtype")
    requires = "scales that the model's type, x's or else bfloat16, holds to 0.1 %"
    severity = Severity.WARNING
    prefix: str
    described: float
    source: str
    got: float
    target: str
    percent: str = aside()

    @classmethod
    def find(cls, layer: Layer, /) -> Iterator[Self]:
        scale = layer.tensor(SCALE)
        if scale is None:
            return
        target = _model_dtype(layer.call, scale.dtype)
        for described, held in proved(scale):
            got = stored(held, target)
            if isfinite(held) and abs(got - held) > LOSS * abs(held):
                off = f"{100 * abs(got - held) / abs(held):.2g} %"
                yield cls(layer.prefix, described, scale.dtype, got, target, off)
                return

    def fixes(self, layer: Layer, /) -> Iterator[Fix[QuantoCall]]:
        call = layer.call
        first = next(other for other in call.layers if any(type(self).find(other)))
        if first.prefix == layer.prefix and call.x is not None and call.x.dtype in ACTIVATION_DTYPES:
            wide = call.with_dtype("x", DType.F32)
            yield Fix("Run the model in float32", wide, safe=True, note="weights take twice the memory")
        yield from super().fixes(layer)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        name, scale = layer.name(SCALE), layer.tensor(SCALE)
        if scale is None:
            return
        target = _model_dtype(layer.call, scale.dtype)
        values = scale.values
        if isinstance(values, Full | Listed):
            rounded = tuple(stored(held, target) for _, held in proved(scale))
            if all(isfinite(got) and got > 0 for got in rounded):
                note = "the codes must be made anew, round(weight / scale), or the weights stay off"
                tensors = {name: Header(target, scale.shape, Listed(rounded))}
                yield Change(f"Store {name!r} as {target} and make the codes with it", False, note, tensors)

    @classmethod
    def example(cls) -> QuantoCall:
        return _with_scale(Header("F32", (3, 1), Listed((0.25, 0.3, 0.5))))


def _model_dtype(call: QuantoCall, own: str) -> str:
    """Safetensors' name of the type that scales are converted to: x's, else bfloat16 for float32."""
    if call.x is not None and call.x.dtype in ACTIVATION_DTYPES:
        return str(call.x.dtype.safetensors)
    return "BF16" if own == "F32" else own


def _kept_or_exported(layer: Layer, sound: Callable[[float], bool]) -> Iterator[Change]:
    """Keep the numbers in a wider type where only the file's is too narrow; else they must be made again."""
    name, scale = layer.name(SCALE), layer.tensor(SCALE)
    if scale is None:
        return
    if all(sound(stored(described, "F32")) for described, _ in proved(scale)):
        wider = {name: scale.with_dtype("F32")}
        yield Change(f"Store {name!r} as F32", True, "the scale needs float32's range", wider)
    else:
        yield Change(
            f"Take {name!r} from the export", False, EXPORT, {name: Header(scale.dtype, scale.shape)}
        )


def _with_scale(scale: Header) -> QuantoCall:
    return VALID.with_checkpoint(VALID.checkpoint.with_tensor(f"{PREFIX}.{SCALE}", scale))


ON_VALUES = (AuxScaleNotOne, ScaleNotFinite, ScaleNotPositive, ScaleLosesPrecision)
