"""All files of a target, over the cores; one that cannot be read, or that kills its reader, stops nothing."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as TookTooLong
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from pebble import ProcessExpired, ProcessPool

from catalog.scan import python
from catalog.scan.listing import CPP, CYTHON, LARGEST, Listed, too_large
from catalog.scan.macros import Macros
from catalog.scan.model import Scanned, Unreadable

BATCH: Final = 1 << 19
"""Bytes of source that a process is given at a time."""
SECONDS: Final = 60.0
"""Time for one batch; a file that takes longer alone is reported."""

Result = Scanned | Unreadable


@dataclass(frozen=True, slots=True)
class Progress:
    """How many of the files are done."""

    done: int
    total: int


def scan_files(
    files: Sequence[Listed],
    macros: Macros,
    *,
    processes: int | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> list[Result]:
    """One result for each file, in their order."""
    batches = list(_batches(files))
    results: dict[str, Result] = {}
    with ProcessPool(max_workers=processes or os.cpu_count() or 1, context=get_context("spawn")) as pool:
        waiting = [(batch, pool.schedule(scan_batch, (batch, macros), timeout=SECONDS)) for batch in batches]
        for batch, future in waiting:
            try:
                found = future.result()
            except (ProcessExpired, TookTooLong):
                # One of them is to blame: each alone, so that the others are not lost.
                found = [_alone(pool, item, macros) for item in batch]
            results.update((result.path, result) for result in found)
            progress(Progress(len(results), len(files)))
    return [results[item.path] for item in files]


def _alone(pool: ProcessPool, item: Listed, macros: Macros) -> Result:
    try:
        return pool.schedule(scan_batch, ([item], macros), timeout=SECONDS).result()[0]
    except ProcessExpired:
        return Unreadable(item.path, "the process that read it died")
    except TookTooLong:
        return Unreadable(item.path, f"not read within {SECONDS:.0f} s")


def scan_batch(batch: Sequence[Listed], macros: Macros) -> list[Result]:
    """The results of some files, in this process."""
    collecting = gc.isenabled()
    gc.disable()  # syntax trees have no cycles, and looking for some takes a quarter of the time
    try:
        with warnings.catch_warnings():
            # What Python has to say about the literals of a stranger's file.
            warnings.simplefilter("ignore")
            return [_scan(item, macros) for item in batch]
    finally:
        if collecting:
            gc.enable()


def _scan(item: Listed, macros: Macros) -> Result:
    try:
        data = item.content if isinstance(item.content, bytes) else _read(item.content)
        if len(data) > LARGEST:
            return Unreadable(item.path, too_large())
        if item.path.endswith(CPP):
            from catalog.scan import cpp

            return cpp.scan(item.path, data, macros)
        if item.path.endswith(CYTHON):
            from catalog.scan import cython

            return cython.scan(item.path, data)
        return python.scan(item.path, data)
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno is not None else ""
        return Unreadable(item.path, f"{where}{error.msg}")
    except OSError as error:
        return Unreadable(item.path, error.strerror or type(error).__name__)
    except (ValueError, RecursionError, MemoryError) as error:
        return Unreadable(item.path, f"{type(error).__name__}: {error}"[:200])


def _read(path: Path) -> bytes:
    with path.open("rb") as opened:
        return opened.read(LARGEST + 1)


def _batches(files: Sequence[Listed]) -> Iterator[list[Listed]]:
    batch: list[Listed] = []
    size = 0
    for item in files:
        batch.append(item)
        size += len(item.content) if isinstance(item.content, bytes) else _size(item.content)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
