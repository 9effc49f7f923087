"""The template's pattern, weight and linear walk."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.template import KINDS, Template, infer_kind, key_of


def test_pattern_escapes_special_characters_only() -> None:
    template = Template.parse("kv shape {tuple(kv.shape)} is not ({kv.shape[0]}, {g}) # a-b & c!")
    assert template.pattern == r"kv shape (.+?) is not \((.+?), (.+?)\) # a-b & c!"


def test_every_special_character_is_escaped() -> None:
    assert Template.parse(r"\^$.|?*+()[]{{}}").pattern == r"\\\^\$\.\|\?\*\+\(\)\[\]\{\}"


def test_holes_are_opaque_and_keep_their_conversion() -> None:
    template = Template.parse("Unsupported type for {prefix!r}: {quantization.get('weights')!r}")
    assert [hole.text for hole in template.holes] == ["prefix!r", "quantization.get('weights')!r"]
    assert template.literals == ("Unsupported type for ", ": ")


def test_doubled_braces_are_part_of_a_literal() -> None:
    template = Template.parse("a {{b}} c {d}")
    assert template.segments == ("a {b} c ", "")


def test_a_text_that_is_no_format_string_is_one_literal() -> None:
    assert Template.parse("expected { after the name").segments == ("expected { after the name",)


def test_a_trailing_hole_takes_the_whole_rest() -> None:
    template = Template.parse("kv_scales must be fp32, got {kv_scales.dtype}")
    assert template.capture("kv_scales must be fp32, got torch.bfloat16") == ("torch.bfloat16",)


def test_a_last_literal_is_the_one_at_the_end() -> None:
    template = Template.parse("expected ({a}, {b})")
    assert template.capture("expected ((1, 2), f(3))") == ("(1", "2), f(3)")


@pytest.mark.parametrize("text", ["", "got ", "got", "got x!", "xgot y", "got \N{GREEK SMALL LETTER PI}!"])
def test_what_is_not_the_whole_message_is_no_capture(text: str) -> None:
    assert Template.parse("got {x}.").capture(text) is None


def test_weight_counts_the_characters_that_are_compared() -> None:
    assert key_of('Size "A" of\n\x00 `B` is\\ 1?\N{SNOWMAN}') == b"sizeaofbis1"
    assert Template.parse("Size 'A': {a} of {b}").literal_weight == len("sizea:of")


_LITERALS = st.text("ab{} .\n\\(", max_size=3)


@given(st.lists(_LITERALS, min_size=1, max_size=5), st.text("ab{} .\n\\(", max_size=14))
def test_the_walk_equals_a_lazy_full_match(literals: list[str], text: str) -> None:
    message = "{x}".join(literal.replace("{", "{{").replace("}", "}}") for literal in literals)
    template = Template.parse(message)
    expected = re.fullmatch(template.pattern, text, re.DOTALL)
    assert template.capture(text) == (None if expected is None else expected.groups())


@given(st.lists(_LITERALS, min_size=1, max_size=5), st.data())
def test_what_a_template_renders_is_captured(literals: list[str], data: st.DataObject) -> None:
    message = "{x}".join(literal.replace("{", "{{").replace("}", "}}") for literal in literals)
    template = Template.parse(message)
    values = [data.draw(st.text("ab\n", min_size=1, max_size=4)) for _ in template.holes]
    text = template.segments[0]
    for value, segment in zip(values, template.segments[1:], strict=True):
        text += value + segment
    captured = template.capture(text)
    assert captured is not None
    assert captured == re.fullmatch(template.pattern, text, re.DOTALL).groups()  # type: ignore[union-attr]


def test_the_walk_stays_linear_where_a_regex_explodes() -> None:
    template = Template.parse("a{x}a{x}a{x}a{x}a{x}a{x}b")
    started = time.perf_counter()
    assert template.capture("a" * 1_000_000) is None
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize(
    ("expr", "kind"),
    [
        ("q.dtype", "dtype"),
        ("data_slice.get_dtype()", "dtype"),
        ("_FP8_DTYPE", "dtype"),
        ("tuple(sfk.shape)", "shape"),
        ("sf_shape", "shape"),
        ("loaded_weight.size()", "shape"),
        ("unified_kv.shape[0]", "int"),
        ("kv.size(-1)", "int"),
        ("_FP8_GROUP_SIZE", "int"),
        ("sum(output_partition_sizes)", "int"),
        ("layer.input_size", "int"),
        ("x.device", "device"),
        ("x.is_contiguous()", "bool"),
        ("path", "path"),
        ("prefix", "name"),
        ("scale_name", "name"),
        ("sorted(missing)", "text"),
        ("reason", "text"),
    ],
)
def test_kinds_follow_the_expression(expr: str, kind: str) -> None:
    assert infer_kind(expr) == kind
    assert kind in KINDS


def test_a_float_format_makes_a_float() -> None:
    assert infer_kind("capability.to_int() / 10", ".1f") == "float"
