"""Checkpoint files that may lead to what was captured: a message tells names, types and shapes of tensors."""

from __future__ import annotations

import ast
import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from catalog.match import Capture
from catalog.match.redact import REDACTED
from kernels.call import Call
from kernels.checkpoint import Checkpoint, NameMapper
from kernels.dtypes import DType

MOST_NUMBERS: Final = 16
"""Sizes read from one value."""
MOST_DIGITS: Final = 18
MOST_HEADERS: Final = 16
"""Tensors of a file that are changed in turn."""
_NUMBERS: Final = re.compile(rf"-?[0-9]{{1,{MOST_DIGITS}}}")
_TYPED: Final = re.compile(r"\(?['\"]?([A-Z][A-Z0-9_]{1,12})['\"]?,? ?([(\[][0-9, ]{0,200}[)\]])?\)?")


def numbers(text: str) -> tuple[int, ...]:
    """The whole numbers in a value, the first MOST_NUMBERS."""
    return tuple(int(number) for number in _NUMBERS.findall(text[:400])[:MOST_NUMBERS])


def files(call: Call) -> list[tuple[str, Checkpoint]]:
    """The checkpoints among the arguments."""
    return [(name, value) for name, value in call.stated() if isinstance(value, Checkpoint)]


def renamed(call: Call, old: str, new: str) -> Iterator[Call]:
    """The call with a printed name replaced by the captured one wherever it stands, and with what two tensors
    of a file are exchanged; of lists, name by name.
    """
    before, after = _names(old), _names(new)
    if len(before) != len(after):
        return
    changed = call
    for was, now in zip(before, after, strict=True):
        changed = _with_name(changed, was, now)
    if changed is not call:
        yield changed
    for name, file in files(call):
        for now in after:
            known = _most_alike(file, now)
            if known is not None and known != now:
                ending = _common_ending(known, now)
                if ending:
                    yield _with_name(call, known[:-ending], now[:-ending])
        for was, now in zip(before, after, strict=True):
            if was != now and was in file.tensors and now in file.tensors:
                exchanged = file.with_tensor(was, file.tensors[now]).with_tensor(now, file.tensors[was])
                yield call.replace(**{name: exchanged})


def _names(text: str) -> list[str]:
    """The names in a list, or the one name that the value is."""
    listed = _listed(text)
    return [text.strip("'\"")] if listed is None else listed


def _listed(text: str) -> list[str] | None:
    """A printed list of names."""
    if text[:1] != "[":
        return None
    try:
        listed = ast.literal_eval(text[:4000])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return listed if all(isinstance(name, str) for name in listed) else None


def _with_name(call: Call, old: str, new: str) -> Call:
    """The call with a name replaced in its texts, mappings and files."""
    if len(old) < 3 or not new or old == new or REDACTED in new:
        return call
    changes: dict[str, Any] = {}
    for parameter in call.arguments():
        value = getattr(call, parameter.name)
        if isinstance(value, str) and old in value:
            changes[parameter.name] = value.replace(old, new)
        elif isinstance(value, NameMapper):
            pairs = {key.replace(old, new): mapped.replace(old, new) for key, mapped in value.items()}
            changes[parameter.name] = NameMapper(pairs)
        elif isinstance(value, Checkpoint):
            changes[parameter.name] = Checkpoint(
                {key: _rewritten(text, old, new) for key, text in value.metadata.items()},
                {tensor.replace(old, new): header for tensor, header in value.tensors.items()},
            )
    return call.replace(**changes) if changes else call


def _most_alike(file: Checkpoint, name: str) -> str | None:
    """The tensor of the file whose name ends most like this one."""
    return max(file.tensors, key=lambda known: _common_ending(known, name), default=None)


def _common_ending(left: str, right: str) -> int:
    """How many characters two names have in common at their ends."""
    return common_beginning(left[::-1], right[::-1])


def common_beginning(left: str, right: str) -> int:
    """How many characters two texts have in common at their beginnings."""
    pairs = zip(left, right, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right)))


def _rewritten(text: str, old: str, new: str) -> str:
    """Metadata with a name replaced, in base64 too."""
    if old in text:
        return text.replace(old, new)
    try:
        decoded = base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        return text
    return base64.b64encode(decoded.replace(old, new).encode()).decode() if old in decoded else text


def without_listed(call: Call, capture: Capture, whole: Iterable[Call]) -> Iterator[Call]:
    """Files without the tensors that are listed as missing, or without one where None is printed for it; of
    the call, and of calls with whole files under the names listed.
    """
    listed = _listed(capture.value)
    if capture.value == "None":
        for name, file in files(call):
            for tensor in list(file.tensors)[:MOST_HEADERS]:
                yield call.replace(**{name: file.without_tensors(tensor)})
    if not listed:
        return
    for base in (call, *whole):
        for name, file in files(base):
            known = _most_alike(file, listed[0])
            ending = _common_ending(known, listed[0]) if known else 0
            alike = _with_name(base, known[:-ending], listed[0][:-ending]) if known and ending else base
            file = getattr(alike, name)
            gone = [
                tensor
                for tensor in file.tensors
                if any(tensor == missing or tensor.startswith(f"{missing}.") for missing in listed)
            ]
            yield alike.replace(**{name: file.without_tensors(*gone)})


def retyped(file: Checkpoint, captures: Sequence[Capture]) -> Iterator[Checkpoint]:
    """The file with a captured type, shape, or both in one tensor's entry."""
    told = [typed(capture.value) for capture in captures]
    told += [(left[0], right[1]) for left, right in pairwise(told) if left[0] and right[1] is not None]
    for dtype, shape in told:
        for name, header in list(file.tensors.items())[:MOST_HEADERS]:
            entry = replace(
                header, dtype=dtype or header.dtype, shape=header.shape if shape is None else shape
            )
            if entry != header:
                yield file.with_tensor(name, replace(entry, values=None))


def typed(text: str) -> tuple[str | None, tuple[int, ...] | None]:
    """Type and shape that a value tells, in a header's terms: `BF16`, `(3, 2)`, `('I8', (3, 2))`."""
    if text[:1] in "([" and set(text) <= set("0123456789,()[] "):
        return None, numbers(text)
    found = _TYPED.fullmatch(text)
    if found is None:
        return None, None
    try:
        dtype = DType.parse(found[1]).safetensors
    except ValueError:
        return None, None
    return dtype, None if found[2] is None else numbers(found[2])


def widened(file: Checkpoint, old: int, new: int) -> Checkpoint:
    """The file with every last size in the proportion of two numbers."""
    return replace(
        file,
        tensors={
            name: replace(header, shape=(*header.shape[:-1], header.shape[-1] * new // old))
            if old and new > 0 and header.values is None and len(header.shape) > 1 and header.shape[-1] > 1
            else header
            for name, header in file.tensors.items()
        },
    )


def resized(file: Checkpoint, sizes: Callable[[int], Iterable[int]]) -> Iterator[Checkpoint]:
    """The file with one size of a tensor replaced by each that `sizes` gives for it; described values have
    the size they need.
    """
    for name, header in list(file.tensors.items())[:MOST_HEADERS]:
        for axis, before in enumerate(header.shape if header.values is None else ()):
            for size in sizes(before):
                shape = (*header.shape[:axis], size, *header.shape[axis + 1 :])
                yield file.with_tensor(name, replace(header, shape=shape))


def storable(call: Call) -> bool:
    """Whether every tensor in the call's files fills whole bytes."""
    return all(
        header.numel * DType.parse(header.dtype).bits % 8 == 0
        for _, file in files(call)
        for header in file.tensors.values()
    )
