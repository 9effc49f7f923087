"""A template beside a text that was cut, reworded or mistyped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.match.aligning import align, begun
from catalog.match.prepared import LONGEST

SCALE = (b"the", b"scaleofalayermustbe", b",got", b"")
"""the {name} scale of a layer must be {dtype}, got {value}"""
WORDS = sum(map(len, SCALE))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"thekscaleofalayermustbefp8,gotfp16", WORDS),  # complete: values are no words
        (b"thekscaleofalayermu", len(b"thescaleofalayermu")),  # cut in a literal
        (b"thekscaleofalayermustbefp", len(b"thescaleofalayermustbe")),  # cut in a value
        (b"thekscaelofalayermustbefp8,gotfp16", WORDS - 3),  # two letters in the other order
        (b"thekscalofalayermustbefp8,gotfp16", WORDS - 2),  # a letter lost: not there, and a slip
        (b"thekscaleeofalayermustbefp8,gotfp16", WORDS - 1),  # a letter too many
        (b"ofalayermustbefp8,gotfp16", len(b"ofalayermustbe,got")),  # the beginning lost
        (b"", 0),
        (b"?!", 0),
    ],
)
def test_what_a_text_has_of_a_template(text: bytes, said: int) -> None:
    assert align(text, SCALE).said == said


@pytest.mark.parametrize(
    ("text", "better", "worse"),
    [
        # Whole before what a value explains, and before what needs a slip.
        (b"xmustbecontiguous", (b"xmustbecontiguous",), (b"", b"mustbecontiguous")),
        (b"xmustbecontiguous", (b"", b"mustbecontiguous"), (b"ymustbecontiguous",)),
        # A cut explains all that is missing, however much; a value explains little.
        (
            b"thegroupsizeis128andtherowsaren",
            (b"thegroupsizeis", b"andtherowsarenot" + b"y" * 90),
            (b"the", b""),
        ),
        (b"thegroupsizes", (b"thegroupsizeis",), (b"thegroup", b"")),
        # Digits count.
        (b"fp8scalesmustbeuint8", (b"fp8scalesmustbeuint8",), (b"fp4scalesmustbeuint8",)),
        (b"prefix:thescaleislost", (b"thescaleislost",), (b"thescaleisset",)),
    ],
)
def test_which_template_a_text_is_likelier_of(
    text: bytes, better: tuple[bytes, ...], worse: tuple[bytes, ...]
) -> None:
    assert align(text, better) > align(text, worse)


@given(
    keys=st.lists(st.binary(max_size=12).map(lambda key: key.replace(b"\0", b"a")), min_size=1, max_size=4),
    values=st.lists(st.sampled_from([b"7", b"fp8", b"zz"]), min_size=3, max_size=3),
    size=st.integers(0, 40),
)
def test_a_beginning_is_all_said(keys: list[bytes], values: list[bytes], size: int) -> None:
    whole = b"".join(part for pair in zip(keys, [*values, b""], strict=False) for part in pair)
    found = align(whole[:size], keys)
    assert begun(whole[:size], keys) <= found.said <= min(size, sum(map(len, keys)))


def test_only_the_beginning_of_long_texts_is_looked_at() -> None:
    assert align(b"a" * (1 << 20), (b"a" * (1 << 20),)).said == LONGEST
