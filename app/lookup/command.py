"""What `faultbook match` reads: a file, a folder of logs, or standard input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from app.lookup.folder import Log, Skipped, log, logs
from app.lookup.service import match_logs, match_text
from app.terminal import complain, usage

NAMED: Final = 20
"""Files left out that are named."""


def answer_of(
    source: str,
    prepare: Callable[[], object],
    *,
    repo: str | None,
    packages: Mapping[str, str],
    limit: int,
) -> dict[str, Any]:
    """The answer on what `source` names; `prepare` makes the records ready once it is known to exist.

    What is left out of a folder or of a long file is said on standard error.
    """
    try:
        if source and source != "-" and Path(source).is_dir():
            prepare()
            answer = match_logs(logs(Path(source)), repo=repo, packages=packages, limit=limit)
            _say(answer["skipped"])
            return answer
        parts = list(_one(source))
    except OSError as error:
        place = error.filename or source
        usage(f"{str(place)[:80]}: {error.strerror}; text itself goes in by a pipe: … | faultbook match")
    prepare()
    if len(parts) == 1 and isinstance(parts[0], Log):
        return match_text(parts[0].content, repo=repo, packages=packages, limit=limit)
    answer = match_logs(parts, repo=repo, packages=packages, limit=limit)
    _say(answer["skipped"])
    return {**answer, "truncated": True}


def _one(source: str) -> Iterator[Log | Skipped]:
    if source != "-":
        with Path(source).open("rb") as opened:
            yield from log(opened, Path(source).name)
    elif sys.stdin is not None:
        yield from log(sys.stdin.buffer, "standard input")
    else:
        yield from ()


def _say(skipped: list[dict[str, str]]) -> None:
    for item in skipped[:NAMED]:
        complain(f"not read: {item['file']}: {item['reason']}")
    if len(skipped) > NAMED:
        complain(f"not read: {len(skipped) - NAMED} more; --json names them all")
