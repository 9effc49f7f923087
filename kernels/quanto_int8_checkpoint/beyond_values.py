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
    DATA,
    INPUT,
    OUTPUT,
    PREFIX,
    SCALE,
    VALID,
    Layer,
    QuantoCall,
)
from kernels.stored import largest_code, proved, proved_rows, stored
from kernels.values import Full, Listed, Ones

LOSS = 1e-3
"""Share of a scale that a conversion may change before it is worth a word."""

LARGEST, LIMIT = 127, 128
"""Largest magnitude of a row's codes as the quantizer makes them, max(|w|) / 127 being its scale; of int8."""

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
class ScaleOverflowsWeights(ValueHazard):
    """A weight is its code times its row's scale in the model's type, before anything is added up: float16
    ends at 65504, which a scale of 516 passes with a code of 127.
    """

    message = (
        "scale of Quanto layer {prefix!r}: {described} in {source} times code {code} is {got} in {target}"
    )
    reason = (
        "weights of {prefix!r} are unpacked in {target}, the model's type: a code of {code} times "
        "{described} is {got} there, and outputs of its row become infinite or NaN without an error"
    )
    looks_at = ("checkpoint.tensors", "x.dtype")
    requires = "scales whose products with their rows' codes the model's type, x's or else bfloat16, holds"
    shows = (DATA, SCALE)
    prefix: str
    described: float
    source: str
    code: int
    got: float
    target: str

    @classmethod
    def find(cls, layer: Layer, /) -> Iterator[Self]:
        scale = layer.tensor(SCALE)
        if scale is None:
            return
        target = _model_dtype(layer.call, scale.dtype)
        code_of = largest_code(layer.tensor(DATA), LARGEST)
        for rows, described, held in proved_rows(scale):
            if not isfinite(held) or isfinite(_unpacked(LIMIT, held, target)):
                continue
            code = min(max(map(code_of, rows)), LIMIT)
            got = _unpacked(code, held, target)
            if not isfinite(got):
                yield cls(layer.prefix, described, scale.dtype, code, got, target)
                return

    def fixes(self, layer: Layer, /) -> Iterator[Fix[QuantoCall]]:
        if _is_first(self, layer):
            yield from _in_another_type(
                layer.call, DType.F32, safe=True, note="weights take twice the memory"
            )
            yield from _in_another_type(
                layer.call, DType.BF16, safe=False, note="activations and scales keep 8 bits"
            )
        yield from super().fixes(layer)

    @classmethod
    def repairs(cls, layer: Layer, /) -> Iterator[Change]:
        name, scale = layer.name(SCALE), layer.tensor(SCALE)
        if scale is None:
            return
        if scale.dtype == "F16" and _model_dtype(layer.call, "F32") != "F16":
            wider = {name: scale.with_dtype("F32")}
            note = "an F32 scale is loaded into the model's own type, bfloat16 where that is the model's"
            yield Change(f"Store {name!r} as F32", False, note, wider)
        yield Change(
            f"Take {name!r} from the export", False, EXPORT, {name: Header(scale.dtype, scale.shape)}
        )

    @classmethod
    def example(cls) -> QuantoCall:
        large = _with_scale(Header("F32", (3, 1), Listed((0.5, 1024.0, 0.25))))
        return large.with_dtype("x", DType.F16)


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
            if isfinite(got) and abs(got - held) > LOSS * abs(held):
                off = f"{100 * abs(got - held) / abs(held):.2g} %"
                yield cls(layer.prefix, described, scale.dtype, got, target, off)
                return

    def fixes(self, layer: Layer, /) -> Iterator[Fix[QuantoCall]]:
        if _is_first(self, layer):
            yield from _in_another_type(
                layer.call, DType.F32, safe=True, note="weights take twice the memory"
            )
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


def _unpacked(code: int, scale: float, target: str) -> float:
    """Code times scale as the load and the linear compute it: both in the model's type, rounded once more."""
    return stored(code * stored(scale, target), target)


def _is_first(violation: ValueHazard, layer: Layer) -> bool:
    """Whether the layer is the first that fails: a change of the model's type is offered once."""
    first = next(other for other in layer.call.layers if any(type(violation).find(other)))
    return first.prefix == layer.prefix


def _in_another_type(call: QuantoCall, dtype: DType, *, safe: bool, note: str) -> Iterator[Fix[QuantoCall]]:
    """Where the call says the model's type, another one."""
    if call.x is not None and call.x.dtype in ACTIVATION_DTYPES and call.x.dtype is not dtype:
        yield Fix(f"Run the model in {dtype}", call.with_dtype("x", dtype), safe=safe, note=note)


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


ON_VALUES = (AuxScaleNotOne, ScaleNotFinite, ScaleNotPositive, ScaleOverflowsWeights, ScaleLosesPrecision)
