"""Repairs, and the comparisons behind them: shapes of scales, names of the map and of the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from kernels.checkpoint import Checkpoint, Header
from kernels.quanto_int8_checkpoint.quantization_map import MAP_KEY, encode
from kernels.quanto_int8_checkpoint.signature import CODE_DTYPE, SCALE, SCALE_DTYPES, Layer, QuantoCall
from kernels.values import Ones

CANDIDATES = 8
"""Leading parts tried when names differ, so that hostile names cost no more than honest ones."""


@dataclass(frozen=True)
class Change:
    """A repair of one layer: tensors (None removes) and its entry in the map (None removes)."""

    title: str
    safe: bool
    note: str = ""
    tensors: Mapping[str, Header | None] = field(default_factory=dict)
    entries: Mapping[str, Any] = field(default_factory=dict)


def applied(call: QuantoCall, changes: list[Change]) -> QuantoCall | None:
    """The call with changes made; None where no layer would be left in the map."""
    tensors: dict[str, Header | None] = dict(call.checkpoint.tensors)
    entries = dict(call.map)
    for change in changes:
        tensors |= change.tensors
        for prefix, declared in change.entries.items():
            if declared is None:
                del entries[prefix]
            else:
                entries[prefix] = declared
    metadata = dict(call.checkpoint.metadata)
    if entries != call.map:
        metadata[MAP_KEY] = encode(entries)
    file = Checkpoint(metadata, {name: header for name, header in tensors.items() if header is not None})
    return call.with_checkpoint(file) if entries else None


def matrix_shape(shape: tuple[int, ...], scale: Header | None) -> tuple[int, int] | None:
    """[N, K] of a packed weight: its own sizes, else N by the scales, one a row, else by its first size."""
    if len(shape) == 2:
        return shape[0], shape[1]
    numel = Header(CODE_DTYPE, shape).numel
    if scale is not None and scale.shape in ((scale.numel,), (scale.numel, 1)):
        rows = scale.numel
    elif len(shape) > 2:
        rows = shape[0]
    else:
        return None
    return (rows, numel // rows) if rows and numel % rows == 0 else None


def scale_faults(scale: Header, matrix: Header | None) -> list[str]:
    """What is wrong with a row scale, as ends of a sentence; without a weight, what is wrong for every N."""
    faults = []
    if scale.dtype not in SCALE_DTYPES:
        faults.append(f"is {scale.dtype}, none of {', '.join(SCALE_DTYPES)}")
    if matrix is None:
        if len(scale.shape) != 2 or scale.shape[1] != 1:
            faults.append(f"has the shape {list(scale.shape)}, which is no column [N, 1]")
    elif scale.shape != (matrix.shape[0], 1):
        faults.append(_wrong_shape(scale, *matrix.shape))
    return faults


def _wrong_shape(scale: Header, rows: int, columns: int) -> str:
    shape, wanted = list(scale.shape), [rows, 1]
    if scale.numel == rows:
        return f"has one value a row, but as {shape} where {wanted} is needed"
    if scale.numel == 1:
        return f"is one value for all of the weight; one a row is needed, {wanted}"
    if shape in ([columns], [1, columns]):
        return f"has one value a column, {shape}; only one a row is supported, {wanted}"
    if rows and scale.numel and scale.numel % rows == 0:
        groups = scale.numel // rows
        return f"has {groups} values a row, {shape}: group-wise scales are not supported, only {wanted}"
    return f"has {scale.numel} values, {shape}, for {rows} rows; {wanted} is needed"


def scalars(layer: Layer, wrong: Mapping[str, Header]) -> Change:
    """Make these auxiliary scales 0-d; a type that is not allowed becomes that of the layer's row scale."""
    row = layer.tensor(SCALE)
    dtype = row.dtype if row is not None and row.dtype in SCALE_DTYPES else "F32"
    tensors: dict[str, Header | None] = {}
    titles, notes, safe = [], [], True
    for name, header in wrong.items():
        target = header.dtype if header.dtype in SCALE_DTYPES else dtype
        tensors[name] = Header(target, (), header.values if header.numel == 1 else Ones())
        if header.numel != 1:
            titles.append(f"replace {name!r} {list(header.shape)} by one number")
            notes.append("several values are scales of quantized activations, which are not supported")
            safe = False
        elif header.shape:
            titles.append(f"squeeze {name!r} from {list(header.shape)} to []")
        if header.dtype != target:
            titles.append(f"convert {name!r} from {header.dtype} to {target}")
    title = " and ".join(titles)
    return Change(title[0].upper() + title[1:], safe, "; ".join(dict.fromkeys(notes)), tensors)


def one_sided(call: QuantoCall) -> tuple[list[str], list[str]]:
    """Prefixes that only the file has, and that only the map has, sorted."""
    in_file, in_map = set(call.packed), set(call.map)
    return sorted(in_file - in_map), sorted(in_map - in_file)


def renaming(untold: list[str], absent: list[str]) -> dict[str, str]:
    """The map's names → the file's, where all differ by the same leading part; else nothing."""
    if not absent or len(untold) != len(absent):
        return {}
    longest = max(absent, key=len)
    alike = (name for name in untold if name.endswith(longest) or longest.endswith(name))
    for name in islice(alike, CANDIDATES):
        if name.endswith(longest):
            lead = name.removesuffix(longest)
            pairs = {old: lead + old for old in absent}
        else:
            lead = longest.removesuffix(name)
            pairs = {old: old.removeprefix(lead) for old in absent}
        if sorted(pairs.values()) == untold:
            return pairs
    return {}
