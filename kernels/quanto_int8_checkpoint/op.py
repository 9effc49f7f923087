"""quanto_int8_checkpoint on a real file: its header through upstream's checks, then one of its layers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import hypot, isfinite, sqrt

from safetensors import safe_open
from torch import Tensor

from kernels.call import Call
from kernels.checkpoint import Header, NameMapper
from kernels.checkpoint_file import WrittenFile, elements, read_header
from kernels.devices import runs_kernels
from kernels.dtypes import DType
from kernels.examining import guard
from kernels.live import described, spec_of
from kernels.quanto_int8_checkpoint import reference
from kernels.quanto_int8_checkpoint.checks import STAGES
from kernels.quanto_int8_checkpoint.plan import unpacks
from kernels.quanto_int8_checkpoint.signature import (
    BIAS,
    DATA,
    SCALE,
    Layer,
    QuantoCall,
    contents,
    fill,
)
from kernels.running import Arguments, Outputs, Runner, Tolerance, build_tensor
from kernels.values import Listed, Randint, Randn, Values, bounds

# |a - b| <= t + t·|b| for outputs up to OUTPUT, by the type of x that everything is rounded to.
TOLERANCES = {DType.BF16: 2e-2, DType.F16: 3e-3, DType.F32: 1e-5}
OUTPUT = 14.0


def quanto_int8_checkpoint(
    checkpoint: str | os.PathLike[str],
    name_mapper: Mapping[str, str] | None = None,
    x: Tensor | None = None,
) -> tuple[frozenset[str], Tensor | None]:
    """Inspect a safetensors file: the int8 layers' prefixes in the model, and x through one of them or None.

    Only the header is read, and for x [.., K] the tensors of the first layer of K columns. Raises what
    upstream raises; ValueError for a file that is not Quanto, where upstream returns None; the library's own
    errors for a file that it cannot open.
    """
    names = None if name_mapper is None else NameMapper(name_mapper)
    with safe_open(os.fspath(checkpoint), framework="pt") as file:
        call = described(QuantoCall, {"checkpoint": read_header(file), "name_mapper": names, "x": x})
        guard(STAGES, call)
        prefixes = reference.mapped_prefixes(call)
        assert prefixes is not None, "the checks let no other file pass"
        layer = call.operand
        if x is None or layer is None:
            return prefixes, None
        tensors = {suffix: file.get_tensor(layer.name(suffix)).to(x.device) for suffix in _operands(layer)}
    return prefixes, linear(x, tensors[DATA], tensors[SCALE], tensors.get(BIAS))


def linear(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """The linear by our kernel; by torch, as upstream computes it, on a CPU whose process interprets none.

    Arguments as in `reference.linear`.
    """
    if not runs_kernels(x.device):
        return reference.linear(x, codes, scale, bias)
    from kernels.quanto_int8_checkpoint import launch  # imports triton, whose mode may not be chosen before

    return launch.linear(x, codes, scale, bias)


def _operands(layer: Layer) -> tuple[str, ...]:
    """Tensors that the linear takes."""
    return (DATA, SCALE) if layer.tensor(BIAS) is None else (DATA, SCALE, BIAS)


def _held(call: QuantoCall, codes: Values) -> dict[str, tuple[Header, Values]]:
    assert isinstance(codes, Randint)
    return {name: (header, values) for name, header, values in contents(call, codes)}


def _build(call: Call, values: Mapping[str, Values], device: str) -> Arguments:
    assert isinstance(call, QuantoCall)
    file = WrittenFile(call.checkpoint, _held(call, values["checkpoint"]))
    x = None if call.x is None else build_tensor(call.x, call.x.values or values["x"], device)
    return {"checkpoint": file, "name_mapper": call.name_mapper, "x": x}


def _outputs(_: Arguments, returned: tuple[frozenset[str], Tensor | None]) -> Outputs:
    return {} if returned[1] is None else {"y": returned[1]}


def _reference(arguments: Arguments) -> Outputs:
    """From what the file was to hold, not from the file: a round trip that changed anything would show."""
    x, file = arguments["x"], arguments["checkpoint"]
    if x is None:
        return {}
    layer = QuantoCall(file.checkpoint, arguments["name_mapper"], spec_of(x)).operand
    assert layer is not None, "the checks let no other activation pass"
    tensors = {
        suffix: elements(*file.held[layer.name(suffix)]).reshape(_shape(layer, suffix)).to(x.device)
        for suffix in _operands(layer)
    }
    return {"y": reference.linear_float32(x, tensors[DATA], tensors[SCALE], tensors.get(BIAS))}


def _shape(layer: Layer, suffix: str) -> tuple[int, ...]:
    header = layer.tensor(suffix)
    assert header is not None
    return header.shape


def tolerance(name: str, call: QuantoCall) -> Tolerance:
    """How far y may be from the float32 product.

    TOLERANCES hold for |y| up to OUTPUT, and twice of them where torch multiplies 16-bit types: it may round
    partial sums to them. An element near zero is off by the roundings of its terms, which
    grow with sqrt(K) · rms(x) · rms(codes) · rms(scales); three of that is taken as the outputs' range.
    """
    layer = call.operand
    assert call.x is not None and layer is not None, "the checks let no other call run"  # noqa: PT018
    held = _held(call, fill(call)["checkpoint"])
    reach = 3 * sqrt(call.x.shape[-1]) * _rms(call.x.values or Randn(), call.x.numel)
    for suffix in (DATA, SCALE):
        header, values = held[layer.name(suffix)]
        reach *= _rms(values, header.numel)
    allowed = TOLERANCES[call.x.dtype]
    if call.x.dtype is not DType.F32 and unpacks(call.x.numel // call.x.shape[-1], call.x.dtype.itemsize):
        allowed *= 2
    growth = max(1.0, reach / OUTPUT) if isfinite(reach) else 1.0
    return Tolerance(atol=allowed * growth, rtol=allowed)


def _rms(values: Values, count: int) -> float:
    """Root mean square of `count` elements; of a ramp its largest magnitude."""
    match values:
        case Randn(mean=mean, std=std):
            return hypot(mean, std)
        case Randint(low=low, high=high):
            return sqrt(((low + high - 1) / 2) ** 2 + ((high - low) ** 2 - 1) / 12)
        case Listed():
            elements = list(values.flat()) or [0]
            return hypot(*elements) / sqrt(len(elements))
        case _:
            smallest, largest = bounds(values, (count,)) or (0, 0)
            return float(max(abs(smallest), abs(largest)))


RUNNERS = {
    "quanto_int8_checkpoint": Runner(
        function=quanto_int8_checkpoint,
        outputs=_outputs,
        reference=_reference,
        tolerance=tolerance,
        build=_build,
    )
}
