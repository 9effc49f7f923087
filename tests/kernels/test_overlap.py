"""Overlap told from strides equals overlap found by writing every place down."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernels.overlap import Places, first_overlap

counts = st.integers(1, 6)
strides = st.integers(0, 40)


def collide(block: int, first: Places, second: Places) -> bool:
    elements = [
        a * first.stride + b * second.stride + element
        for a in range(first.count)
        for b in range(second.count)
        for element in range(block)
    ]
    return len(set(elements)) < len(elements)


@given(st.integers(1, 6), st.builds(Places, st.just("a"), counts, strides), counts, strides)
def test_places_overlap_exactly_when_two_share_an_element(
    block: int, first: Places, count: int, stride: int
) -> None:
    second = Places("b", count, stride)
    assert (first_overlap(block, first, second) is not None) == collide(block, first, second)


def test_the_dimension_that_is_too_tight_is_named_with_what_lies_inside() -> None:
    rows = Places("row", 4, 256)
    assert first_overlap(256, rows) is None
    assert first_overlap(257, rows) == ("row", 256, 257)
    assert first_overlap(256, rows, Places("expert", 2, 1024)) is None
    assert first_overlap(256, rows, Places("expert", 2, 768)) == ("expert", 768, 1024)


def test_rows_interleaved_with_experts_do_not_overlap() -> None:
    assert first_overlap(256, Places("row", 8, 512), Places("expert", 2, 256)) is None


def test_sizes_beyond_any_loop_are_told() -> None:
    wide, tall = Places("a", 2**62, 2**40 + 1), Places("b", 2**62, 2**41 + 1)
    assert first_overlap(2, wide, tall) is not None
    assert first_overlap(2, Places("a", 2**20, 2), Places("b", 2**62, 2**21)) is None
