"""How sure a match is: how much of the text is the template's own, and what stands around it.

`weight` is the number of literal characters in the key domain. From 20 on, 1 in 100 messages of other
packages matches by chance and 96 in 100 right ones are kept; from 12 on, 8 in 100 and 99 in 100."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from catalog.match.context import Frame, Head
from catalog.match.extent import Extent
from catalog.match.literals import LEAST, Member, distinct
from catalog.match.model import MATCH, POSSIBLE, Site

ENOUGH: Final = 20
SOME: Final = 12
"""Literal characters for a match, and for a possible one; below LEAST nothing counts."""
QUIET: Final = MATCH - 0.01
"""The most that a log line can be worth which tells of no error, or of another one."""
FULL_PATH: Final = 3
"""So many path components from the end make a path its site's; fewer are shared by many files."""


PER_COMPONENT: Final = 0.5
"""What each shared component of a path adds: it tells files of one name apart."""


class Verdict(NamedTuple):
    score: float
    site: Site | None
    evidence: tuple[str, ...]


def suffix(path: str, place: str) -> int:
    """How many components two paths share from their end."""
    count = 0
    for left, right in zip(reversed(path.split("/")), reversed(place.split("/")), strict=False):
        if left != right:
            break
        count += 1
    return count


def named(site: Site, frame: Frame) -> tuple[float, str] | None:
    """What a frame that names a site adds, and in which words; None when it names another place."""
    shared = suffix(site.path, frame.path)
    if not shared:
        return None
    whole = shared >= min(FULL_PATH, len(frame.path.split("/")), len(site.path.split("/")))
    function = (
        frame.function is not None
        and site.function is not None
        and (frame.function.rpartition(".")[2] == site.function.rpartition(".")[2])
    )
    if frame.line in site.lines and (whole or function):
        return 40.0, f"names the raise site {frame.place}"
    if function:
        return 30.0 if whole else 20.0, f"names {site.function} in its file, at {frame.place}"
    if frame.line in site.lines:
        return 20.0, f"a file of the same name and the same line: {frame.place}"
    return (
        (15.0, f"names the file, at {frame.place}")
        if whole
        else (4.0, f"a file of the same name: {frame.place}")
    )


def best_site(sites: Sequence[Site], frames: Sequence[Frame]) -> tuple[Site, float, str] | None:
    """The site that a frame names best; of equals the one that shares more of its path, then the one of the
    innermost frame.
    """
    best: tuple[Site, float, str] | None = None
    for frame in frames:
        for site in sites:
            if (found := named(site, frame)) is not None:
                worth = found[0] + PER_COMPONENT * suffix(site.path, frame.path)
                if best is None or worth > best[1]:
                    best = (site, worth, found[1])
    return best


def judge(
    extent: Extent,
    member: Member,
    head: Head,
    frames: Sequence[Frame],
    inside: Sequence[Frame],
    *,
    reports: bool = False,
) -> Verdict:
    """The score of one record for one message; `frames` of the stack around it, `inside` of its own words.

    `reports`: another exception is told in or right behind the message.
    """
    entry, group = member.entry, extent.found.group
    weight = group.weight
    whole = (
        head.starts and extent.ends and (not entry.launcher or head.launcher is not None or weight >= ENOUGH)
    )
    evidence = ["the whole message" if head.starts and extent.ends else "the message inside a longer line"]
    if entry.launcher and head.launcher is None:
        evidence.append("without the launcher's prefix")
    strength = weight + 4.0 * head.starts + 2.0 * extent.ends - 1.0 * group.leading_hole
    strength -= 0.05 * min(400, sum(end - start for start, end in extent.pieces))
    lifted = False
    if head.exception is not None:
        last = head.exception.rpartition(".")[2]
        same = last in member.raised_as
        strength += 3.0 if same else -3.0
        evidence.append(
            f"exception class {last}" if same else f"raised as {last}, not as this record's class"
        )
        lifted = same and whole and weight >= SOME
    own = inside if member.prints_place else []
    found = best_site(entry.sites, [head.launcher] if head.launcher is not None else own or frames)
    if found is not None:
        strength += found[1]
        evidence.append(found[2])
        lifted = lifted or found[1] >= 15
    if head.launcher is not None and entry.launcher:
        evidence.append("the launcher's prefix")
        lifted = True
    # The launcher's library says the same of every kernel's tensors: the file it names makes it this record.
    elsewhere = bool(own) and found is None
    if elsewhere:
        evidence.append(f"but raised in another file, at {own[0].place}")
    if head.source:
        evidence.append("a line of source code, not an error")
    if weight < LEAST:
        score = 0.0
    elif head.source or elsewhere:
        score = min(POSSIBLE + 0.2, weight / 40)
    elif weight >= ENOUGH or lifted or (entry.curated and whole):
        score = MATCH + (1 - MATCH) * (1 - 2 ** (-max(0.0, strength) / 30))
    elif weight >= SOME:
        score = POSSIBLE + (MATCH - POSSIBLE) * 0.9 * min(1.0, max(0.0, strength - SOME) / ENOUGH)
    else:
        score = POSSIBLE * 0.9 * min(1.0, max(0.0, strength) / ENOUGH)
    if entry.hint:
        score = min(score, QUIET)
        evidence.append("another library's words, which may be about another call")
    elif entry.quiet or (entry.logged and reports):
        score = min(score, QUIET)
        evidence.append("a log line below error level" if entry.quiet else "a log line about another error")
    return Verdict(score, found[0] if found else _only(entry.sites), tuple(evidence))


def listed(judged: Sequence[tuple[Verdict, Member]]) -> Sequence[tuple[Verdict, Member]]:
    """Which of the judged records of one text, best first, are matches of their own: what stands around a
    message has put the likeliest of its copies first.
    """
    if len(judged) == 1:
        return judged
    kept = distinct([member for _, member in judged])
    return [pair for pair in judged if pair[1] in kept]


def _only(sites: Sequence[Site]) -> Site | None:
    return sites[0] if len(sites) == 1 else None
