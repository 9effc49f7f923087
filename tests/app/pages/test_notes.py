"""Team notes as HTML: CommonMark, and nothing by which a note could reach beyond itself."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from app.main import create_app
from app.pages.notes import SCHEMES, rendered
from app.settings import Settings

SCALES = "3018da578aab5d5a"
TAGS = [
    "a",
    "blockquote",
    "br",
    "code",
    "em",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "li",
    "ol",
    "p",
    "pre",
    "s",
    "strong",
    "table",
    "tbody",
    "td",
    "th",
    "thead",
    "tr",
    "ul",
]


class Tags(HTMLParser):
    """Every tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize(
    ("source", "html"),
    [
        ("# Cast\n\nthem *now*", "<h3>Cast</h3>\n<p>them <em>now</em></p>\n"),
        ("* a\n* `b<c`", "<ul>\n<li>a</li>\n<li><code>b&lt;c</code></li>\n</ul>\n"),
        ("###### deep", "<h6>deep</h6>\n"),
        ("<b onclick=x>a</b>", "<p>&lt;b onclick=x&gt;a&lt;/b&gt;</p>\n"),
        ("[a](javascript:alert(1))", "<p>[a](javascript:alert(1))</p>\n"),
        ("[a](/api/errors)", "<p>[a](/api/errors)</p>\n"),
        ("<data:text/html,x>", "<p>&lt;data:text/html,x&gt;</p>\n"),
        (
            '[a](https://b.c/?d="e">)',
            '<p><a href="https://b.c/?d=%22e%22%3E" rel="external nofollow noopener">a</a></p>\n',
        ),
        (
            "![a](https://b.c/d.png)",
            '<p>!<a href="https://b.c/d.png" rel="external nofollow noopener">a</a></p>\n',
        ),
    ],
)
def test_what_becomes_of_it(source: str, html: str) -> None:
    assert rendered(source) == html


def test_a_table_has_no_style_of_its_own() -> None:
    table = rendered("|a|b|\n|:-:|--:|\n|1|2|\n")
    assert "<table>" in table
    assert "style" not in table


PIECES = (
    *(
        "<",
        ">",
        "[",
        "](",
        ")",
        "!",
        "`",
        "```\n",
        "*",
        "_",
        "# ",
        "\n",
        "\n\n",
        "- ",
        "> ",
        "|",
        "|-|",
        "&#60;",
    ),
    *(
        "javascript:",
        "https://a.b",
        "HTTPS://",
        "data:",
        "mailto:a@b.c",
        "\\",
        '"',
        "'",
        " ",
        "script",
        "onclick=",
    ),
    *("[x]: ", "style=", "<!--", "&lt;", "\x00", "é"),
)


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_no_note_reaches_beyond_itself(source: str) -> None:
    for tag, attributes in Tags(rendered(source)).found:
        assert tag in TAGS
        assert set(attributes) <= {"href", "rel", "title", "class", "start"}
        assert "href" not in attributes or (attributes["href"] or "").lower().startswith(SCHEMES)


def test_the_page_renders_what_json_has_as_written(tmp_path: Path) -> None:
    source = "## Cast them\n\n1. in the [loader](https://example.org/loader)\n\n<script>alert(1)</script>"
    (tmp_path / f"{SCALES}.md").write_text(f"owner: us\n\n{source}\n")
    with TestClient(create_app(Settings(data=tmp_path / "data", overlay=str(tmp_path), workers=0))) as client:
        full = client.get(f"/api/errors/{SCALES}?view=full").json()["record"]
        answer = client.get(f"/errors/{SCALES}/{full['slug']}")
    assert [note["text"] for note in full["x"]["notes"]] == [source]
    assert "<h4>Cast them</h4>" in answer.text
    assert '<a href="https://example.org/loader" rel="external nofollow noopener">loader</a>' in answer.text
    assert not re.search(r"<script>|style=", answer.text)
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
