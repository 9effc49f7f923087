"""A record as Markdown: sections in the page's order, and text that Markdown cannot break out of."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from catalog.load import Curated, Link, load
from catalog.markdown import code, escape, fence, markdown, title

SECTIONS = [
    "Error message",
    "What it means",
    "Source",
    "Solutions",
    "Example fix",
    "Prevention",
    "When it happens",
    "Related errors",
]


@pytest.fixture(scope="module")
def found() -> Curated:
    [item] = [item for item in load(strict=False) if item.record.id == "402df144293dfbb6"]
    return item


def sections(text: str) -> list[str]:
    return re.findall(r"^## (.*)$", text, re.MULTILINE)


def test_sections_stand_in_the_pages_order(found: Curated) -> None:
    text = markdown(found)
    assert text.startswith("sgl-project/sglang · error · ValueError\n\n# `int32-packed scale buffers require")
    assert sections(text) == SECTIONS
    assert "per_token_group_quant.py:75` · [view on GitHub, pinned to 0132848349](https://github.com/" in text
    assert text.endswith("Data as JSON: /api/errors/402df144293dfbb6\n")


def test_everything_written_is_in_it(found: Curated) -> None:
    text = markdown(found)
    record = found.record
    assert record.example_fix
    assert record.validation_code
    assert record.type_guard
    for part in (
        record.documentation,
        record.trigger_scenarios,
        record.common_situations,
        *record.solutions,
        *record.prevention_tips,
        *(link.reason for link in found.related),
    ):
        assert escape(part) in text
    for part in (record.example_fix, record.validation_code, record.type_guard):
        assert f"```python\n{part}\n```" in text
    for link in found.related:
        assert f"(/api/errors/{link.record.id}.md)" in text


def test_what_is_absent_has_no_section(found: Curated) -> None:
    bare = replace(
        found,
        record=replace(
            found.record,
            documentation="",
            trigger_scenarios="",
            common_situations="",
            solutions=(),
            example_fix=None,
            validation_code=None,
            type_guard=None,
            try_catch_pattern=None,
            prevention_tips=(),
        ),
        related=(),
    )
    assert sections(markdown(bare)) == ["Error message", "Source"]


def test_a_message_cannot_leave_its_block(found: Curated) -> None:
    hostile = replace(found.record, error_message="a\n```\n## Not a section\n`b`")
    text = markdown(replace(found, record=hostile, related=(Link(hostile, "r"),)))
    assert "````text\na\n```\n## Not a section\n`b`\n````" in text
    assert "\n# ```` a ``` ## Not a section `b` ````\n" in text
    assert "](/api/errors/402df144293dfbb6.md): r" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("output_s and [.., G]", r"output_s and \[.., G\]"),
        ("a * b < c", r"a \* b \< c"),
        ("_private and __init__", r"\_private and \_\_init\_\_"),
        ("# first\n# second", "\\# first\n\\# second"),
        ("group #1", "group #1"),
    ],
)
def test_prose_is_escaped_where_markdown_would_read_it(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_delimiters_outgrow_what_they_hold() -> None:
    assert code("a`b") == "``a`b``"
    assert code("`a`") == "`` `a` ``"
    assert fence("x", "text") == "```text\nx\n```"
    assert fence("```", "text") == "````text\n```\n````"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("short", "short"),
        ("two\nlines", "two lines"),
        ("word " * 30, "word word word word word word word word word word word word…"),
        ("a" * 70, "a" * 60 + "…"),
        ("a" * 30 + " " + "b" * 40, "a" * 30 + "…"),
    ],
)
def test_a_title_is_whole_words_on_one_line(message: str, shown: str) -> None:
    assert title(message) == shown
