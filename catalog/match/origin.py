"""Where a message comes from: the rank, the host and the time that its line, its wrapper or its launcher
tell."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from catalog.match import stamps
from catalog.match.clean import REACH, Pasted
from catalog.match.context import HEADER
from catalog.match.stamps import Stamp

PREFIX: Final = 300
"""Characters of a line in which its prefix is read."""
ABOVE: Final = 1 << 13
"""Characters above a message without a time in which the last one is looked for, to order it by."""
SUMMARY: Final = 400
"""Characters above a traceback in which torchrun says whose it is."""

_RANK: Final = re.compile(
    r"\b(?:global_)?rank[ =:]{0,2}(\d{1,5})|\[default(\d{1,5})\]|^\[\d{1,4},(\d{1,5})\]<"
    r"|^ {0,3}(?:[A-Za-z][\w.-]{1,62}: )?(\d{1,4}): "
    r"|^\[(?:trainer|worker)(\d{1,5})\]:|@\d{1,6},(\d{1,5})\]<",
    re.IGNORECASE,
)
_RANK_TAGS: Final = re.compile(r"(?<![A-Za-z])((?:TP|PP|DP|EP|CP)\d{1,5})(?![A-Za-z0-9])")
_HOST: Final = re.compile(
    r"\[pod/([\w.-]{1,253})[/\]]"  # kubectl logs --prefix
    r"|^((?:\d{1,3}\.){3}\d{1,3}): "  # pdsh, by address
    r"|\([\w.:-]{1,80} pid=\d{1,10}, ip=([\w.:]{1,45})\)"  # Ray
    r"|(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?|^\d{4}-\d\d-\d\dT[\d:.,+-]{8,22}Z?)"
    # syslog's and journald's
    r" ([\w.-]{1,64}) [\w.@/-]{1,64}(?:\[\d{1,10}\])?: "
    r"|^([A-Za-z][\w.-]{1,62}) {1,24}\| "  # docker compose
    r"|^([\w.-]{1,64}):\d{1,10}:\d{1,10} \[\d{1,3}\] NCCL "
    r"|^\[([A-Za-z][\w.-]{0,62}):\d{1,10}\] "  # mpirun's own
    r"|^([A-Za-z][\w.-]{1,62}): (?=\[|\d{4}-|\d{1,4}: )"  # pdsh
)
# torch.multiprocessing.spawn's, above a traceback
_SPAWNED: Final = re.compile(r"-- Process (\d{1,5}) terminated with the following error:\s{0,4}\Z")
_SUMMARY: Final = re.compile(r"^[ \t]{0,8}(time|host|rank) {1,12}: ([^\n]{1,200})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known of one message; a rank of several dimensions is their tags."""

    rank: int | str | None = None
    host: str | None = None
    stamp: Stamp | None = None

    def or_else(self, other: Origin) -> Origin:
        """This, with what is missing taken from another."""
        return Origin(
            self.rank if self.rank is not None else other.rank,
            self.host if self.host is not None else other.host,
            self.stamp if self.stamp is not None else other.stamp,
        )


UNKNOWN: Final = Origin()
BLANK: Final = b"\x00\x01 \t"


def origin(pasted: Pasted, offset: int) -> Origin:
    """What stands before a message or around it, or before the traceback that it ends."""
    around = pasted.wraps.at(offset)
    if around is not None:
        begin = next((start for start, end in around.messages if start <= offset <= end), offset)
        inner = _said(pasted.text[begin : min(offset, begin + PREFIX)])
        before = _said(
            pasted.text[max(pasted.line_start(around.start), around.start - PREFIX) : around.start]
        )
        return inner.or_else(Origin(around.rank, around.host, around.stamp)).or_else(before)
    start = pasted.line_start(offset)
    if start and offset - start >= REACH:
        return UNKNOWN  # somewhere in a line without an end, far from what stands before it
    found = _said(pasted.text[start : min(offset, start + PREFIX)])
    # What a traceback ends with has its class before it; a record of a log has a time of its own.
    named = pasted.data[start:offset].strip(BLANK) != b""
    if found.stamp is None or (found.rank is None and named):
        at = pasted.data.rfind(HEADER, max(0, offset - 4 * REACH), offset)
        if at >= 0:
            start = pasted.line_start(at)
            head = pasted.text[start : min(at, start + PREFIX)]
            found = found.or_else(_said(head))
            if head.rstrip(" :").endswith("traceback"):
                found = found.or_else(_summed_up(pasted.text[max(0, start - SUMMARY) : start]))
            elif found.rank is None and (spawned := _SPAWNED.search(pasted.text, max(0, start - 80), start)):
                found = found.or_else(Origin(int(spawned[1])))
    return found


def time_above(pasted: Pasted, offset: int) -> Stamp | None:
    """The last time printed above a message: it is not earlier than that."""
    return stamps.last(pasted.text[max(0, offset - ABOVE) : offset])


def _said(prefix: str) -> Origin:
    """What a line's prefix tells."""
    if not prefix:
        return UNKNOWN
    rank: int | str | None = None
    tags = _RANK_TAGS.findall(prefix)
    if len(tags) > 1:
        rank = " ".join(tags)
    elif tags:
        rank = int(tags[0][2:])
    elif found := _RANK.search(prefix):
        rank = int(next(group for group in found.groups() if group))
    host = _HOST.search(prefix)
    named = next(group for group in host.groups() if group) if host is not None else None
    return Origin(rank, named, stamps.stamp(prefix))


def _summed_up(lines: str) -> Origin:
    """What torchrun's summary says above a traceback: the last of each."""
    said = {found[1]: found[2].strip() for found in _SUMMARY.finditer(lines)}
    rank = re.match(r"\d{1,5}", said.get("rank", ""))
    time = stamps.stamp(said["time"]) if "time" in said else None
    return Origin(int(rank[0]) if rank else None, said.get("host"), time)
