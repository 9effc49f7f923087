"""Files that hold one component together: tensors in two of them, files that are missing, and their index."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from kernels.checkpoint import Checkpoint

INDEX = ".index.json"
"""How the name of a component's index ends: the file that says which shard holds which tensor."""

MAX_INDEX = 64 * 1024 * 1024
"""Bytes of an index that is read from a file; those of the largest models have some MiB."""

SHOWN = 3
"""Names in one sentence."""

_NUMBERED = re.compile(r"(.*)-([0-9]{1,6})-of-([0-9]{1,6})(\.[a-z0-9]+)")


class NoIndex(ValueError):
    """Not an index; the message says why."""


def read_index(data: bytes) -> dict[str, str]:
    """Tensor name → file name, from an index's `weight_map`; raises NoIndex."""
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NoIndex(f"the index is not JSON: {error}") from None
    found = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise NoIndex("the index has no weight_map of tensor name → file name")
    return found


def told_of(files: Mapping[str, Checkpoint], index: Mapping[str, str] | None) -> Iterator[str]:
    """Sentences on what is wrong with files as parts of one component."""
    yield from _repeated(files)
    yield from _missing(files)
    if index is not None:
        yield from _against(files, index)


def _repeated(files: Mapping[str, Checkpoint]) -> Iterator[str]:
    held: dict[str, list[str]] = {}
    for path, file in files.items():
        for name in file.tensors:
            held.setdefault(name, []).append(path)
    twice = [name for name, paths in held.items() if len(paths) > 1]
    if twice:
        where = " and ".join(map(repr, held[twice[0]]))
        yield (
            f"{_count(twice, 'tensor')} in more than one file, such as {twice[0]!r} in {where}: "
            "which of them is loaded depends on the order of reading"
        )


def _missing(files: Iterable[str]) -> Iterator[str]:
    """Shards of a numbered series that were not given."""
    series: dict[tuple[str, int, str], set[int]] = {}
    for path in files:
        found = _NUMBERED.fullmatch(PurePath(path).name)
        if found:
            series.setdefault((found[1], int(found[3]), found[4]), set()).add(int(found[2]))
    for (stem, total, _), numbers in series.items():
        absent = total - len(numbers & set(range(1, total + 1))) if total <= 100_000 else 0
        if absent:
            yield f"{absent:,} of the {total:,} files of {stem!r} were not given, nor looked at"


def _against(files: Mapping[str, Checkpoint], index: Mapping[str, str]) -> Iterator[str]:
    by_name = {PurePath(path).name: file for path, file in files.items()}
    lost = [name for name, path in index.items() if path in by_name and name not in by_name[path].tensors]
    if lost:
        yield (
            f"{_count(lost, 'tensor')} missing from the file that the index names, such as {lost[0]!r} from "
            f"{index[lost[0]]!r}"
        )
    unknown = [name for file in files.values() for name in file.tensors if name not in index]
    if unknown:
        yield f"{_count(unknown, 'tensor')} not in the index, such as {unknown[0]!r}"
    absent = sorted({path for path in index.values() if path not in by_name})
    if absent:
        names = ", ".join(map(repr, absent[:SHOWN])) + (" …" if len(absent) > SHOWN else "")
        yield f"{len(absent):,} file{'s' * (len(absent) > 1)} of the index not given: {names}"


def _count(names: Collection[str], noun: str) -> str:
    return f"1 {noun} is" if len(names) == 1 else f"{len(names):,} {noun}s are"
