"""The call of comfy_checkpoint: a described file, its markers and layers, and a valid one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from kernels.call import Call, argument
from kernels.checkpoint import Checkpoint, Frozen, Header, NameMapper
from kernels.comfy_checkpoint.layers import (
    Declaration,
    Entry,
    Layer,
    MarkerTensor,
    conflicts,
    tensors_of,
)
from kernels.comfy_checkpoint.layouts import file as file_of
from kernels.comfy_checkpoint.layouts import nvfp4
from kernels.comfy_checkpoint.markers import (
    ENDING,
    FP8,
    GLOBAL_KEY,
    INT8,
    METADATA_KEY,
    MXFP8,
    NVFP4,
    W4A4,
    W4A8,
    Reading,
    fitted,
    marker_bytes,
    read_json,
)
from kernels.dtypes import DType, Kind
from kernels.expressions import literal
from kernels.filed import filed
from kernels.shards import Shards
from kernels.spec import TensorSpec

FUNCTION = "inspect_comfy_quant_markers"
WEIGHT = ".weight"
LOOKS_QUANTIZED = ("F8_E4M3", "I8", "U8")

HANDLERS = {
    (INT8,): "convrot_int8",
    (W4A8,): "kitchen_w4a8",
    (W4A8, INT8): "kitchen_w4a8",
    (W4A4,): "kitchen_w4a4",
    (W4A4, INT8): "kitchen_w4a4",
    (FP8,): "comfy_fp8",
    (NVFP4,): "comfy_nvfp4",
    (INT8, NVFP4): "comfy_nvfp4",
    (MXFP8,): "mxfp8",
}
"""Sorted formats of a file's layers → the method that upstream loads it with."""


BEYOND_CAPABILITY = 1_000
"""No compute capability is as large."""


@dataclass(frozen=True)
class ComfyCall(Call):
    """Arguments of an inspection and of loading one layer. A layer has N output rows and K input columns."""

    checkpoint: Checkpoint = argument(
        "a safetensors file: its string metadata, and dtype and shape of each tensor; what a .comfy_quant "
        "tensor "
        'holds is {"kind": "text", "text": "{…}"}'
    )
    name_mapper: NameMapper | None = argument(
        "layer prefix in the file → prefix in the model; identity if None", default=None
    )
    x: TensorSpec | None = argument(
        "activation [.., K] for one of the layers, or row numbers for an embedding table", default=None
    )
    layer: str | None = argument(
        "prefix in the file of the layer that takes x; the first of K columns if None", default=None
    )
    capability: float | None = argument(
        "compute capability of the GPU that loads it, such as 10.0; the target's if None", default=None
    )
    backend: str = argument(
        "what SGLANG_DIFFUSION_CONVROT_INT8_BACKEND says: auto, comfy_kitchen or jit", default="auto"
    )
    tp_size: int = argument("ranks that share the K columns of each layer", default=1)
    partitions: int = argument("linears that are fused into one, such as 3 for qkv", default=1)
    path: str = argument("the file's name, as messages print it", default="checkpoint.safetensors")
    others: Shards | None = argument(
        "further files of the same component in the order in which they are read: name → file", default=None
    )

    @cached_property
    def files(self) -> tuple[tuple[str, Checkpoint], ...]:
        """(name, file) of every shard, in the order in which they are read."""
        return ((self.path, self.checkpoint), *(self.others or {}).items())

    @cached_property
    def headers(self) -> Mapping[str, Header]:
        """The tensors of all files; of a name in two of them the last counts."""
        if self.others is None:
            return self.checkpoint.tensors
        return Frozen({name: header for _, file in self.files for name, header in file.tensors.items()})

    @cached_property
    def declarations(self) -> tuple[Declaration, ...]:
        """The files' metadata on quantization, of those that have some."""
        texts = (
            (index, path, file.metadata.get(METADATA_KEY)) for index, (path, file) in enumerate(self.files)
        )
        return tuple(
            Declaration(self, index, path, text, read_json(text))
            for index, path, text in texts
            if text is not None
        )

    @property
    def quant_formats(self) -> tuple[str, ...]:
        """The formats that files are declared to be of as a whole, in lower case, without repetition."""
        found = (file.metadata[GLOBAL_KEY].lower() for _, file in self.files if GLOBAL_KEY in file.metadata)
        return tuple(dict.fromkeys(found))

    @cached_property
    def quantized(self) -> tuple[str, ...]:
        """Prefixes of weights whose type says that they are quantized, in the order of reading."""
        return tuple(
            name.removesuffix(WEIGHT)
            for name in dict.fromkeys(name for _, file in self.files for name in sorted(file.tensors))
            if name.endswith(WEIGHT) and self.headers[name].dtype in LOOKS_QUANTIZED
        )

    @property
    def is_mxfp8(self) -> bool:
        """Whether the checkpoint as a whole is declared MXFP8, and no file as anything else."""
        return self.quant_formats == (MXFP8,)

    @cached_property
    def _merged(self) -> tuple[dict[str, dict[str, Any]], tuple[Declaration | Entry | MarkerTensor, ...]]:
        """Markers by prefix in upstream's order, and what speaks of them as it is read; the first of two
        values stays.
        """
        markers: dict[str, dict[str, Any]] = {}
        parts: list[Declaration | Entry | MarkerTensor] = []
        declared = {declaration.index: declaration for declaration in self.declarations}

        def merge(prefix: str, marker: Any) -> None:
            if isinstance(marker, dict):
                markers[prefix] = {**marker, **markers.get(prefix, {})}

        for index, (path, file) in enumerate(self.files):
            if index in declared:
                parts.append(declared[index])
                for prefix, marker in declared[index].layers.items():
                    before = markers.get(prefix, {})
                    parts.append(Entry(declared[index], prefix, marker, before, conflicts(before, marker)))
                    merge(prefix, marker)
            for name in sorted(file.tensors):
                if name.endswith(ENDING):
                    prefix, header = name.removesuffix(ENDING), file.tensors[name]
                    carrier = self._carrier(name, prefix, path, header, markers.get(prefix, {}))
                    parts.append(carrier)
                    merge(prefix, carrier.reading.value)
        if self.is_mxfp8:
            for prefix in self.quantized:
                markers.setdefault(prefix, {"format": MXFP8})
        return markers, tuple(parts)

    def _carrier(
        self, name: str, prefix: str, path: str, header: Header, before: Mapping[str, Any]
    ) -> MarkerTensor:
        data = marker_bytes(header)
        told = tensors_of(self, prefix).inferred if data is None else None
        held = data if told is None else fitted(told, header.nbytes)
        reading = Reading(None) if held is None else read_json(held)
        found = conflicts(before, reading.value)
        return MarkerTensor(self, name, prefix, path, header, data, reading, before, found)

    @property
    def parts(self) -> tuple[Declaration | Entry | MarkerTensor, ...]:
        """Whatever says how layers are quantized, file by file: metadata, its entries, tensors, which the
        library lists by name.
        """
        return self._merged[1]

    @property
    def marker_tensors(self) -> tuple[MarkerTensor, ...]:
        """The tensors that carry markers, in the order in which they are read."""
        return tuple(part for part in self.parts if isinstance(part, MarkerTensor))

    @property
    def unmarked(self) -> list[str]:
        """Prefixes of quantized weights that no marker speaks of, sorted."""
        marked = set(self._merged[0]) | {carrier.prefix for carrier in self.marker_tensors}
        return sorted(set(self.quantized) - marked)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The marked layers in upstream's order; a marker that cannot be read makes none."""
        first: dict[str, str] = {}
        found = []
        for prefix, marker in self._merged[0].items():
            mapped = self.mapped(prefix)
            found.append(Layer(self, prefix, marker, mapped, first.get(mapped)))
            first.setdefault(mapped, prefix)
        return tuple(found)

    @cached_property
    def formats(self) -> tuple[str, ...]:
        """The layers' distinct formats as text, sorted."""
        return tuple(sorted({str(layer.marker.get("format")) for layer in self.layers}))

    @property
    def handler(self) -> str | None:
        """The method that upstream loads the file with; None where it has none, or nothing is quantized."""
        return HANDLERS.get(self.formats)

    @cached_property
    def mxfp8_layers(self) -> tuple[Layer, ...]:
        """The weights that the global declaration is about, in the order in which they are read."""
        return tuple(tensors_of(self, prefix) for prefix in self.quantized) if self.is_mxfp8 else ()

    @cached_property
    def operand(self) -> Layer | None:
        """The layer that takes x: the named one, else the first whose K is x's last size."""
        if self.x is None:
            return None
        if self.layer is not None:
            return next((layer for layer in self.layers if layer.prefix == self.layer), None)
        if self.looks_up:
            return next((layer for layer in self.layers if layer.is_embedding), None)
        if self.x.ndim == 0:
            return None
        width = self.x.shape[-1]
        return next((layer for layer in self.layers if layer.columns == width), None)

    @property
    def looks_up(self) -> bool:
        """Whether x holds row numbers, so that its layer is an embedding table."""
        return self.x is not None and self.x.dtype.kind is Kind.INT

    @property
    def compute_capability(self) -> int | None:
        """Ten times the capability, as upstream compares it: the one stated, else the target's; None where
        neither is known or what is stated is no number, or one that no GPU has.
        """
        value = self.capability
        if value is None and self.target is not None:
            return self.target.capability
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return None
        return round(value * 10) if abs(value) < BEYOND_CAPABILITY else None

    def mapped(self, prefix: str) -> str:
        """A layer's prefix in the model."""
        return prefix if self.name_mapper is None else self.name_mapper(prefix)

    def with_checkpoint(self, checkpoint: Checkpoint) -> ComfyCall:
        """The same call on another first file."""
        return self.replace(checkpoint=checkpoint)

    def with_file(self, index: int, file: Checkpoint) -> ComfyCall:
        """The same call with another file in this place."""
        if index == 0:
            return self.with_checkpoint(file)
        name, _ = self.files[index]
        return self.replace(others=Shards({**(self.others or {}), name: file}))

    def with_tensors(self, changes: Mapping[str, Header | None]) -> ComfyCall:
        """The same call with tensors added, replaced or (None) removed, each in the file that it is read
        from; a new one beside its layer's others.
        """
        call, files = self, dict(enumerate(file for _, file in self.files))
        for index, file in files.items():
            mine = {name: header for name, header in changes.items() if self.home(name) == index}
            held = {**file.tensors, **mine}
            left = {name: header for name, header in held.items() if header is not None}
            if mine:
                call = call.with_file(index, Checkpoint(file.metadata, left))
        return call

    def home(self, name: str) -> int:
        """The file that a tensor is read from, else that of its layer's others, else the first."""
        prefix = name.rpartition(".")[0] + "."
        beside = 0
        for index, (_, file) in reversed(tuple(enumerate(self.files))):
            if name in file.tensors:
                return index
            if any(other.startswith(prefix) for other in file.tensors):
                beside = index
        return beside

    def with_metadata(self, value: Any) -> ComfyCall:
        """The same call with another declaration in its first file's metadata."""
        return self.with_declaration(0, value)

    def with_declaration(self, index: int, value: Any) -> ComfyCall:
        """The same call with another declaration in one file's metadata; None removes it."""
        _, file = self.files[index]
        if value is None:
            return self.with_file(index, file.without_metadata(METADATA_KEY))
        text = value if isinstance(value, str) else json.dumps(value)
        return self.with_file(index, file.with_metadata(METADATA_KEY, text))

    def with_format(self, name: str) -> ComfyCall:
        """The same call with every file that declares a format as a whole, or the first, of this one."""
        declaring = [index for index, (_, file) in enumerate(self.files) if GLOBAL_KEY in file.metadata]
        call = self
        for index in declaring or [0]:
            call = call.with_file(index, self.files[index][1].with_metadata(GLOBAL_KEY, name))
        return call

    def upstream_arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """The list of files, markers that are left open as the checks take them, and the mapper where there
        is one.
        """
        mapper = [] if self.name_mapper is None else [self.name_mapper]
        assumed = {
            carrier.name: fitted(carrier.reading.value or {}, carrier.header.nbytes)
            for carrier in self.marker_tensors
            if carrier.data is None
        }
        return [[filed(path, file, assumed) for path, file in self.files], *mapper], {}

    def to_call(self, function: str) -> str:
        """Upstream's call on a list of paths; its mapper is a function, and it takes no activation."""
        paths = "[checkpoint]" if self.others is None else "[checkpoint, *others]"
        if self.name_mapper is None:
            return f"{function}({paths})"
        pairs = ", ".join(f"{literal(old)}: {literal(new)}" for old, new in self.name_mapper.items())
        return f"{function}({paths}, lambda prefix: {{{pairs}}}.get(prefix, prefix))"

    def __getstate__(self) -> dict[str, Any]:
        """The arguments alone; decoded JSON can be nested deeper than pickle follows."""
        return self.facts()


PREFIX = "transformer_blocks.0.attn.to_q"
DECODED = {"format": NVFP4, "full_precision_matrix_mult": True}
ROTATED = {"format": INT8, "convrot": True, "convrot_groupsize": 256}
ASYMMETRIC = {"format": W4A8, "convrot": True, "convrot_groupsize": 256, "group_size": 16}

VALID = ComfyCall(
    checkpoint=file_of({PREFIX: (DECODED, nvfp4(128, 64))}),
    name_mapper=NameMapper({PREFIX: f"model.{PREFIX}"}),
    x=TensorSpec((1, 64), DType.BF16),
)


def example(marker: Mapping[str, Any], tensors: Mapping[str, Header], **arguments: Any) -> ComfyCall:
    """A call on a file of one layer, without an activation."""
    return ComfyCall(file_of({PREFIX: (marker, tensors)}), **arguments)


def fit(given: Mapping[str, Any]) -> ComfyCall:
    """Complete a user's arguments: a file of the layers that the mapper lists, as wide as the activation."""
    arguments = dict(given)
    if "checkpoint" not in arguments:
        x = arguments.get("x")
        width = x.shape[-1] if x is not None and x.ndim and x.shape[-1] % 64 == 0 else 64
        names = tuple(map(str, arguments.get("name_mapper") or [arguments.get("layer") or PREFIX]))
        arguments["checkpoint"] = _fitted(names, max(width, 64))
    return ComfyCall(**arguments)


@lru_cache
def _fitted(prefixes: tuple[str, ...], columns: int) -> Checkpoint:
    """One file for all calls of a sweep that leave it out."""
    return file_of(dict.fromkeys(prefixes, (DECODED, nvfp4(128, columns))))
