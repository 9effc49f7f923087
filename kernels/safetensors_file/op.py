"""safetensors_file on a real file: the library opens it, and its refusal is recognised as a check's."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from kernels.call import Call
from kernels.examining import examine
from kernels.running import Arguments, Outputs, Runner, Tolerance
from kernels.safetensors_file.checks import STAGES
from kernels.safetensors_file.file_start import FileStart, first_bytes
from kernels.safetensors_file.signature import SafetensorsCall
from kernels.values import Values


class MemoryFile(os.PathLike[str]):
    """A file in memory that has a path; what is not known of it reads as zeros and takes no room."""

    def __init__(self, start: FileStart) -> None:
        descriptor = os.memfd_create("checkpoint")
        weakref.finalize(self, os.close, descriptor)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(start.data)
        os.truncate(descriptor, start.likely_size)
        self.path = f"/proc/self/fd/{descriptor}"

    def __fspath__(self) -> str:
        return self.path


def safetensors_file(filename: str | os.PathLike[str]) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Open a file with the library: its metadata and the names of its tensors; no tensor is read.

    Raises the library's own SafetensorError; `violation` on it is the check of ours that predicts its text.
    """
    try:
        with safe_open(os.fspath(filename), framework="pt") as file:
            return dict(file.metadata() or {}), tuple(file.keys())
    except SafetensorError as error:
        predicted = examine(STAGES, SafetensorsCall(first_bytes(Path(filename)))).raised
        if predicted is not None and predicted.text == str(error):
            error.violation = predicted  # type: ignore[attr-defined]
        raise


def _build(call: Call, values: Mapping[str, Values], device: str) -> Arguments:
    assert isinstance(call, SafetensorsCall)
    return {"filename": MemoryFile(call.filename)}


def _nothing(*_: Any) -> Outputs:
    return {}


RUNNERS = {
    "safetensors_file": Runner(
        function=safetensors_file,
        outputs=_nothing,
        reference=_nothing,
        tolerance=lambda name, call: Tolerance(),
        implementation="library",
        build=_build,
    )
}
