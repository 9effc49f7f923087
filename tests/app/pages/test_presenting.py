from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from app.pages.presenting import WIDTH, paragraphs, pretty

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=6),
    max_leaves=30,
)


@given(JSON)
def test_laid_out_json_is_the_same_json(value: object) -> None:
    assert json.loads(pretty(value)) == value


def test_a_shape_stays_on_its_line_and_what_is_longer_is_broken() -> None:
    value = {"arguments": {"input": {"shape": [16, 7168], "dtype": "bfloat16"}, "x": ["a" * WIDTH, "b"]}}
    assert pretty(value) == (
        '{\n  "arguments": {\n    "input": {"shape": [16, 7168], "dtype": "bfloat16"},\n    "x": [\n'
        f'      "{"a" * WIDTH}",\n      "b"\n    ]\n  }}\n}}'
    )


def test_paragraphs_are_what_blank_lines_part() -> None:
    assert paragraphs("a\nb\n\n\nc\n\n") == ["a\nb", "c"]
