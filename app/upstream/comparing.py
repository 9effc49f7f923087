"""Upstream's word beside ours: class, text and the check that speaks first; no difference is hidden."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from app.upstream.oracle import Answer
from kernels.checking import Check, Origin, Severity
from kernels.examining import Examination
from kernels.registry import Operation
from kernels.upstream import Site

SAID = ("returned", "raised", "unlaunched")
"""Endings that say something of the call; the others tell of the host."""

PLACED = re.compile(r"\S{0,500}/(sglang/kernels/jit/csrc/[\w./]{1,200}):([0-9]{1,6})")
"""Where a compiled launcher says that it failed: the installed file and its line."""

ELLIPSIS = "…"
"""Stands in our text for what differs from host to host: folders, a compiler's own output."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How upstream's word and ours relate.

    agrees        None where upstream said nothing, or nothing yet that a host without a GPU can see
    at_check      our check that says what upstream raised; None where it raised nothing that one of ours says
    differences   one sentence each
    """

    agrees: bool | None
    at_check: str | None
    differences: tuple[str, ...] = ()


def compare(operation: Operation, examination: Examination, answer: Answer) -> Comparison:
    """Whether upstream says what the checks predict."""
    predicted = examination.raised
    if answer.ending not in SAID:
        return Comparison(None, None)
    if answer.ending != "raised":
        if predicted is None:
            return Comparison(True, None)
        if (answer.ending == "unlaunched" and predicted.at_launch) or _later(operation, predicted):
            return Comparison(None, None)
        told = f"the checks predict {named(predicted)}; upstream's own raise nothing"
        return Comparison(False, None, (told,))
    if predicted is not None and _same(predicted, answer):
        return Comparison(True, type(predicted).id())
    found = _spoken_by(operation, examination, answer)
    at_check = None if found is None else found.id()
    return Comparison(False, at_check, tuple(_differences(predicted, answer, at_check)))


def launches_safely(examination: Examination) -> bool:
    """Whether upstream refuses the call before it launches anything, or no check of ours finds harm in it."""
    raised = examination.raised
    if raised is not None and not raised.at_launch:
        return True
    return not any(
        outcome.check.severity is Severity.ERROR and outcome.check.origin() is Origin.BEYOND
        for outcome in examination.failed()
    )


def _later(operation: Operation, predicted: Check[Any]) -> bool:
    """Whether upstream raises it when it builds what the file was inspected for, after the function asked."""
    asked = operation.function or operation.name
    own = (
        site.file.path == operation.source.path and (site.function == asked or site.function.startswith("_"))
        for site in predicted.sites
    )
    return operation.claims is not None and bool(predicted.sites) and not any(own)


def named(violation: Check[Any]) -> str:
    """A violation by its check and what it raises."""
    return f"{violation.raises.__name__} by {type(violation).id()}"


def _same(predicted: Check[Any], answer: Answer) -> bool:
    return not list(_differences(predicted, answer, type(predicted).id()))


def _differences(predicted: Check[Any] | None, answer: Answer, at_check: str | None) -> Iterator[str]:
    raised = f"{answer.error_class}: {answer.message[:300]}"
    if predicted is None:
        yield f"upstream raises {raised}; the checks predict nothing"
        return
    if type(predicted).id() != at_check:
        other = f"at {at_check}" if at_check else "at none of our checks"
        yield f"upstream raises {other} first, the checks say {type(predicted).id()}"
    if predicted.raises.__name__ != answer.error_class.rpartition(".")[2]:
        yield f"class: upstream raises {answer.error_class}, the checks say {predicted.raises.__name__}"
    if not _reads_as(predicted, answer):
        yield f"text: upstream says {answer.message[:300]!r}, the checks say {predicted.text[:300]!r}"
    elif not answer.message and not _stands_at(predicted, answer):
        path, line, _ = answer.frames[-1]
        yield f"place: upstream raises at {path.rpartition('/')[2]}:{line}, which is no site of this check"


def _reads_as(predicted: Check[Any], answer: Answer) -> bool:
    """Whether the texts are equal, but for the folder and the release that a launcher was built from."""
    ours, theirs = predicted.text, _placed(answer.message, predicted)
    if any(_pattern(earlier).match(theirs) for earlier in predicted.formerly):
        return True
    if ELLIPSIS not in ours:
        # Torch's first sentence is followed by what this build and version know of the operator.
        elaborated = predicted.pythons_own and ours.endswith(".") and theirs.startswith(ours)
        return ours == theirs or elaborated
    parts = [part for part in ours.split(ELLIPSIS) if part]
    place = 0
    for part in parts:
        found = theirs.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return ours.startswith(ELLIPSIS) or theirs.startswith(parts[0])


def _placed(message: str, predicted: Check[Any]) -> str:
    """The message with the file and line as ours prints them, where the line is one of the check's own."""

    def put(found: re.Match[str]) -> str:
        path, line = f"python/{found[1]}", int(found[2])
        site = next(
            (site for site in _sites(predicted) if site.file.path == path and line in site.lines), None
        )
        return f"{path}:{site.lines[0] if site is not None else line}"

    return PLACED.sub(put, message)


def _sites(violation: Check[Any]) -> tuple[Site, ...]:
    own = getattr(violation, "site", None)
    return violation.sites if own is None else (own,)


def _stands_at(predicted: Check[Any], answer: Answer) -> bool:
    """Whether an exception without a text comes from a site of the check; Python's own have none."""
    if not predicted.sites or not answer.frames:
        return True
    path, line, _ = answer.frames[-1]
    return any(
        path.endswith(site.file.path.removeprefix("python/")) and line in site.lines
        for site in predicted.sites
    )


def _spoken_by(operation: Operation, examination: Examination, answer: Answer) -> type[Check[Any]] | None:
    """The check that says what upstream raised: of those that fail one that reads alike, else one whose
    template the text has.
    """
    for outcome in examination.failed():
        for occurrence in outcome.occurrences:
            if _same(occurrence.violation, answer):
                return outcome.check
    candidates = [
        check
        for check in operation.checks
        if check.sites or check.pythons_own
        if check.message
        if _pattern(check.message).search(answer.message)
    ]
    return max(candidates, key=lambda check: len(check.message), default=None)


@lru_cache(maxsize=4096)
def _pattern(message: str) -> re.Pattern[str]:
    from kernels.message import Hole, parse

    parts = (".{0,20000}?" if isinstance(part, Hole) else re.escape(part) for part in parse(message))
    return re.compile("".join(parts) + r"\Z", re.DOTALL)
