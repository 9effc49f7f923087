"""Random calls of an operation, right and wrong ones, made of its own signature and its checks' examples.

Nothing here knows an operation: a new one is drawn from as it stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

from kernels.call import Argument, Call
from kernels.checkpoint import Checkpoint, NameMapper
from kernels.dtypes import DType
from kernels.registry import Operation
from kernels.safetensors_file.file_start import FileStart
from kernels.shards import Shards
from kernels.spec import TensorSpec, row_major

SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 64, 96, 127, 128, 192, 256, 512)
SCALARS: tuple[Any, ...] = (0, 1, 2, 3, 16, 32, 48, 64, 96, 100, 128, 256, -1, -128, 130, 8192, 10**30)
OTHER_SCALARS: tuple[Any, ...] = (None, True, False, 128.0, 0.5, 2.0, "x", "silu", "dense", "256", "")
DEVICES = ("cpu", "cuda", "cuda:0")
DTYPES = tuple(dtype for dtype in DType if dtype.in_torch)
STORED = tuple(dtype.safetensors for dtype in DType if dtype.safetensors)
TEXTS = ("", "{}", "[]", "[1]", '"x"', "mxfp8", "quanto", "Quanto", "e30=", "e30", "!!!", "bnVsbA==", "null")

LARGEST = 64 << 20
"""Bytes of tensors beyond which a call is not drawn."""


def calls(operation: Operation, seed: int) -> Iterator[Call]:
    """Distinct calls without end: a known call with none, one or several of its parts changed."""
    random = Random(f"{operation.name} {seed}")
    known = _known(operation.name)
    seen: set[int] = set()
    while True:
        call = random.choice(known)
        for _ in range(random.choice((0, 1, 1, 1, 2, 2, 3))):
            call = changed(call, random)
        try:
            mark = hash(call)
        except TypeError:
            continue
        if mark in seen or not call.describable:
            continue
        seen.add(mark)
        if sum(getattr(value, "storage_bytes", 0) for _, value in call.stated()) <= LARGEST:
            yield call


@cache
def _known(name: str) -> tuple[Call, ...]:
    """The valid call, each check's example, and what the first fixes make of it."""
    from kernels.registry import operations

    operation = operations()[name]
    found: dict[Call, None] = {operation.valid: None}
    for check in operation.checks:
        example = check.example()
        if example is None:
            continue
        found[example] = None
        for outcome in operation.examine(example).failed():
            for occurrence in outcome.occurrences[:1]:
                for fix in list(occurrence.violation.fixes(occurrence.subject))[:2]:
                    if isinstance(fix.call, operation.call):
                        found[fix.call] = None
    return tuple(found)


def changed(call: Call, random: Random) -> Call:
    """The call with one part of it changed, which may leave it right."""
    parameter = random.choice(call.arguments())
    value = getattr(call, parameter.name)
    return call.replace(**{parameter.name: _other(parameter, value, call, random)})


def _other(parameter: Argument, value: Any, call: Call, random: Random) -> Any:
    if parameter.nullable and value is not None and random.random() < 0.15:
        return None
    if isinstance(value, TensorSpec):
        return tensor(value, random)
    if isinstance(value, Checkpoint):
        return checkpoint(value, random)
    if isinstance(value, FileStart):
        return start(value, random)
    if isinstance(value, NameMapper):
        names = list(value) or ["a"]
        return NameMapper({**value, random.choice(names): random.choice((*value.values(), "x", ""))})
    if isinstance(value, Shards):
        name = random.choice(list(value) or ["b.safetensors"])
        return Shards({**value, name: checkpoint(value.get(name, Checkpoint({}, {})), random)})
    if value is None:
        return _present(parameter, call, random)
    if isinstance(value, DType):
        return random.choice(DTYPES)
    if isinstance(value, bool):
        return (not value) if random.random() < 0.9 else random.choice(OTHER_SCALARS)
    if isinstance(value, str):
        return random.choice(("", "x", "silu", "swish", "dense", "legacy", value + "x"))
    near = (value + 1, value - 1, value * 2, value + 8, -value) if type(value) is int else (value,)
    return random.choice(random.choice((near, SCALARS, SCALARS, OTHER_SCALARS)))


def _present(parameter: Argument, call: Call, random: Random) -> Any:
    """Something for an argument that is absent."""
    if parameter.is_tensor:
        like = random.choice([spec for _, spec in call.tensors()] or [TensorSpec((4,), DType.F32)])
        dtype = random.choice((like.dtype, DType.I32, DType.I64, DType.F32, DType.BOOL))
        return tensor(replace(like, dtype=dtype, values=None), random)
    if parameter.kind is DType:
        return random.choice(DTYPES)
    if parameter.kind is bool:
        return random.random() < 0.5
    if parameter.kind in (int, float):
        return random.choice(SCALARS)
    if parameter.kind is str:
        return random.choice(("silu", "swish", "gelu", ""))
    return None


def tensor(spec: TensorSpec, random: Random) -> TensorSpec:
    """A tensor with one attribute changed; described values go with its shape."""
    shape, strides = list(spec.shape), list(spec.strides)
    match random.choice(("dtype", "size", "size", "rank", "strides", "strides", "wider", "offset", "device")):
        case "dtype":
            return replace(spec, dtype=random.choice(DTYPES), values=None)
        case "size" if shape:
            at = random.randrange(len(shape))
            near = (shape[at] + 1, max(shape[at] - 1, 0), shape[at] * 2, shape[at] // 2)
            shape[at] = random.choice((random.choice(near), random.choice(SIZES)))
            return spec.with_shape(*shape)
        case "rank":
            made = random.choice(([*shape, 1], [1, *shape], shape[:-1], shape[1:], shape[::-1], []))
            return spec.with_shape(*made)
        case "strides" if strides:
            at = random.randrange(len(strides))
            step = strides[at]
            strides[at] = random.choice((0, 1, 2, step + 1, step + 4, step + 8, step + 32, step * 2))
            return replace(spec, strides=tuple(strides))
        case "wider" if len(shape) > 1:
            wider = row_major((*shape[:-1], shape[-1] + random.choice((1, 4, 8, 16, 32, 64, 128))))
            return replace(spec, strides=wider)
        case "offset":
            return replace(spec, offset=random.choice((1, 2, 4, 8, 16, 32, 64)))
        case "device":
            return replace(spec, device=random.choice(DEVICES))
        case _:
            return replace(spec, strides=tuple(reversed(row_major(tuple(reversed(shape))))))


def checkpoint(file: Checkpoint, random: Random) -> Checkpoint:
    """A file with one entry of its header changed."""
    what = random.choice(("dtype", "size", "size", "rank", "without", "name", "copy", "metadata", "metadata"))
    if what == "metadata" or not file.tensors:
        if not file.metadata or random.random() < 0.2:
            return file.with_metadata(
                random.choice(("format", "quantization_format", "x")), random.choice(TEXTS)
            )
        key = random.choice(list(file.metadata))
        old = file.metadata[key]
        cut = random.randrange(len(old) + 1)
        new = random.choice((random.choice(TEXTS), old[:cut], old + " ", old[:cut] + old[cut + 1 :]))
        return file.without_metadata(key) if random.random() < 0.2 else file.with_metadata(key, new)
    name = random.choice(list(file.tensors))
    header = file.tensors[name]
    shape = list(header.shape)
    match what:
        case "dtype":
            return file.with_tensor(name, replace(header, dtype=random.choice(STORED)))
        case "size" if shape:
            at = random.randrange(len(shape))
            shape[at] = random.choice((shape[at] + 1, max(shape[at] - 1, 0), shape[at] * 2, *SIZES))
            return file.with_tensor(name, replace(header, shape=tuple(shape)))
        case "rank":
            made = random.choice(([*shape, 1], [1, *shape], shape[:-1], shape[::-1], []))
            return file.with_tensor(name, replace(header, shape=tuple(made)))
        case "without":
            return file.without_tensors(name)
        case "copy":
            return file.with_tensor(_renamed(name, file, random), header)
        case _:
            return file.without_tensors(name).with_tensor(_renamed(name, file, random), header)


def _renamed(name: str, file: Checkpoint, random: Random) -> str:
    """A name with another layer's prefix or another tensor's suffix."""
    prefix, _, suffix = name.rpartition(".")
    other_prefix, _, other_suffix = random.choice(list(file.tensors)).rpartition(".")
    return random.choice(
        (
            f"{prefix}.{other_suffix}",
            f"{other_prefix}.{suffix}",
            f"z.{suffix}",
            f"{prefix}.{suffix}_2",
            suffix,
        )
    )


def start(file: FileStart, random: Random) -> FileStart:
    """A file's beginning with bytes changed, cut off or added, or of another size."""
    data = bytearray(file.data)
    match random.choice(("byte", "byte", "digit", "cut", "add", "size")):
        case "byte" if data:
            data[random.randrange(len(data))] = random.randrange(256)
        case "digit" if data:
            places = [place for place, byte in enumerate(data) if chr(byte).isdigit()]
            if places:
                data[random.choice(places)] = random.choice(b"0123456789")
        case "cut":
            data = data[: random.randrange(len(data) + 1)]
        case "add":
            data += bytes(random.randrange(256) for _ in range(random.randrange(9)))
        case _:
            return FileStart(bytes(data), random.choice((None, len(data), len(data) + 1, len(data) * 2)))
    return FileStart(bytes(data), len(data))
