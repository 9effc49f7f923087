"""A record as a snapshot's file has it: read back into objects, and refused where it is none of ours."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from catalog.record import ErrorType, Severity
from catalog.scan.extracted import RaiseSite
from catalog.template import KINDS, Template
from kernels.message import Hole

COLUMNS: Final = "number, id, slug, path, line, message, template, class, type, severity, status, sites"

_ID: Final = re.compile("[0-9a-f]{16}")
_TYPES: Final = frozenset(get_args(ErrorType))
_SEVERITIES: Final = frozenset(get_args(Severity))


class Damaged(Exception):
    """A row that this program cannot have written."""


@dataclass(frozen=True, slots=True)
class Row:
    """A record as the snapshot has it; `template` is None for a statement without a text."""

    number: int
    id: str
    slug: str
    path: str
    line: int
    message: str
    template: Template | None
    kinds: tuple[str, ...]
    error_class: str
    error_type: str
    severity: str
    http_status: int | None
    places: tuple[RaiseSite, ...]


def row_of(values: Sequence[Any]) -> Row:
    """The row of the values of COLUMNS; Damaged for any that are not of its types."""
    number, identifier, slug, path, line, message, cut, raised, kind, severity, status, sites = values
    texts = (identifier, slug, path, message, raised, kind, severity)
    if not all(isinstance(text, str) for text in texts) or _ID.fullmatch(identifier) is None:
        raise Damaged("a text is none")
    if kind not in _TYPES or severity not in _SEVERITIES or not _counts(number, line):
        raise Damaged("a field has a value that no record has")
    if status is not None and not _counts(status):
        raise Damaged("a status is no number")
    template, kinds = _template(message, cut)
    return Row(
        number,
        identifier,
        slug,
        path,
        line,
        message,
        template,
        kinds,
        raised,
        kind,
        severity,
        status,
        _places(sites),
    )


def _places(text: object) -> tuple[RaiseSite, ...]:
    """The places of a record, at least one."""
    listed = _parsed(text)
    if not isinstance(listed, list) or not listed:
        raise Damaged("a record has no place")
    return tuple(map(_place, listed))


def _template(message: str, cut: object) -> tuple[Template | None, tuple[str, ...]]:
    """The template of a message as it was cut, and the kinds of its holes; None without a text."""
    if cut is None:
        return None, ()
    parsed = _parsed(cut)
    if not (isinstance(parsed, list) and len(parsed) == 2 and all(isinstance(part, list) for part in parsed)):
        raise Damaged("a template is none")
    segments, holes = parsed
    if len(segments) != len(holes) + 1 or not all(isinstance(segment, str) for segment in segments):
        raise Damaged("a template has too few literals")
    for hole in holes:
        if not (isinstance(hole, list) and len(hole) == 4 and all(isinstance(part, str) for part in hole)):
            raise Damaged("a hole is none")
        if hole[3] not in KINDS:
            raise Damaged("a hole's kind is none")
    return (
        Template(message, tuple(segments), tuple(Hole(*hole[:3]) for hole in holes)),
        tuple(hole[3] for hole in holes),
    )


def _place(item: object) -> RaiseSite:
    if not isinstance(item, list) or len(item) != 6:
        raise Damaged("a place is none")
    line, end_line, function, owner, raised, condition = item
    named = all(name is None or isinstance(name, str) for name in (function, owner))
    if not (named and _counts(line, end_line) and isinstance(raised, str) and isinstance(condition, str)):
        raise Damaged("a place has a field of another type")
    return RaiseSite(line, end_line, function, owner, raised, condition)


def _counts(*values: object) -> bool:
    return all(
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 for value in values
    )


def _parsed(text: object) -> object:
    if not isinstance(text, str):
        raise Damaged("a text is none")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"unreadable: {error}"[:100]) from None
