"""The list of snapshots, in a folder or in a bundle: read as what a stranger may have written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

NAME: Final = "manifest.json"
LARGEST: Final = 4 << 20
"""Bytes of a manifest; ours have 300 a snapshot."""
MOST: Final = 2000
"""Snapshots of one manifest."""

_TEXTS: Final = {
    "path": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,190}\.sqlite"),
    "sha256": re.compile("[0-9a-f]{64}"),
    "package": re.compile("[a-z0-9](?:[a-z0-9-]{0,98}[a-z0-9])?"),
    "version": re.compile("[A-Za-z0-9_.!+-]{1,100}"),
    "repo": re.compile("[A-Za-z0-9_.-]{1,100}(?:/[A-Za-z0-9_.-]{1,100})?"),
    "made": re.compile("[0-9TZ:.+-]{1,40}"),
}
_NUMBERS: Final = ("bytes", "records")


class SnapshotError(Exception):
    """A snapshot, or a list of them, that cannot be used; the message names it and what to do."""


@dataclass(frozen=True, slots=True)
class Held:
    """One snapshot as a manifest names it; `bytes` and `sha256` are the file's."""

    path: str
    sha256: str
    bytes: int
    package: str
    version: str
    repo: str
    records: int
    made: str


def acceptable(name: str, value: object) -> bool:
    """Whether a field of a manifest's entry, or of a snapshot's own description, may have a value."""
    if name in _NUMBERS:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 48
    return isinstance(value, str) and _TEXTS[name].fullmatch(value) is not None


def read(data: bytes) -> tuple[list[Held], list[str]]:
    """The entries of a manifest, and what is wrong with those that are left out; SnapshotError for what is no
    manifest at all.
    """
    if len(data) > LARGEST:
        raise SnapshotError(f"{NAME}: larger than {LARGEST >> 20} MiB")
    try:
        document = json.loads(data)
    except RecursionError:
        raise SnapshotError(f"{NAME}: nested too deeply") from None
    except ValueError as error:
        raise SnapshotError(f"{NAME}: {error}"[:200]) from None
    files = document.get("files") if isinstance(document, dict) else None
    if not isinstance(files, list) or len(files) > MOST:
        raise SnapshotError(f"{NAME}: it has no list of at most {MOST} `files`")
    held: list[Held] = []
    problems: list[str] = []
    known: set[object] = set()
    for number, item in enumerate(files):
        if (wrong := _wrong(item)) is not None:
            problems.append(f"{NAME}: entry {number} {wrong}")
            continue
        entry = Held(**item)
        if {entry.path, (entry.package, entry.version)} & known:
            problems.append(f"{NAME}: entry {number} names a file or a version a second time")
            continue
        known |= {entry.path, (entry.package, entry.version)}
        held.append(entry)
    return held, problems


def written(held: Iterable[Held]) -> bytes:
    """The manifest of these."""
    body: dict[str, Any] = {"files": [asdict(item) for item in held]}
    return json.dumps(body, indent=1).encode() + b"\n"


def _wrong(item: object) -> str | None:
    if not isinstance(item, dict) or item.keys() != {*_TEXTS, *_NUMBERS}:
        return "has not the keys of one"
    name = next((name for name, value in item.items() if not acceptable(name, value)), None)
    return f"has an unusable `{name}`" if name is not None else None
