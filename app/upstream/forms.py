"""Calls in the JSON form in which upstream's process takes them: no code, arguments by kind."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from kernels.call import Call, plain
from kernels.checkpoint import NameMapper
from kernels.dtypes import DType
from kernels.filed import Filed
from kernels.registry import Operation
from kernels.spec import TensorSpec
from kernels.values import Values, seeded

CAPABILITY = 90
"""Ten times the compute capability that is stated where neither a GPU nor a target says one."""


def job(operation: Operation, call: Call, seed: int = 0) -> dict[str, Any]:
    """The call of upstream's function; values left open are drawn with `seed`, as the worker draws them."""
    fill = seeded(operation.fill(call), seed)
    described = {name: tensor.values for name, tensor in call.tensors() if tensor.values is not None}
    fill.update(seeded(described, seed))
    positional, named = call.upstream_arguments()
    made: dict[str, Any] = {
        "module": operation.module,
        "function": operation.function or operation.name,
        "args": [_form(value, fill, None) for value in positional],
        "kwargs": {name: _form(value, fill, name) for name, value in named.items()},
        "written": list(operation.outputs),
    }
    capability = (call.target.capability if call.target is not None else None) or CAPABILITY
    return {**made, "target": [capability // 10, capability % 10]}


def _form(value: Any, fill: Mapping[str, Values], name: str | None) -> dict[str, Any]:
    if isinstance(value, TensorSpec):
        return {"tensor": _tensor(value, fill.get(name or ""))}
    if isinstance(value, DType):
        return {"dtype": value.torch_name}
    if isinstance(value, NameMapper):
        return {"renaming": dict(value)}
    if isinstance(value, Filed):
        pieces = [[place, base64.b64encode(data).decode()] for place, data in value.pieces]
        return {"file": {"name": value.name, "size": value.size, "pieces": pieces}}
    if isinstance(value, list):
        return {"list": [_form(item, fill, None) for item in value]}
    return {"value": plain(value)}


def _tensor(spec: TensorSpec, values: Values | None) -> dict[str, Any]:
    """A tensor's form; `shared` where elements lie on each other, whose memory is filled once, in order."""
    return {
        "shape": list(spec.shape),
        "strides": list(spec.strides),
        "offset": spec.offset,
        "dtype": spec.dtype.torch_name,
        "device": spec.device,
        "bytes": spec.storage_bytes,
        "shared": spec.shares_memory,
        "values": None if values is None else plain(values),
    }
