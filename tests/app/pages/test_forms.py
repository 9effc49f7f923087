from __future__ import annotations

from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidRequest
from app.pages.forms import MAX_FIELDS, parse_form


@given(st.dictionaries(st.text(max_size=5), st.text(), max_size=MAX_FIELDS))
def test_a_browsers_form_arrives_as_it_was_typed(fields: dict[str, str]) -> None:
    sent = {name: value.replace("\r\n", "\n") for name, value in fields.items()}
    assert parse_form(urlencode(sent).encode()) == sent


def test_line_ends_are_those_of_the_text_area() -> None:
    assert parse_form(b"text=a%0D%0Ab%0Ac") == {"text": "a\nb\nc"}


def test_the_last_of_equal_names_counts_and_empty_fields_are_kept() -> None:
    assert parse_form(b"a=1&a=2&b=&c") == {"a": "2", "b": "", "c": ""}
    assert parse_form(b"") == {}


def test_bytes_that_are_not_escaped_are_utf_8() -> None:
    assert parse_form("a=é+è".encode()) == {"a": "é è"}


@pytest.mark.parametrize(
    ("body", "said"),
    [(b"a=%ff", "A field of the form is not UTF-8"), (b"a=\xff", "not UTF-8: byte 2"), (b"&" * 20, "fields")],
)
def test_what_is_no_form_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        parse_form(body)
