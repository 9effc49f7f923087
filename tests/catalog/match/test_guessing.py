"""Which of several templates a message that is cut, reworded or mistyped is taken for."""

from __future__ import annotations

import pytest

from catalog.match import MATCH, Matcher, Site
from catalog.match.guessing import may_hide
from tests.catalog.match.conftest import entry

MESSAGES = {
    "sparse": "Sparse attention requires {backend}",
    "indices": "Sparse attention requires block_indices and block_offsets of one length",
    "same": "append_ckv and append_kpe must have the same dtype",
    "got": "append_ckv and append_kpe must have the same dtype, got {append_ckv.dtype} and {kpe.dtype}",
    "any": "{name} must be contiguous",
    "x": "x must be contiguous",
    "lc": "lc must be contiguous",
    "cuda": "input_values must be a CUDA tensor",
    "only": "block-scale {name!r}: only {stages} stages of 128 bytes fit",
    "grid": "the grid of the launch has {blocks} blocks",
}


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return Matcher(
        entry(name, message, Site(f"{name}.py", "f", (3,), "ValueError"), curated=False)
        for name, message in MESSAGES.items()
    )


@pytest.mark.parametrize(
    ("text", "first", "sure"),
    [
        ("Sparse attention requires flashinfer", "sparse", True),
        ("Sparse attention requires block_indices and block_offsets of one length", "indices", True),
        # Values that are words of a longer message: the shorter one is no match.
        ("Sparse attention requires block_indices and block_ofsets of one length", "indices", False),
        ("Sparse attention requires block_indices and bl", "indices", False),
        # Complete, though short and like others.
        ("lc must be contiguous", "lc", False),
        ("x must be contiguous", "x", False),
        ("ld must be contiguous", "any", False),
        ("input_vaules must be a CUDA tenosr", "cuda", False),
        ("imput_values must be  a CUDA tensor", "cuda", False),
        ("block-scale 'model.layers.3.mlp.down_proj': only Qwen3ForCau", "only", False),
        ("the gird of the launch has", "grid", False),
    ],
)
def test_the_likeliest_comes_first(matcher: Matcher, text: str, first: str, sure: bool) -> None:
    report = matcher.match(text)
    assert report.matches[0].record_id == first
    assert report.has_match is sure


def test_what_a_cut_message_may_go_on_as_comes_behind_what_is_complete(matcher: Matcher) -> None:
    whole = matcher.match("append_ckv and append_kpe must have the same dtype")
    assert [match.record_id for match in whole.matches] == ["same"]
    cut = matcher.match("append_ckv and append_kpe must have the same dtype, got torc")
    assert {match.record_id for match in cut.matches[:2]} == {"same", "got"}
    more = next(match for match in cut.matches if match.record_id == "got")
    assert (more.match_type, more.score < MATCH) == ("fuzzy", True)


@pytest.mark.parametrize(
    ("values", "hides"),
    [
        ([], False),
        ([("name", "q_proj")], False),
        ([("dtype", "torch.float8_e4m3fn")], False),
        ([("shape", "torch.Size([4096, 128])")], False),
        ([("text", "['blocks.0.weight', 'blocks.1.weight']")], False),
        ([("text", "/models/of/a/long/path/model.safetensors")], False),
        ([("text", "block_indices and more")], True),
        ([("text", "['blocks.0.we")], True),
        ([("name", "t1_state_indices")], True),
        ([("shape", "[pool=7, H=fp8, 16]")], True),
    ],
)
def test_values_that_may_be_words(values: list[tuple[str, str]], hides: bool) -> None:
    assert may_hide(values, 22) is hides
