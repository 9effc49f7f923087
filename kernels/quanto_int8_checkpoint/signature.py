"""The call of quanto_int8_checkpoint: a described file and its layers, and a valid one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import log2
from typing import Any, ClassVar

from kernels.call import Call, argument
from kernels.checkpoint import Checkpoint, Header, NameMapper
from kernels.dtypes import DType
from kernels.expressions import literal
from kernels.filed import filed
from kernels.quanto_int8_checkpoint.quantization_map import (
    FORMAT,
    FORMAT_KEY,
    MAP_KEY,
    MapFault,
    decode,
    encode,
    entry,
)
from kernels.rendering import WIDTH
from kernels.spec import TensorSpec
from kernels.upstream import SGLANG, File, Site
from kernels.values import Listed, Ones, Randint, Randn, Values, Zeros

SOURCE = File(
    SGLANG,
    "python/sglang/multimodal_gen/runtime/layers/quantization/configs/quanto_int8_config.py",
    length=194,
)

MODULE = "sglang.multimodal_gen.runtime.layers.quantization.configs.quanto_int8_config"
FUNCTION = "inspect_quanto_int8_checkpoint"

DATA = "weight._data"
SCALE = "weight._scale"
INPUT = "input_scale"
OUTPUT = "output_scale"
REQUIRED = (DATA, SCALE, INPUT, OUTPUT)
DENSE = "weight"
BIAS = "bias"

CODE_DTYPE = "I8"
SCALE_DTYPES = ("BF16", "F16", "F32")
ACTIVATION_DTYPES = (DType.BF16, DType.F16, DType.F32)
CODE_DEVIATION = 73.6
"""Standard deviation of codes drawn evenly from -127 to 127."""


def at(line: int, function: str = FUNCTION) -> tuple[Site, ...]:
    """Where upstream raises; the pinned commit and the release agree on every line."""
    return (SOURCE.at(function, line, line),)


@dataclass(frozen=True)
class QuantoCall(Call):
    """Arguments of an inspection. A layer has N output rows and K input columns."""

    positional: ClassVar[int] = 1

    checkpoint: Checkpoint = argument(
        "a safetensors file: its string metadata, and dtype and shape of each tensor"
    )
    name_mapper: NameMapper | None = argument(
        "layer prefix in the file → prefix in the model; identity if None", default=None
    )
    x: TensorSpec | None = argument(
        "activation [.., K] for one of the layers; bfloat16, float16 or float32", default=None
    )

    @property
    def is_quanto(self) -> bool:
        """Whether the file declares itself a Quanto checkpoint, to the letter."""
        return self.checkpoint.metadata.get(FORMAT_KEY) == FORMAT

    @property
    def encoded_map(self) -> str | None:
        """The map as the metadata holds it."""
        return self.checkpoint.metadata.get(MAP_KEY)

    @cached_property
    def _decoded(self) -> tuple[Any, str]:
        try:
            return decode(self.encoded_map or ""), ""
        except MapFault as fault:
            return None, str(fault)

    @property
    def map(self) -> Any:
        """The decoded map: any JSON value, None where it cannot be decoded."""
        return self._decoded[0]

    @property
    def map_fault(self) -> str:
        """Why the map cannot be decoded; empty where it can."""
        return self._decoded[1]

    @cached_property
    def packed(self) -> tuple[str, ...]:
        """Prefixes that have a tensor `.weight._data`, in the file's order."""
        ending = f".{DATA}"
        return tuple(name.removesuffix(ending) for name in self.checkpoint.tensors if name.endswith(ending))

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The map's layers in its order; none where the map is no object."""
        first: dict[str, str] = {}
        found = []
        for prefix, declared in self.map.items() if isinstance(self.map, dict) else ():
            mapped = self.mapped(prefix)
            found.append(Layer(self, prefix, declared, mapped, first.get(mapped)))
            first.setdefault(mapped, prefix)
        return tuple(found)

    @cached_property
    def ignored(self) -> Mapping[str, list[str]]:
        """Layer prefix → tensors right under it, or under its weight, that a load leaves out."""
        known = {layer.name(suffix) for layer in self.layers for suffix in (*REQUIRED, DENSE, BIAS)}
        prefixes = {layer.prefix for layer in self.layers}
        found: dict[str, list[str]] = {}
        for name in self.checkpoint.tensors:
            for separator in (f".{DENSE}.", "."):
                prefix, dot, _ = name.rpartition(separator)
                if dot and prefix in prefixes and name not in known:
                    found.setdefault(prefix, []).append(name)
                    break
        return found

    @property
    def operand(self) -> Layer | None:
        """The layer that x goes through: the first whose K is x's last size."""
        if self.x is None or self.x.ndim == 0:
            return None
        return next((layer for layer in self.layers if layer.columns == self.x.shape[-1]), None)

    @property
    def all_qint8(self) -> bool:
        """Whether every packed layer has the tensors of qint8, whatever the map says."""
        return all(self.layer(prefix).is_qint8 for prefix in self.packed)

    def layer(self, prefix: str) -> Layer:
        """What the file has under a prefix, whether or not the map lists it."""
        return Layer(self, prefix, None, self.mapped(prefix), None)

    def mapped(self, prefix: str) -> str:
        """A layer's prefix in the model."""
        return prefix if self.name_mapper is None else self.name_mapper(prefix)

    def with_checkpoint(self, checkpoint: Checkpoint) -> QuantoCall:
        """The same call on another file."""
        return self.replace(checkpoint=checkpoint)

    def with_map(self, quantization_map: Any) -> QuantoCall:
        """The same file with another map; text is taken as JSON already."""
        return self.with_checkpoint(self.checkpoint.with_metadata(MAP_KEY, encode(quantization_map)))

    def upstream_arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """The file, and the mapper where there is one."""
        mapper = [] if self.name_mapper is None else [self.name_mapper]
        return [filed("checkpoint.safetensors", self.checkpoint), *mapper], {}

    def to_call(self, function: str) -> str:
        """Upstream's call on the file's path; its mapper is a function, and it takes no activation."""
        if self.name_mapper is None:
            return f"{function}(checkpoint)"
        pairs = [f"{literal(old)}: {literal(new)}" for old, new in self.name_mapper.items()]
        line = f"{function}(checkpoint, lambda prefix: {{{', '.join(pairs)}}}.get(prefix, prefix))"
        if len(line) <= WIDTH:
            return line
        listed = "".join(f"        {pair},\n" for pair in pairs)
        mapper = f"lambda prefix: {{\n{listed}    }}.get(prefix, prefix)"
        return f"{function}(\n    checkpoint,\n    {mapper},\n)"

    def __getstate__(self) -> dict[str, Any]:
        """The arguments alone; a decoded map can be nested deeper than pickle follows."""
        return self.facts()


@dataclass(frozen=True)
class Layer:
    """One entry of the map, and the tensors that the file has under its prefix.

    declared   the entry's JSON value; an object where the map is sound
    mapped     the prefix in the model
    taken_by   the earlier layer with the same prefix in the model, None where there is none
    """

    call: QuantoCall
    prefix: str
    declared: Any
    mapped: str
    taken_by: str | None

    def name(self, suffix: str) -> str:
        """A tensor's full name."""
        return f"{self.prefix}.{suffix}"

    def tensor(self, suffix: str) -> Header | None:
        """A tensor of the layer, None where the file does not have it."""
        return self.call.checkpoint.tensors.get(self.name(suffix))

    @property
    def matrix(self) -> Header | None:
        """The packed weight, where it is there and has two dimensions."""
        data = self.tensor(DATA)
        return data if data is not None and len(data.shape) == 2 else None

    @property
    def rows(self) -> int | None:
        """N, None without a two-dimensional packed weight."""
        return None if self.matrix is None else self.matrix.shape[0]

    @property
    def columns(self) -> int | None:
        """K, None without a two-dimensional packed weight."""
        return None if self.matrix is None else self.matrix.shape[1]

    @property
    def ignored(self) -> list[str]:
        """Full names of tensors under the prefix that belong to no qint8 layer, in the file's order."""
        return self.call.ignored.get(self.prefix, [])

    def describe(self, *suffixes: str) -> str:
        """These tensors of the layer, with type and shape."""
        return ", ".join(f"{self.name(suffix)!r} {self.tensor(suffix) or 'absent'}" for suffix in suffixes)

    @property
    def is_qint8(self) -> bool:
        """Whether the tensors are those of a qint8 layer, whatever the map says of it."""
        scale, matrix = self.tensor(SCALE), self.matrix
        return (
            matrix is not None
            and matrix.dtype == CODE_DTYPE
            and scale is not None
            and scale.dtype in SCALE_DTYPES
            and scale.shape == (matrix.shape[0], 1)
            and all(is_float_scalar(self.tensor(suffix)) for suffix in (INPUT, OUTPUT))
        )


def is_float_scalar(header: Header | None) -> bool:
    """Whether a tensor is one number, without dimensions, of a type that scales may have."""
    return header is not None and header.dtype in SCALE_DTYPES and header.shape == ()


def quanto(prefixes: Iterable[str], rows: int, columns: int, dtype: str = "BF16") -> Checkpoint:
    """A file that holds each prefix as a qint8 layer of N rows and K columns, its scales of one type."""
    prefixes = list(prefixes)
    forms = {
        DATA: Header(CODE_DTYPE, (rows, columns)),
        SCALE: Header(dtype, (rows, 1)),
        INPUT: Header(dtype, ()),
        OUTPUT: Header(dtype, ()),
    }
    return Checkpoint(
        {FORMAT_KEY: FORMAT, MAP_KEY: encode({prefix: entry() for prefix in prefixes})},
        {f"{prefix}.{suffix}": header for prefix in prefixes for suffix, header in forms.items()},
    )


PREFIX = "language_model.layers.0.mlp.up_proj"

VALID = QuantoCall(
    checkpoint=quanto([PREFIX], 3, 2),
    name_mapper=NameMapper({PREFIX: f"model.{PREFIX}"}),
    x=TensorSpec((1, 2), DType.BF16),
)


def fit(given: Mapping[str, Any]) -> QuantoCall:
    """Complete a user's arguments: a file of the layers that the mapper lists, as wide as the activation."""
    arguments = dict(given)
    if "checkpoint" not in arguments:
        x = arguments.get("x")
        width = x.shape[-1] if x is not None and x.ndim else 2
        arguments["checkpoint"] = quanto(arguments.get("name_mapper") or [PREFIX], 3, width)
    return QuantoCall(**arguments)


def fill(call: QuantoCall) -> Mapping[str, Values]:
    """Normal activations; for the checkpoint, the codes of every packed weight."""
    values: dict[str, Values] = {"checkpoint": Randint(-127, 128)}
    if call.x is not None:
        values["x"] = Randn()
    return values


def contents(call: QuantoCall, codes: Randint) -> Iterator[tuple[str, Header, Values]]:
    """(name, header, what it holds) of every tensor in the file: its described values, else by its role.

    Row scales make outputs of a few units for normal activations, whatever K is, and are exact in every type
    they may have. Auxiliary scales are 1, as the format demands.
    """
    widths = {layer.name(SCALE): layer.columns for layer in call.layers}
    for place, (name, header) in enumerate(call.checkpoint.tensors.items()):
        if header.values is not None:
            yield name, header, header.values
        elif name.endswith(f".{DATA}"):
            yield name, header, Randint(codes.low, codes.high, seed=(codes.seed or 0) + place)
        elif name.endswith(f".{SCALE}"):
            step = 2.0 ** -round(log2(CODE_DEVIATION * max(widths.get(name) or 1, 1) ** 0.5))
            yield name, header, Listed((4 * step, 2 * step, 3 * step))
        elif name.endswith((f".{INPUT}", f".{OUTPUT}")):
            yield name, header, Ones()
        else:
            yield name, header, Zeros()
