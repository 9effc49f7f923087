"""A user's regular expression: what it finds, and how bad or costly ones are refused."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.match.user_regex import BadPattern, TooCostly, search_messages

MESSAGES = [
    "kv_scales must be fp32, got {kv_scales.dtype}",
    "Unsupported output_s dtype {output_s.dtype}",
    "",
    "Überlauf: π > 3\nMore debug info",
    "D={D_check} must be divisible by GROUP_SIZE={_FP8_GROUP_SIZE}",
]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("must", [0, 4]),
        ("(?i)DTYPE", [0, 1]),
        ("^Unsupported", [1]),
        (r"\}$", [0, 1, 4]),
        ("^$", [2]),
        (r"\Akv", [0]),
        ("π..>", []),
        ("π > \\d", [3]),
        ("3\nMore", [3]),
        ("got.*Unsupported", []),
        (r"[^q]+Unsupported", []),
        (r"dtype\}\s*Unsupported", []),
        (r"[^q]+info", [3]),
        ("", [0, 1, 2, 3, 4]),
        (r"\bD\b", [4]),
    ],
)
def test_a_pattern_finds_the_messages_it_matches(pattern: str, found: list[int]) -> None:
    assert search_messages(pattern, MESSAGES) == found


@given(st.text("ab.[]^*|\n", max_size=6), st.lists(st.text("ab\n", max_size=5), max_size=6))
def test_rows_are_searched_as_if_alone(pattern: str, messages: list[str]) -> None:
    try:
        expected = re.compile(pattern)
        found = search_messages(pattern, messages)
    except (BadPattern, TooCostly, re.error, FutureWarning):
        return
    assert found == [index for index, message in enumerate(messages) if expected.search(message)]


@pytest.mark.parametrize(
    ("pattern", "position", "reason"),
    [
        ("kv[a", 2, "missing ]"),
        ("kv(a", 4, "missing )"),
        ("é**", 1, "bad repetition operator"),
        ("ab(?=c)", 2, "invalid perl operator"),
        ("a{3,1}", 1, "invalid repetition size"),
        ("a\\", 1, "trailing \\"),
        (r"a\8", 1, "invalid escape sequence"),
    ],
)
def test_a_bad_pattern_is_refused_with_its_position(pattern: str, position: int, reason: str) -> None:
    with pytest.raises(BadPattern, match=re.escape(reason)) as refused:
        search_messages(pattern, MESSAGES)
    assert refused.value.position == position


@pytest.mark.parametrize("pattern", ["a" * 1001, r"(\pL{100}){10}", "a{1001}", "((a{100}){100}){100}"])
def test_a_costly_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(TooCostly):
        search_messages(pattern, MESSAGES)


@pytest.mark.parametrize("pattern", ["(a+)+b", "[^q]+z", "(?s).*.*.*x", "(a|b)*a(a|b){40}z", "(?s)a.{200}zz"])
def test_no_pattern_takes_long(pattern: str) -> None:
    started = time.monotonic()
    try:
        search_messages(pattern, ["ab" * 50] * 20_000 + ["z"])
    except TooCostly as refused:
        assert "longer than" in str(refused)  # noqa: PT017
    assert time.monotonic() - started < 15
