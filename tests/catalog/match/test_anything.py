"""Whatever is pasted: no exception, and a report that is consistent with the text."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog.match import MATCH, Matcher

FRAGMENTS = [
    "kv_scales must be fp32, got ",
    "unified_kv dtype mismatch: kv=torch.int8, q=",
    "Quanto layer 'a.b' has incompatible scale F16 (1, 2)",
    "D=1 must be divisible by GROUP_SIZE=",
    "convrot_int8 backend jit is unavailable: ",
    "MXFP8 fused prologue requires K/V scale buffers.",
    "RuntimeError: ",
    "ValueError('",
    "KeyError: ",
    "AssertionError\n",
    "raise ValueError(f'",
    "Failed at a/per_token_group_quant.cuh:506: ",
    "Tensor match failed for Tensor<1>[strides=<1>, dtype=int8, device=cpu] at a.cuh:1\n- Root cause: ",
    "Device mismatch: expected cpu but got cuda:0",
    "Traceback (most recent call last):\n",
    '  File "/x/per_token_group_quant.py", line 41, in _jit_module\n',
    "\nDuring handling of the above exception, another exception occurred:\n",
    "[rank1]: ",
    "[2026-05-22 09:14:03 TP2] ",
    "(W pid=3) ",
    "E   ",
    "> ",
    "\n",
    " ",
    "...",
    "(",
    "'",
    '"',
    '\\"',
    "\\n",
    "\x1b[31m",
    "&quot;",
    "\x00",
    "\r",
    "é",
    "😀",
    "torch.float16",
    " [repeated 3x across cluster]",
]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(st.sampled_from(FRAGMENTS), max_size=25))
def test_any_mixture_of_what_people_paste(matcher: Matcher, pieces: list[str]) -> None:
    _check("".join(pieces), matcher)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_any_bytes(matcher: Matcher, data: bytes) -> None:
    assert matcher.match(data) == matcher.match(data.decode("utf-8", "replace"))
    matcher.search(data.decode("latin-1"))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=200))
def test_any_text(matcher: Matcher, text: str) -> None:
    _check(text, matcher)


def _check(text: str, matcher: Matcher) -> None:
    report = matcher.match(text)
    for match in report.matches:
        start, end = match.span
        assert 0 <= start <= end <= len(text)
        assert match.line == text.count("\n", 0, start) + 1
        assert 0 < match.score <= 1
        assert match.count >= 1
        assert match.match_type != "fuzzy" or match.score < MATCH
        assert match.record_id not in match.siblings
    assert report.has_match == any(match.score >= MATCH for match in report.matches)
    if report.root_cause is not None:
        cause = report.matches[report.root_cause]
        assert cause.role == "root-cause"
        assert cause.score >= MATCH
    for missed in report.unmatched:
        assert missed.exception in text.split("\n")[missed.line - 1]
