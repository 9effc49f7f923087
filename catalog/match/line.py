"""One plain line that is one whole message: the commonest paste, found without what longer texts need.

`ValueError: …` or the message alone, printable ASCII, nothing before, behind or inside it that would have to
be understood. Where any of that is in doubt the answer is None, and the way of all texts is taken; where it
is not, both ways give the same report.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from catalog.match import causes, context
from catalog.match.clean import has_prefix, key
from catalog.match.context import Head
from catalog.match.extent import Extent, behind_own_class, typed_end
from catalog.match.guessing import may_hide
from catalog.match.literals import MOST_SIBLINGS, Found, Group, Member, Scope
from catalog.match.model import MATCH, Match, Report
from catalog.match.occurrences import SAYING
from catalog.match.redact import may_hold_secrets, redact
from catalog.match.score import Verdict, judge, listed
from catalog.match.values import captures, read

if TYPE_CHECKING:
    from catalog.match.matcher import Matcher

LONGEST: Final = 600
"""Characters of such a line."""
# No backslash, ampersand or backtick: they may be escapes, entities, code spans.
_PLAIN: Final = re.compile(r"[A-Za-z_(\['\"][ -%'-\[\]-_a-~]*[!-%'-\[\]-_a-~]")
_CLASS: Final = re.compile(r"(?:[A-Za-z_]\w*\.){0,9}[A-Z]\w{1,80}(?:Error|Exception): (?! )")
_ODD: Final = ("Failed at ", "Traceback", "...", "</", '{"', " across cluster", "raise ", "assert ")


def look_up(matcher: Matcher, text: str, scope: Scope) -> Report | None:
    """The report on such a line, None when it is another text or nothing in it is certain."""
    if len(text) > LONGEST or _PLAIN.fullmatch(text) is None:
        return None
    for word in _ODD:
        if word in text:
            return None
    data = text.encode("ascii")
    found = _CLASS.match(text)
    begin = found.end() if found else 0
    exception = text[: begin - 2] if found else None
    if context.names_exception(data, begin) or has_prefix(data):
        return None
    if exception is not None and context.python_own(exception, text[begin:]):
        return None
    place = _heaviest(matcher, key(data), len(key(data[:begin])))
    if place is None:
        return None
    group = place.group
    if not begin and group.leading_hole and behind_own_class(data, 0, group):
        return None
    members = group.within(scope)
    if not members or group.prints_place or not members[0].plain:
        return None
    return _report(text, begin, exception, place, members)


def _heaviest(matcher: Matcher, whole: bytes, begin: int) -> Found | None:
    """The template that says most, None where another one is not merely a part of its words."""
    places = matcher.index.few(whole)
    if not places:
        return None
    best = places[0] if len(places) == 1 else max(places, key=_weight)
    keys = best.group.keys
    if best.places[0][0] < begin or not whole.startswith(keys[0], begin):
        return None
    if not whole.rstrip(b".").endswith(keys[-1]):
        return None
    for other in places:
        if other is not best and not _is_part(other, best, begin):
            return None
    return best


def _weight(place: Found) -> int:
    return place.group.weight


def _is_part(other: Found, best: Found, begin: int) -> bool:
    """Whether a template is a part of the class's name, or of a better one's words or values, and no more."""
    if other.group.weight >= best.group.weight:
        return False
    if other.places[0][0] < begin:
        return other.places[-1][1] <= begin
    return other.group.weight < SAYING or any(
        left < end and start < right for left, right in other.places for start, end in best.places
    )


def _report(
    text: str, begin: int, exception: str | None, place: Found, members: list[Member]
) -> Report | None:
    group, first = place.group, members[0]
    message = text[begin:]
    captured = read(first, message)
    if captured is None or may_hide(zip(first.entry.hole_kinds, captured, strict=True), group.weight):
        return None
    end = _end(text, first, captured, group)
    if end is None:
        return None
    held = end - begin - first.solid
    extent = Extent(place, begin, len(text), ((begin, begin + held),), True)
    judged = _judged(extent, exception, members)
    if not judged or judged[0][0].score < MATCH:
        return None
    # What is read exactly is rendered as it stands; no part of a harmless line is a secret.
    shown = redact if may_hold_secrets(message) else str
    matches = []
    for verdict, member in listed(judged):
        values = captured if member is first else read(member, message)
        if values is None or not member.plain:
            return None
        others = (
            [pair[1].entry.record_id for pair in judged[: MOST_SIBLINGS + 1] if pair[1] is not member]
            if len(judged) > 1
            else []
        )
        matches.append(
            Match(
                member.entry.record_id,
                "pattern",
                round(verdict.score, 4),
                1,
                (begin, len(text)),
                shown(message),
                captures(member, values, shown),
                verdict.site,
                tuple(others[:MOST_SIBLINGS]),
                "secondary" if member.secondary else "root-cause",
                1,
                (),
                None,
                verdict.evidence,
            )
        )
    if len(matches) > 1:
        matches.sort(key=lambda match: (-match.score, match.record_id))
    return Report(tuple(matches), causes.first(matches), (), len(judged) > MOST_SIBLINGS + 1)


def _judged(extent: Extent, exception: str | None, members: list[Member]) -> list[tuple[Verdict, Member]]:
    """As `Work` judges them; without a frame those of one kind are worth the same."""
    head = Head(exception, None, True, False)
    if len(members) == 1:
        return [(judge(extent, members[0], head, (), ()), members[0])]
    judged = [(judge(extent, member, head, (), ()), member) for member in members]
    judged.sort(key=lambda pair: -pair[0].score)
    return [pair for pair in judged if pair[0].score > 0]


def _end(text: str, member: Member, captured: tuple[str, ...], group: Group) -> int | None:
    """Where the last literal or value ends; None where the text goes on behind it."""
    if not group.trailing_hole:
        return len(text) - len(member.tail)
    start = len(text) - len(member.template.segments[-1]) - len(captured[-1]) - member.behind
    end = typed_end(text, member.entry.hole_kinds[-1], start)
    tail = member.tail.decode("ascii", "replace")
    return end if end == len(text) or (tail and text[end:] == tail) else None
