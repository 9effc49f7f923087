"""A team note's Markdown as a part of a page.

Notes are trusted less than templates: no HTML of theirs reaches the page, links lead out by http, https or
mailto alone, and nothing is fetched: a picture is a link to it. The page's policy forbids inline styles, so
none are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

KEPT: Final = 256
"""Rendered notes that are kept; they change with their files only."""
SCHEMES: Final = ("http://", "https://", "mailto:")
LOWER: Final = 2
"""By how many levels a note's headings are lower: the page's title and the note's own are above them."""


@lru_cache(KEPT)
def rendered(text: str) -> Markup:
    """The note as HTML that is safe on any page."""
    parser = _parser()
    tokens = parser.parse(text)
    _fit(tokens)
    return Markup(parser.renderer.render(tokens, parser.options, {}))


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt  # only a service with notes needs it

    class Parser(MarkdownIt):
        def validateLink(self, url: str) -> bool:
            return url.strip().lower().startswith(SCHEMES)

    parser = Parser("commonmark", {"html": False, "maxNesting": 100})
    parser.enable(["table", "strikethrough"]).disable("image")
    return parser


def _fit(tokens: Sequence[Token]) -> None:
    """Tokens as they fit into the page, in place."""
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1:]) + LOWER)}"
        elif token.type == "link_open":
            token.attrSet("rel", "external nofollow noopener")
        token.attrs.pop("style", None)
        _fit(token.children or ())
