"""Templates to responses: escaped, addresses behind the proxy's prefix, text that always encodes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from app.http.text import scrub
from app.http.urls import absolute, link

FOLDER = Path(__file__).parent

environment = Environment(
    loader=FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)


def render(
    request: Request,
    template: str,
    *,
    status_code: int = 200,
    headers: Mapping[str, str] | None = None,
    **context: Any,
) -> HTMLResponse:
    """The page `template` with `context`.

    Templates extend base.html and get `link(path)` and `absolute(path)`. Pass `twin="/api/…"` for the
    page's JSON, which base.html names in `<link rel="alternate">`, and `query` to keep text in the search
    box.
    """
    text = environment.get_template(template).render(
        request=request, link=partial(link, request), absolute=partial(absolute, request), **context
    )
    return HTMLResponse(scrub(text), status_code, headers)
