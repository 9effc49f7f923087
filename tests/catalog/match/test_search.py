"""Short queries: error codes, messages and words."""

from __future__ import annotations

import pytest

from catalog.match import MATCH, Matcher, Site
from tests.catalog.match.conftest import entry

SCALES = "3018da578aab5d5a"


def test_an_error_code_is_found_exactly() -> None:
    site = Site("a.py", "f", (1,), "ValueError")
    matcher = Matcher(
        [
            entry("coded", "wrong layout of the scales", site, code="FB-101"),
            entry("other", "FB-101 is old", site),
        ]
    )
    best = matcher.search(" fb-101 ")[0]
    assert (best.record_id, best.match_type) == ("coded", "exact-code")
    found = matcher.match("error FB-101 while loading")
    assert [(match.record_id, match.match_type) for match in found.matches] == [("coded", "exact-code")]


@pytest.mark.parametrize(
    ("query", "match_type"),
    [
        ("kv_scales must be fp32, got torch.bfloat16", "pattern"),
        ("KV_SCALES must be fp32,  got torch.bfloat16", "pattern"),
        ("kv_scales must be fp32, got {kv_scales.dtype}", "pattern"),
        ("kv_scales must be fp32", "fuzzy"),
        ("kv_scales fp32", "fuzzy"),
    ],
)
def test_a_message_or_words_of_it(matcher: Matcher, query: str, match_type: str) -> None:
    best = matcher.search(query)[0]
    assert (best.record_id, best.match_type) == (SCALES, match_type)
    assert (best.score >= MATCH) is (match_type == "pattern")


def test_captures_and_siblings_come_along(matcher: Matcher) -> None:
    found = matcher.search("unified_kv dtype mismatch: kv=torch.int8, q=torch.float16")
    assert {found[0].record_id, *found[0].siblings} == {"d66e149d3e38775a", "ca7c34e0ea160c45"}
    assert [capture.value for capture in found[0].captures] == ["torch.int8", "torch.float16"]


@pytest.mark.parametrize(("query", "count"), [("Comfy", 3), ("MXFP8 layer", 2)])
def test_as_many_as_asked_for_best_first(matcher: Matcher, query: str, count: int) -> None:
    found = matcher.search(query, limit=count)
    assert len(found) == count
    assert len({candidate.record_id for candidate in found}) == count
    assert [candidate.score for candidate in found] == sorted((c.score for c in found), reverse=True)


@pytest.mark.parametrize("query", ["MPS", "mps "])
def test_a_query_shorter_than_a_gram_is_looked_for_as_it_is(matcher: Matcher, query: str) -> None:
    found = matcher.search(query)
    assert found
    assert all(candidate.score < MATCH for candidate in found)


@pytest.mark.parametrize("query", ["", "   ", "\x00", "zzzzzzzzzz qqqqqqq"])
def test_nothing_is_found_for_nothing(matcher: Matcher, query: str) -> None:
    assert matcher.search(query) == []


def test_statements_of_sites_without_text_are_not_found_by_text(matcher: Matcher) -> None:
    found = matcher.search("assert group_size in _SUPPORTED_GROUP_SIZES")
    assert "group-size" not in {candidate.record_id for candidate in found}
