"""What a text may be that nothing complete was found of, or only a part: never a match."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from catalog.match import context
from catalog.match.aligning import begun
from catalog.match.clean import AROUND, Chunk, key
from catalog.match.fuzzy import POOL, Like
from catalog.match.literals import Group, distinct, siblings
from catalog.match.model import MATCH, POSSIBLE, Match
from catalog.match.occurrences import raised_before
from catalog.match.prepared import GRAM, LONGEST
from catalog.match.score import ENOUGH, SOME
from catalog.match.values import VALUES

if TYPE_CHECKING:
    from catalog.match.work import Work

GUESSED: Final = 8
"""Messages without a record that the fuzzy tier is asked about, and the guesses it may make in all."""
LEAST_LIKE: Final = 0.21
LEAST_SAID: Final = 8
"""A guess has this likeness, or so many of its literal characters in the text."""
LONGER: Final = 3
"""Literal characters that a guess has to have more of than what is found complete."""
CLEARLY: Final = 0.02
"""So much more than a likeness a beginning has to be worth to be said instead."""
BEGUN: Final = 1 << 16
"""Characters of a text in which beginnings of messages are looked for."""
STARTS: Final = 25
"""Beginnings that are looked at in one text."""
LEAST_OF: Final = 0.5
"""What share of a template has to be in a text, or of a text in a template's beginning, that the template is
likelier than a message found complete."""
HIDING: Final = 0.6
"""Characters of values for each of a template's own from which a longer template is looked for: so much
have 9 in 100 whole messages, and 6 of 7 cut ones that a shorter template explains as well."""
STEP: Final = 1e-4
"""By how much guesses differ that are put in order."""
_MOST: Final = MATCH - 0.01
_CLOSED: Final = {"'": "'", '"': '"', "[": "]", "(": ")", "{": "}"}
_PROSE: Final = re.compile(r"[A-Za-z_]{2} [A-Za-z_]{2}")


class Likely(NamedTuple):
    """A guess: templates with one text, how sure, of which part of the text and why; `said` are their literal
    characters that the text has."""

    score: float
    group: Group
    span: tuple[int, int]
    why: str
    said: int


class Rivals:
    """What is complete in one message, beside the templates that are most like it, `ordered` best first."""

    def __init__(self, work: Work, complete: Iterable[Match], ordered: Sequence[Like]) -> None:
        self._work = work
        self.complete = list(complete)
        self._sure = [match for match in self.complete if match.score >= MATCH]
        self._place = {like.group.number: at for at, like in enumerate(ordered)}

    def beaten(self, at: int, like: Like) -> list[Match]:
        """Which of the complete templates the one at a place is likelier than.

        One of many words has to have fewer in the message by some; one of few comes later in the order, or
        has fewer words where it is not in it.
        """
        weights, groups = self._work.weights, self._work.groups
        beaten = []
        for match in self.complete:
            weight = weights[match.record_id]
            if weight >= ENOUGH or match in self._sure:
                behind = weight + LONGER <= like.said
            elif (place := self._place.get(groups[match.record_id].number)) is not None:
                behind = place > at
            else:
                behind = weight <= like.said
            if behind:
                beaten.append(match)
        return beaten

    def of(self, group: Group) -> Match | None:
        """The complete one of these templates."""
        ids = self._work.groups
        return next((match for match in self.complete if ids[match.record_id] is group), None)

    def all_sure_in(self, matches: Sequence[Match]) -> bool:
        """Whether every match is among these."""
        return all(match in matches for match in self._sure)

    def goes_on(self, key: bytes, like: Like) -> bool:
        """Whether a message is the beginning of a likeness of no fewer words than its matches have."""
        most = max((self._work.weights[match.record_id] for match in self._sure), default=0)
        return most <= like.said <= begun(key, like.group.keys)

    def is_sure(self, match: Match) -> bool:
        return match in self._sure


def may_hide(values: Iterable[tuple[str, str]], weight: int) -> bool:
    """Whether the values of a complete template, each (kind, value), may be words of a longer one: those that
    look like anything say much beside its own words, or two words in a row, or were cut within brackets.
    """
    most = HIDING * weight
    for kind, value in values:
        if value.isalnum():
            most -= len(value)
        elif not _looks_like(kind, value):
            most -= len(value)
            if not _is_balanced(value) or _PROSE.search(value):
                return True
    return most < 0


def _looks_like(kind: str, value: str) -> bool:
    """Whether a value looks like its kind, a path, or what stands in brackets or quotes: no words."""
    if "=" in value:
        return False
    if (kind in VALUES and VALUES[kind].fullmatch(value)) or (value[:1] == "/" and " " not in value):
        return True
    return value[:1] in _CLOSED and value[-1:] == _CLOSED[value[:1]] and _is_balanced(value)


def _is_balanced(value: str) -> bool:
    # Written out: every message found passes here.
    return (
        value.count("(") == value.count(")")
        and value.count("[") == value.count("]")
        and value.count("{") == value.count("}")
    )


def guesses(work: Work, found: list[Match]) -> list[Match]:
    """What was found, with what is most like the messages that belong to no record.

    What is complete inside a message is no more than possible where its words are all among those that the
    message has of a longer template.
    """
    begins = _begun(work, found) if not any(match.score >= MATCH for match in found) else {}
    likely: list[Likely] = []
    beaten: dict[str, float] = {}
    """By record what a message is worth that is likelier to be a part of another one."""
    for start, end in work.messages()[:GUESSED]:
        message = work.pasted.data[start:end].rstrip(AROUND + b".")
        raised = raised_before(work.raised, start + 1)
        if raised is not None and raised.message == start and work.is_own(raised):
            continue
        span = (end - len(work.pasted.data[start:end].lstrip(AROUND)), end)
        wanted = key(context.without_launcher(message))
        # A message too short for one gram is like any record: a query may ask for those, a paste not.
        ordered = work.matcher.fuzzy.search(wanted, POOL) if len(wanted) >= GRAM else []
        within = (match for match in found if match.match_type == "pattern")
        rivals = Rivals(work, (m for m in within if m.span[0] < end and start < m.span[1]), ordered)
        for number, begin in list(begins.items()):
            if start <= begin.span[0] < end and ordered and begin.said <= ordered[0].said:
                del begins[number]
        ceiling = 1.0
        for at, like in enumerate(ordered[:GUESSED]):
            score, group = min(like.score, ceiling), like.group
            if (complete := rivals.of(group)) is not None:
                ceiling = min(ceiling, complete.score - STEP)
                continue
            # What more of the text is taken from is likelier than a short message that is all there; what a
            # cut text may be the beginning of as well comes behind it.
            shorter = rivals.beaten(at, like)
            if not rivals.all_sure_in(shorter) and not rivals.goes_on(wanted, like):
                continue
            for match in shorter if not beaten else ():
                if not rivals.is_sure(match) or (_is_meant(wanted, like) and _is_part(work, match, group)):
                    beaten[match.record_id] = min(match.score, _MOST - STEP)
            score = min(ceiling, max(score, *(worth + STEP for worth in beaten.values()), 0.0))
            if group.number in begins and begins[group.number].score <= score + CLEARLY:
                del begins[group.number]
            if (score >= LEAST_LIKE or like.said >= LEAST_SAID) and group.number not in begins:
                likely.append(Likely(score, group, span, "similar words", like.said))
    likely += begins.values()
    for at, match in enumerate(found):
        if match.record_id in beaten:
            found[at] = replace(match, score=round(beaten[match.record_id], 4))
    return found + list(_told(work, found, _in_turn(likely, beaten.values())))


def _is_meant(wanted: bytes, like: Like) -> bool:
    """Whether most of a template is in a message, or most of a message is a template's beginning."""
    least = like.said >= LEAST_OF * like.group.weight
    return least or begun(wanted, like.group.keys) >= LEAST_OF * len(wanted)


def _is_part(work: Work, match: Match, group: Group) -> bool:
    """Whether a match that leaves some of its message is of words that a longer template has, too; a sentence
    with its full stop is none.
    """
    found, words = work.groups[match.record_id], b"\x00".join(group.keys)
    return not found.members[0].tail.endswith(b".") and all(literal in words for literal in found.keys)


def _in_turn(likely: list[Likely], beaten: Iterable[float]) -> list[Likely]:
    """Best first; of several guesses that are likelier than a complete message one comes before it."""
    ranked = sorted(likely, key=lambda guess: -guess.score)
    ceiling = min((worth for worth in beaten if worth >= POSSIBLE), default=1.0)
    return [
        guess if not at else guess._replace(score=min(guess.score, ceiling - STEP * at))
        for at, guess in enumerate(ranked)
    ]


def _told(work: Work, found: Sequence[Match], likely: Iterable[Likely]) -> Iterator[Match]:
    known = {name for match in found for name in (match.record_id, *match.siblings)}
    for score, group, span, why, _ in likely:
        for member in distinct(group.within(work.scope)):
            if member.entry.record_id not in known:
                known.add(member.entry.record_id)
                others = siblings(group, member)
                yield work.match_of(member.entry, "fuzzy", score, span, (why,), siblings=others)


def _begun(work: Work, known: Sequence[Match]) -> dict[int, Likely]:
    """Templates of which a text has the beginning, be it that the rest was cut or that it is of a version
    that says less.
    """
    pasted = work.pasted
    if len(pasted.data) > BEGUN:
        return {}
    whole = Chunk(pasted.data, 0, len(pasted.data))
    found: dict[int, Likely] = {}
    for number, segment, place in islice(work.matcher.index.beginnings(whole.key), STARTS):
        group = work.matcher.index.group(number)
        said = begun(whole.key[place : place + LONGEST], group.keys[segment:])
        start = whole.offset(place)
        if said < ENOUGH or (not segment and not context.head(pasted, start).starts):
            continue
        better = (match for match in known if match.span[0] <= start < match.span[1])
        if any(work.weights.get(match.record_id, 0) + LONGER > said for match in better):
            continue
        raised = raised_before(work.raised, start + 1)
        if raised is not None and start <= raised.end and work.is_own(raised):
            continue
        score = POSSIBLE + (MATCH - POSSIBLE) * 0.9 * min(1.0, (said - SOME) / (2 * ENOUGH))
        if number not in found or score > found[number].score:
            span = (start, pasted.line_end(start))
            found[number] = Likely(score, group, span, "begins as this message does", said)
    return found
