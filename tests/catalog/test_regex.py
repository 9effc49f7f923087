"""Patterns of strangers: RE2's syntax, a position for what is wrong, a limit on what one may cost."""

from __future__ import annotations

import time

import pytest

from catalog.regex import MAX_LENGTH, PatternSyntaxError, PatternTooCostlyError, UserRegex


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("scale.*fp32", "kv_scales must be fp32, got", True),
        ("^scale", "kv_scales", False),
        ("FP32", "fp32", False),
        ("(?i)FP32", "fp32", True),
        ("a.b", "a\nb", False),
        ("größe|taille", "die größe", True),
        ("", "anything", True),
        (r"\d+\s\w", "x 12 y", True),
    ],
)
def test_searching(pattern: str, text: str, found: bool) -> None:
    assert UserRegex(pattern).search(text) is found


@pytest.mark.parametrize(
    ("pattern", "position"),
    [
        ("a(b", 3),
        ("ab[z-a]", 3),
        ("(?=b)", 0),
        ("xy**", 2),
        ("é(b", 3),
        (r"ab\1", 2),
        ("ab*+c", 2),
        ("a)", 0),
    ],
)
def test_bad_syntax_has_a_position(pattern: str, position: int) -> None:
    with pytest.raises(PatternSyntaxError) as raised:
        UserRegex(pattern)
    assert raised.value.position == position
    assert str(raised.value).endswith(f"at position {position}")


@pytest.mark.parametrize(
    "pattern", ["a" * (MAX_LENGTH + 1), "(a{500}){500}", r"(\pL{900}|x){900}", r"((\pL{30}){30}){30}"]
)
def test_what_costs_too_much_is_refused(pattern: str) -> None:
    with pytest.raises(PatternTooCostlyError):
        UserRegex(pattern)


def test_nested_repetition_is_linear() -> None:
    text = "a" * 200_000
    started = time.perf_counter()
    assert not UserRegex("(a*)*(a|aa)*b").search(text)
    assert time.perf_counter() - started < 2


def test_patterns_are_not_logged(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PatternSyntaxError):
        UserRegex("secret(")
    assert capfd.readouterr() == ("", "")
