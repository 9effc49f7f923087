"""A described checkpoint as a real safetensors file: written with the library, read back by its header."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import TensorSpec as RawTensor
from safetensors import serialize_file
from torch import Tensor

from kernels.checkpoint import Checkpoint, Header
from kernels.dtypes import DType
from kernels.running import build_tensor
from kernels.spec import TensorSpec
from kernels.values import Values

Held = Mapping[str, tuple[Header, Values]]
"""Tensor name → its header and what it holds."""


class WrittenFile(os.PathLike[str]):
    """A safetensors file in a folder of its own, which goes with the last reference to it."""

    def __init__(self, checkpoint: Checkpoint, held: Held) -> None:
        folder = tempfile.mkdtemp(prefix="faultbook-")
        weakref.finalize(self, shutil.rmtree, folder)
        self.path = Path(folder) / "checkpoint.safetensors"
        self.checkpoint = checkpoint
        self.held = held
        write(self.path, checkpoint.metadata, held)

    def __fspath__(self) -> str:
        return str(self.path)


def read_header(file: Any) -> Checkpoint:
    """What an open file says of itself; no tensor is read."""
    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (a handle is no mapping)
    return Checkpoint(
        file.metadata() or {},
        {name: Header(part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()},
    )


def write(path: Path, metadata: Mapping[str, str], held: Held) -> None:
    """Write a safetensors file with the library; elements are drawn on the CPU.

    Raises SafetensorError for element types that the library cannot write from Python: F6_E2M3, F6_E3M2, and
    F4 in rows of an odd length.
    """
    built = {name: elements(header, values) for name, (header, values) in held.items()}
    raw = {
        name: RawTensor(data_ptr=built[name].data_ptr(), data_len=header.nbytes, **_form(header))
        for name, (header, _) in held.items()
    }
    serialize_file(raw, str(path), dict(metadata) or None)


def elements(header: Header, values: Values) -> Tensor:
    """The elements in row-major order, without a shape; zero bytes where torch has no such type."""
    dtype = DType.parse(header.dtype)
    if not dtype.in_torch:
        return torch.zeros(header.nbytes, dtype=torch.uint8)
    return build_tensor(TensorSpec((header.numel,), dtype), values, "cpu")


def _form(header: Header) -> dict[str, Any]:
    """Type and shape as the library's writer takes them: torch's names, and F4 in pairs."""
    if header.dtype == "F4" and header.shape and header.shape[-1] % 2 == 0:
        return {"dtype": "float4_e2m1fn_x2", "shape": [*header.shape[:-1], header.shape[-1] // 2]}
    return {"dtype": DType.parse(header.dtype).torch_name, "shape": list(header.shape)}
