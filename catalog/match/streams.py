"""Lines that several processes wrote into one log, put together again by the tag that each line carries.

Only whole lines change places, and only where they alternate; a line without a tag stays behind the one
before it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

LEVELS: Final = 3
"""Tags of one line: a pod's, its launcher's, its worker's."""
READ: Final = 400
"""Characters of a line in which its tags stand; of one that is a JSON object, OBJECT."""
OBJECT: Final = 4000

_TIMES: Final = (
    rb"(?:\[?\d{4}[-/]\d\d[-/]\d\d[T _]\d\d:\d\d:\d\d[\w.,:+-]{0,20}\]? {1,2}|std(?:out|err) [FP] )"
)
# One tag, behind a time stamp or not. Bounded, and nothing is tried twice: linear.
_TAG: Final = re.compile(
    rb"(?:" + _TIMES + rb"){0,2}+(?P<tag>\[pod/[\w./-]{1,300}\]"  # kubectl logs --prefix
    rb"|\([\w.:-]{1,80} pid=\d{1,10}(?:, ip=[\w.:]{1,45})?\)"  # Ray, vLLM
    rb"|\[(?:rank|default|worker|trainer)?\d{1,5}\]:"  # torchrun
    rb"|\[(?:[\w.-]{1,80}@)?\d{1,5},\d{1,5}\](?=<)"  # mpirun
    rb"| {0,3}+\d{1,4}:(?= )"  # srun
    rb"|(?:\d{1,3}\.){3}\d{1,3}:(?= )"  # pdsh
    rb"|[A-Za-z][\w.-]{1,62} {1,24}\|(?= )"  # docker compose
    rb"|[\w.-]{1,64}:\d{1,10}:\d{1,10} \[\d{1,3}\](?= NCCL))"
    rb"(?:<std(?:out|err)>:?)? ?"
)
_NAMED: Final = re.compile(
    r'"(?:rank|global_rank|pod|pod_name|host|hostname|node|container_id|container_name)"\s{0,4}:'
    r'\s{0,4}("[^"\\\n]{1,120}"|\d{1,6})'
)
# The usual paste, and the usual log, have none: one look tells.
_ANY: Final = re.compile(rb"^\x00*+(?:\{|" + _TAG.pattern + rb")", re.MULTILINE)
_SEVERAL: Final = (b"Traceback (most", b'  File "', b"Tensor match failed", b"CUDA graph failed")
MOST: Final = 100_000
"""Lines of one stretch that are put in order; of more none are."""


def may_alternate(data: bytes, start: int, stop: int) -> bool:
    """Whether a stretch of cleaned text has reports of several lines, and lines with tags, not too many."""
    if all(data.find(word, start, stop) < 0 for word in _SEVERAL):
        return False  # a message of one line is whole wherever it stands
    return _ANY.search(data, start, stop) is not None and data.count(b"\n", start, stop) < MOST


def tag(cleaned: bytes, text: str) -> str:
    """The tags that a line begins with, or that a JSON object names; empty where there are none."""
    if cleaned[:1] == b"{":
        return " ".join(_NAMED.findall(text[:OBJECT]))
    tags = []
    at = 0
    for _ in range(LEVELS):
        found = _TAG.match(cleaned, at)
        if found is None:
            break
        tags.append(found["tag"].decode("latin-1"))
        at = found.end()
    return " ".join(tags)


def separated(tags: Sequence[str]) -> list[int] | None:
    """The order of lines in which each process's stand together; None where they do already."""
    whose = []
    current = ""
    for name in tags:
        current = name or current
        whose.append(current)
    if not _alternate(whose):
        return None
    first: dict[str, int] = {}
    for name in whose:
        first.setdefault(name, len(first))
    return sorted(range(len(whose)), key=lambda number: first[whose[number]])


def _alternate(whose: Sequence[str]) -> bool:
    """Whether a process's lines come again after another one's."""
    left: set[str] = set()
    before = None
    for name in whose:
        if name != before:
            if name in left:
                return True
            if before is not None:
                left.add(before)
            before = name
    return False
