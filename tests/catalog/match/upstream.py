"""Upstream's raise sites with a text: those of our operations and of the files beside them, one per
record."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_DATA: Final = Path(__file__).parents[2] / "data"


@dataclass(frozen=True)
class Upstream:
    """A record's raise sites: one text in one file. `ours`: of an operation of this project."""

    record_id: str
    path: str
    exception: str
    message: str
    functions: tuple[str, ...]
    lines: tuple[int, ...]
    ours: bool


def _read(name: str) -> list[dict[str, Any]]:
    sites: list[dict[str, Any]] = json.loads((_DATA / name).read_text("utf-8"))
    return [site for site in sites if site["text"]]


def _records() -> list[Upstream]:
    sites = [(site, True) for site in _read("upstream_sites.json")]
    sites += [(site, False) for site in _read("neighbour_sites.json")]
    by_record: dict[str, list[tuple[dict[str, Any], bool]]] = {}
    for site, ours in sites:
        by_record.setdefault(site["id"], []).append((site, ours))
    return [
        Upstream(
            record_id,
            found[0][0]["path"],
            found[0][0]["exception"],
            found[0][0]["text"],
            tuple(dict.fromkeys(site["function"] for site, _ in found)),
            tuple(line for site, _ in found for line in {site["released"], site.get("pinned")} if line),
            found[0][1],
        )
        for record_id, found in by_record.items()
    ]


RECORDS: Final = _records()
