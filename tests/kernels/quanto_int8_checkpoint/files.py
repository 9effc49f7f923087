"""Described files that the tests share: one sound layer P, 3 rows and 2 columns, and changes of it."""

from __future__ import annotations

import base64
import json
from typing import Any

from kernels.checkpoint import Checkpoint, Header, NameMapper
from kernels.dtypes import DType
from kernels.quanto_int8_checkpoint.signature import QuantoCall
from kernels.spec import TensorSpec
from kernels.values import Full, Listed

P = "blk.0.proj"
ENTRY = {"weights": "qint8", "activations": "none"}
MAP = "quantization_map_base64"


def layer(prefix: str, **changed: Header | None) -> dict[str, Header]:
    """A layer's four tensors; data, scale, input, output, dense, bias replace or (None) remove one."""
    tensors: dict[str, Header | None] = {
        "data": Header("I8", (3, 2)),
        "scale": Header("F32", (3, 1)),
        "input": Header("F32", ()),
        "output": Header("F32", ()),
        **changed,
    }
    suffixes = {
        "data": "weight._data",
        "scale": "weight._scale",
        "input": "input_scale",
        "output": "output_scale",
        "dense": "weight",
        "bias": "bias",
    }
    return {f"{prefix}.{suffixes[key]}": header for key, header in tensors.items() if header is not None}


def encoded(quantization_map: Any) -> str:
    text = quantization_map if isinstance(quantization_map, bytes) else json.dumps(quantization_map).encode()
    return base64.b64encode(text).decode()


def file(
    quantization_map: Any = None, tensors: dict[str, Header] | None = None, **metadata: str | None
) -> QuantoCall:
    """A call on a file: by default P alone. `metadata` replaces or (None) removes entries."""
    entries = {
        "quantization_format": "quanto",
        MAP: encoded({P: ENTRY} if quantization_map is None else quantization_map),
        **metadata,
    }
    return QuantoCall(
        Checkpoint(
            {key: value for key, value in entries.items() if value is not None},
            layer(P) if tensors is None else tensors,
        )
    )


def p(**changed: Header | None) -> QuantoCall:
    """The file with tensors of P changed."""
    return file(tensors=layer(P, **changed))


GOLDEN_PREFIX = "language_model.layers.0.mlp.up_proj"
GOLDEN = QuantoCall(
    file(
        {GOLDEN_PREFIX: ENTRY},
        layer(
            GOLDEN_PREFIX,
            data=Header("I8", (3, 2), Listed(((1, -2), (3, 4), (-5, 6)))),
            scale=Header("BF16", (3, 1), Listed((0.5, 0.25, 0.125))),
            input=Header("BF16", (), Full(1)),
            output=Header("BF16", (), Full(1)),
        ),
    ).checkpoint,
    NameMapper({GOLDEN_PREFIX: f"model.{GOLDEN_PREFIX}"}),
    TensorSpec((1, 2), DType.BF16, values=Listed((2, -1))),
)
