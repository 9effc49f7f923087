"""A target → a snapshot on the shelf."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from catalog.scan.extracted import records
from catalog.scan.macros import Macros
from catalog.scan.model import Scanned, Unreadable
from catalog.scan.run import Progress, scan_files
from catalog.scan.targets import resolved
from catalog.snapshots.manifest import Held
from catalog.snapshots.shelf import Shelf
from catalog.snapshots.write import write


@dataclass(frozen=True, slots=True)
class Indexed:
    """What came of a target; sites are counted by the language of their file."""

    held: Held
    files: int
    python_sites: int
    cpp_sites: int
    unreadable: tuple[Unreadable, ...]
    seconds: float


def index(
    shelf: Shelf,
    target: str,
    *,
    upstream: str | None = None,
    macros: Macros | None = None,
    code: bool = True,
    processes: int | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Indexed:
    """Scan a target and put its snapshot on the shelf; TargetError for what cannot be scanned.

    `code` keeps the lines around each site: only for the user's own index.
    """
    started = perf_counter()
    with resolved(target, upstream) as found:
        results = scan_files(found.files, macros or Macros(), processes=processes, progress=progress)
    scanned = [result for result in results if isinstance(result, Scanned)]
    unreadable = (*found.unreadable, *(result for result in results if isinstance(result, Unreadable)))
    path = write(
        shelf.folder,
        package=found.name,
        version=found.version,
        upstream=found.upstream,
        summary=found.summary,
        records=list(records(found.upstream.repo, scanned)),
        unreadable=unreadable,
        code={file.path: file.code for file in scanned if file.sites or file.calls} if code else {},
    )
    try:
        [held] = shelf.add(path)
    finally:
        path.unlink(missing_ok=True)
    return Indexed(
        held,
        len(results) + len(found.unreadable),
        sum(len(file.sites) for file in scanned if file.language == "python"),
        sum(len(file.sites) for file in scanned if file.language == "cpp"),
        unreadable,
        perf_counter() - started,
    )
