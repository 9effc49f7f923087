"""What our templates need beyond the shell's: pages with an ETag, and values as readable text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import Request, Response

from app.http.caching import Representation
from app.lookup.origins import origins, place
from app.lookup.service import page_of
from app.pages.notes import rendered
from app.pages.rendering import render
from catalog.current import library
from catalog.markdown import title
from kernels.registry import has_kernel

HTML = "text/html; charset=utf-8"
NOT_STORED = {"Cache-Control": "no-store"}

WIDTH = 72
"""Columns up to which a list or an object of JSON stays on one line."""


def page(
    request: Request,
    template: str,
    *,
    status_code: int = 200,
    headers: Mapping[str, str] | None = None,
    **context: Any,
) -> Response:
    """A page made for one person: no cache keeps it."""
    return render(
        request,
        template,
        status_code=status_code,
        headers={**NOT_STORED, **(headers or {})},
        **_TOOLS,
        **context,
    )


def stored(request: Request, template: str, **context: Any) -> Response:
    """A page that is the same for everybody: ETag, 304, gzip, kept for a minute."""
    made = render(request, template, **_TOOLS, **context)
    return Representation(bytes(made.body), HTML).respond(request)


def pretty(value: Any) -> str:
    """JSON for people: what fits on a line is on one, so that a shape is not a column of numbers."""
    return "".join(_lines(value, "", WIDTH))


def inline(value: Any) -> str:
    """JSON on one line."""
    return json.dumps(value, ensure_ascii=False)


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a record's prose."""
    return [part.strip() for part in text.split("\n\n") if part.strip()]


def record_path(identifier: str) -> str:
    """The path of a record's page."""
    return page_of(library(), identifier)


def _lines(value: Any, indent: str, width: int) -> Iterator[str]:
    line = inline(value)
    if not isinstance(value, dict | list) or not value or len(line) <= width - len(indent):
        yield line
        return
    inner = indent + "  "
    named = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    yield opening
    for index, (name, item) in enumerate(named):
        yield f"{',' if index else ''}\n{inner}"
        if name is not None:
            yield f"{inline(name)}: "
        yield from _lines(item, inner, width)
    yield f"\n{indent}{closing}"


_TOOLS: Mapping[str, Any] = {
    "has_kernel": has_kernel,
    "inline": inline,
    "note_html": rendered,
    "origins": origins,
    "place": place,
    "pretty": pretty,
    "paragraphs": paragraphs,
    "short": title,
    "record_path": record_path,
}
