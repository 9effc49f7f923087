"""Where a match is and where it comes from, in words: for pages and the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

MOST_NAMED: Final = 8
"""Hosts that are named in one line."""


def place(found: dict[str, Any]) -> str:
    """Where a match is: its line, and the file where there are several."""
    return f"{found['file']}:{found['line']}" if found["file"] else f"line {found['line']}"


def origins(found: dict[str, Any]) -> Iterator[str]:
    """How often, where and since when, as far as it is more than once or known."""
    if found["count"] > 1:
        yield f"{found['count']} times"
    if found["ranks"]:
        yield f"rank{'s' if len(found['ranks']) > 1 else ''} {ranges(found['ranks'])}"
    if found["hosts"]:
        yield f"on {', '.join(found['hosts'][:MOST_NAMED])}{more(found['hosts'])}"
    if len(found["files"]) > 1:
        yield f"in {len(found['files'])} files"
    if found["firstSeen"]:
        yield f"first {found['firstSeen']}"


def more(names: Sequence[object]) -> str:
    """How many names are left out."""
    return f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""


def ranges(ranks: Sequence[int | str]) -> str:
    """Ranks, consecutive numbers as `0-7`."""
    runs: list[list[int | str]] = []
    for rank in ranks:
        last = runs[-1][-1] if runs else None
        if isinstance(rank, int) and isinstance(last, int) and rank == last + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
