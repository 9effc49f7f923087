"""A record as Markdown, in the order in which the page shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from catalog.load import Curated, Link
from catalog.overlay import Note
from catalog.snapshots.record import FromSource

TITLE: Final = 60
"""Characters of a message that stand for it in a heading or a link."""

_SPECIAL: Final = re.compile(r"[\\*<>\[\]|]|(?<![^\W_])_|_(?![^\W_])|(?<=^)#", re.MULTILINE)


def markdown(found: Curated | FromSource, notes: Sequence[Note] = ()) -> str:
    """The whole record and the team's notes on it; links are relative to the service's root."""
    return "\n\n".join(_blocks(found, notes)) + "\n"


def title(message: str) -> str:
    """A message as a heading or a link shows it: whole words of its beginning, on one line."""
    whole = " ".join(message.split())
    if len(whole) <= TITLE:
        return whole
    cut = whole[:TITLE]
    if whole[TITLE] != " ":
        cut = cut.rpartition(" ")[0] or cut
    return f"{cut.rstrip()}…"


def _blocks(found: Curated | FromSource, notes: Sequence[Note]) -> Iterator[str]:
    record = found.record
    yield f"{record.repo} · {record.severity} · {record.error_class}"
    yield f"# {code(title(record.error_message))}"
    yield "## Error message"
    yield fence(record.error_message, "text")
    for note in notes:
        yield from _note(note)
    if record.documentation:
        yield "## What it means"
        yield escape(record.documentation)
    yield "## Source"
    yield _source(found)
    if record.solutions:
        yield "## Solutions"
        yield "\n".join(f"{number}. {escape(text)}" for number, text in enumerate(record.solutions, 1))
    if record.example_fix:
        yield "## Example fix"
        yield fence(record.example_fix, "python")
    yield from _prevention(found)
    if record.trigger_scenarios or record.common_situations:
        yield "## When it happens"
        if record.trigger_scenarios:
            yield f"**Trigger:** {escape(record.trigger_scenarios)}"
        if record.common_situations:
            yield f"**Common situations:** {escape(record.common_situations)}"
    if found.related:
        yield "## Related errors"
        yield "\n".join(_link(link) for link in found.related)
    at = found.snapshot.version if isinstance(found, FromSource) else record.analyzed_sha[:10]
    yield (f"{record.repo}@{at} ({record.analyzed_at[:10]}). Data as JSON: /api/errors/{record.id}")


def _note(note: Note) -> Iterator[str]:
    yield "## Team note"
    if note.text:
        yield escape(note.text)
    known = [f"- {name}: {escape(value)}" for name, value in note.told.items()]
    yield "\n".join([*known, f"- from {code(note.source)}"])


def _link(link: Link) -> str:
    shown = code(title(link.record.error_message))
    return f"- [{shown}](/api/errors/{link.record.id}.md): {escape(link.reason)}"


def _source(found: Curated | FromSource) -> str:
    record = found.record
    place = record.file_path if record.line_number is None else f"{record.file_path}:{record.line_number}"
    if isinstance(found, FromSource):
        return _scanned_source(found, place)
    if found.fault.own:
        return f"Checked at {code(place)}"
    link = (
        f" · [view on GitHub, pinned to {record.analyzed_sha[:10]}]({record.github_url})"
        if record.github_url
        else ""
    )
    others = [
        code(f"{site.file.path}:{site.released}")
        for site in found.fault.sites
        if site.released is not None and f"{site.file.path}:{site.released}" != place
    ]
    release = (
        f"; in release {found.fault.sites[0].file.package.version}: {', '.join(others)}" if others else ""
    )
    return f"Raised at {code(place)}{link}{release}"


def _scanned_source(found: FromSource, place: str) -> str:
    """Every place in the newest version, and the lines around the first where they are kept."""
    record = found.record
    link = f" · [view on GitHub]({record.github_url})" if record.github_url else ""
    others = [
        code(f"{record.file_path}:{site['line']}")
        for site in found.x["sites"][1:]
        if site["version"] == found.snapshot.version
    ]
    more = f", also at {', '.join(others)}" if others else ""
    lines = f"\n\n{fence(record.source_code, '')}" if record.source_code else ""
    return f"Raised at {code(place)} of {found.snapshot.package} {found.snapshot.version}{more}{link}{lines}"


def _prevention(found: Curated | FromSource) -> Iterator[str]:
    record = found.record
    parts = (
        ("### Check before the call", record.validation_code),
        ("### Type guard", record.type_guard),
        ("### Recover", record.try_catch_pattern),
    )
    if record.prevention_tips or any(text for _, text in parts):
        yield "## Prevention"
    for heading, text in parts:
        if text:
            yield heading
            yield fence(text, "python")
    if record.prevention_tips:
        yield "\n".join(f"- {escape(tip)}" for tip in record.prevention_tips)


def escape(text: str) -> str:
    """Prose as it is, characters that Markdown would read otherwise escaped."""
    return _SPECIAL.sub(lambda special: "\\" + special[0], text)


def code(text: str) -> str:
    """A code span, its delimiter longer than any run of backticks inside."""
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{space}{text}{space}{ticks}"


def fence(text: str, language: str) -> str:
    """A code block, its fence longer than any inside."""
    ticks = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{ticks}{language}\n{text}\n{ticks}"
