"""comfy_checkpoint on a real file: header and markers through upstream's checks, then a layer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from math import isfinite, sqrt
from typing import Any

from safetensors import safe_open
from torch import Tensor

from kernels.call import Call
from kernels.checkpoint import Checkpoint, NameMapper
from kernels.checkpoint_file import Held, WrittenFile, elements, read_header
from kernels.comfy_checkpoint import reference
from kernels.comfy_checkpoint.checks import STAGES
from kernels.comfy_checkpoint.contents import SUFFIXES, contents, fill
from kernels.comfy_checkpoint.layers import Layer
from kernels.comfy_checkpoint.markers import ENDING, MAX_MARKER
from kernels.comfy_checkpoint.signature import ComfyCall
from kernels.dtypes import DType
from kernels.examining import guard
from kernels.live import described, spec_of
from kernels.running import Arguments, Outputs, Runner, Tolerance, build_tensor
from kernels.shards import Shards
from kernels.values import Listed, Randint, Text, Values

# |a - b| <= t·(range of y) + t·|b|, by the type of x that weights and rotated activations are rounded to.
TOLERANCES = {DType.BF16: 2e-2, DType.F16: 3e-3, DType.F32: 1e-5}

LOOKED_UP = 2**-7
"""A looked-up row is bfloat16: a scale and a product are rounded, each by 2⁻⁹ of the number at most."""

Markers = dict[str, dict[str, Any]]


def comfy_checkpoint(
    checkpoint: str | os.PathLike[str],
    name_mapper: Mapping[str, str] | None = None,
    x: Tensor | None = None,
    layer: str | None = None,
    capability: float | None = None,
    backend: str = "auto",
    tp_size: int = 1,
    partitions: int = 1,
    path: str | None = None,
    others: Mapping[str, str | os.PathLike[str]] | None = None,
) -> tuple[str, Markers, Tensor | None]:
    """Inspect a safetensors file, or the several of one component: its method, its layers' markers by prefix
    in the model, x through a layer.

    Only the header and the marker tensors are read, and for x the tensors of one layer: [.., K] through a
    linear, or row numbers for an embedding table. `path` is the name that messages print of the first file;
    `others` are read after it, each under the name that messages print. Raises what
    upstream raises while it inspects the file, chooses a method and builds the layers; ValueError for a file
    without any marker, which upstream takes as unquantized; the library's own errors for one it cannot open.
    """
    arguments = {
        "name_mapper": None if name_mapper is None else NameMapper(name_mapper),
        "x": x,
        "layer": layer,
        "capability": capability,
        "backend": backend,
        "tp_size": tp_size,
        "partitions": partitions,
        "path": os.fspath(checkpoint) if path is None else path,
    }
    with ExitStack() as stack:
        paths = [os.fspath(each) for each in (checkpoint, *(others or {}).values())]
        files = [stack.enter_context(safe_open(each, framework="pt")) for each in paths]
        first, *further = (_with_markers(file) for file in files)
        shards = None if others is None else Shards(dict(zip(others, further, strict=True)))
        call = described(ComfyCall, {"checkpoint": first, "others": shards, **arguments})
        guard(STAGES, call)
        method, markers, operand = call.handler, reference.mapped_markers(call), call.operand
        assert method is not None, "the checks let no other file pass"
        if x is None or operand is None:
            return method, markers, None
        tensors = {
            suffix: files[call.home(operand.name(suffix))].get_tensor(operand.name(suffix)).to(x.device)
            for suffix in _operands(operand)
        }
    return method, markers, reference.output(operand, tensors, x)


def _with_markers(file: Any) -> Checkpoint:
    """The open file's header, with what its marker tensors hold."""
    header = read_header(file)
    held = dict(header.tensors)
    for name, tensor in header.tensors.items():
        if name.endswith(ENDING) and tensor.dtype in ("U8", "I8", "BOOL") and tensor.nbytes <= MAX_MARKER:
            held[name] = replace(tensor, values=_written(file.get_tensor(name)))
    return Checkpoint(header.metadata, held)


def _written(tensor: Tensor) -> Values:
    data = tensor.flatten().numpy().tobytes()
    text = Text(data.decode("utf-8", "replace"))
    return text if text.encoded() == data else Listed(tuple(data))


def _operands(layer: Layer) -> Iterator[str]:
    """Tensors that the layer's arithmetic takes; a static activation scale is not applied."""
    return (suffix for suffix in SUFFIXES if layer.has(suffix) and suffix != "input_scale")


def _held(call: ComfyCall, codes: Values) -> Held:
    assert isinstance(codes, Randint)
    return {name: (header, values) for name, header, values in contents(call, codes)}


def _build(call: Call, values: Mapping[str, Values], device: str) -> Arguments:
    assert isinstance(call, ComfyCall)
    held = _held(call, values["checkpoint"])
    file, *others = (
        WrittenFile(
            shard, {name: (header, header.values or held[name][1]) for name, header in shard.tensors.items()}
        )
        for _, shard in call.files
    )
    x = None if call.x is None else build_tensor(call.x, call.x.values or values["x"], device)
    named = {parameter.name: getattr(call, parameter.name) for parameter in call.arguments()}
    further = None if call.others is None else dict(zip(call.others, others, strict=True))
    return {**named, "checkpoint": file, "x": x, "others": further}


def _outputs(_: Arguments, returned: tuple[str, Markers, Tensor | None]) -> Outputs:
    return {} if returned[2] is None else {"y": returned[2]}


def _tensors(layer: Layer, held: Held) -> dict[str, Tensor]:
    """The layer's tensors as they were to be written."""
    return {
        suffix: elements(*held[layer.name(suffix)]).reshape(layer.held(suffix).shape)
        for suffix in _operands(layer)
    }


def _reference(arguments: Arguments) -> Outputs:
    """From what the file was to hold, not from the file: a round trip that changed anything would show."""
    x, file = arguments["x"], arguments["checkpoint"]
    if x is None:
        return {}
    others = arguments["others"] or {}
    shards = Shards({name: other.checkpoint for name, other in others.items()})
    call = ComfyCall(file.checkpoint, arguments["name_mapper"], spec_of(x), arguments["layer"], others=shards)
    if call.operand is None:  # of a layer without its weight nothing is known that x could go through
        return {}
    held = {name: held for each in (file, *others.values()) for name, held in each.held.items()}
    tensors = {suffix: tensor.to(x.device) for suffix, tensor in _tensors(call.operand, held).items()}
    return {"y": reference.output_float32(call.operand, tensors, x)}


def tolerance(name: str, call: ComfyCall) -> Tolerance:
    """How far y may be from float32's.

    An element near zero is off by the roundings of its terms, which grow with sqrt(K) · rms(x) · rms(weight).
    """
    layer = call.operand
    assert call.x is not None and layer is not None, "the checks let no other call run"  # noqa: PT018
    if call.looks_up:
        return Tolerance(rtol=LOOKED_UP)
    weight = reference.weight_of(layer, _tensors(layer, _held(call, fill(call)["checkpoint"])))
    x = build_tensor(replace(call.x, device="cpu"), call.x.values or fill(call)["x"], "cpu").float()
    reach = sqrt(call.x.shape[-1]) * float(x.square().mean().sqrt() * weight.square().mean().sqrt())
    allowed = TOLERANCES[call.x.dtype]
    return Tolerance(atol=allowed * reach if isfinite(reach) else allowed, rtol=allowed)


RUNNERS = {
    "comfy_checkpoint": Runner(
        function=comfy_checkpoint,
        outputs=_outputs,
        reference=_reference,
        tolerance=tolerance,
        implementation="reference",
        build=_build,
    )
}
