"""The call of safetensors_file: a file's beginning; and a valid one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels.call import Call, argument
from kernels.filed import Filed, NotAllKnown
from kernels.safetensors_file.file_start import LENGTH, FileStart
from kernels.upstream import SAFETENSORS, File, Site
from kernels.values import Values

SOURCE = File(SAFETENSORS, "safetensors/src/tensor.rs", length=1611)
PREFIX = "Error while deserializing header: "
READ = "SafeTensors::read_metadata"
VALIDATE = "Metadata::validate"


class SafetensorError(Exception):
    """The library's exception, by its public name."""


SafetensorError.__module__ = "safetensors"


def at(function: str, *lines: int) -> tuple[Site, ...]:
    """Where the release's source says so; no commit is known for it."""
    return tuple(SOURCE.at(function, None, line) for line in lines)


@dataclass(frozen=True)
class SafetensorsCall(Call):
    """The argument of safetensors.safe_open that decides whether the file can be opened."""

    filename: FileStart = argument(
        "a file's first bytes, in base64, and its size as a whole where that is known"
    )

    def with_file(self, data: bytes, size: int | None = None) -> SafetensorsCall:
        """The same call on another file."""
        return self.replace(filename=FileStart(data, size))

    def upstream_arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """The file, data not given as zeros; raises NotAllKnown where the header was not given whole."""
        start = self.filename
        if start.header is None and start.size != len(start.data):
            raise NotAllKnown("of the file less than its header was given")
        return [Filed("checkpoint.safetensors", start.likely_size, ((0, start.data),))], {"framework": "pt"}

    def to_call(self, function: str) -> str:
        """The library's call on the file's path."""
        return f'{function}(filename, framework="pt")'


def written(header: Mapping[str, Any] | str | bytes, data: int = 0) -> bytes:
    """A file with this header and so many bytes of data, all zero; an object is written as JSON."""
    if isinstance(header, Mapping):
        header = json.dumps(header, separators=(",", ":"))
    raw = header.encode() if isinstance(header, str) else header
    return len(raw).to_bytes(LENGTH, "little") + raw + bytes(data)


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    """A tensor's entry in a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


HEADER = {"__metadata__": {"format": "pt"}, "up_proj.weight": entry("BF16", [3, 2], 0, 12)}


def whole(header: Mapping[str, Any] | str | bytes, data: int = 0) -> SafetensorsCall:
    """A call on a file that is all there."""
    content = written(header, data)
    return SafetensorsCall(FileStart(content, len(content)))


VALID = whole(HEADER, 12)


def fit(given: Mapping[str, Any]) -> SafetensorsCall:
    """Complete a user's arguments: the valid file where none was given."""
    return SafetensorsCall(**{"filename": VALID.filename, **given})


def fill(_: SafetensorsCall) -> Mapping[str, Values]:
    """Nothing is drawn: the bytes are the argument."""
    return {}
