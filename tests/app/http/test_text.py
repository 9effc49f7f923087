from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from app.http.plain import SafeJSONResponse
from app.http.text import json_bytes, scrub, without_places

TEXT = st.text(st.characters(exclude_categories=()))  # surrogates too


@dataclass
class Plain:
    name: str
    number: float


class Model(BaseModel):
    parts: list[Any]


def test_values_that_json_cannot_hold_become_ones_that_it_can() -> None:
    value = {
        "a\udc80": [Plain("\ud800x", float("nan")), Model(parts=[("\udfff", float("inf"))])],
        "ok": "é😀",
    }
    assert json.loads(json_bytes(value)) == {
        "a�": [{"name": "�x", "number": None}, {"parts": [["�", None]]}],
        "ok": "é😀",
    }


@given(TEXT)
def test_scrubbed_text_encodes_and_good_text_is_left_alone(text: str) -> None:
    scrubbed = scrub(text)
    scrubbed.encode()
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert scrubbed == text


@given(st.recursive(st.none() | st.floats() | st.integers() | TEXT, st.lists, max_leaves=5))
def test_any_value_gives_utf8_that_a_strict_reader_takes(value: Any) -> None:
    def refuse(token: str) -> None:
        pytest.fail(f"{token} is not JSON")

    json.loads(json_bytes(value).decode("utf-8"), parse_constant=refuse)


def test_the_default_response_uses_it() -> None:
    assert SafeJSONResponse({"a": float("nan"), "b": "\ud800"}).body == '{"a":null,"b":"�"}'.encode()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/opt/app/lib/libcudart.so.13: cannot open", "libcudart.so.13: cannot open"),
        ("snapshot '/var/lib/x/torch.fbs' is cut", "snapshot 'torch.fbs' is cut"),
        ("see ~/keys/mine and /etc/faultbook/", "see mine and "),
        ("2/3 of I/O at https://a.example/b/c", "2/3 of I/O at https://a.example/b/c"),
        ("NVIDIA H200, 3 records", "NVIDIA H200, 3 records"),
    ],
)
def test_where_things_lie_is_not_told(text: str, told: str) -> None:
    assert without_places(text) == told
