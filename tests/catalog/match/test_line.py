"""One plain line: the short way gives what the way of all texts gives, and is taken for nearly every
message."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog.match import Entry, Matcher, Site, line
from catalog.match.guessing import may_hide
from catalog.match.literals import EVERYTHING
from catalog.template import key_of
from tests.catalog.match.conftest import entry
from tests.catalog.match.test_anything import FRAGMENTS
from tests.catalog.match.test_templates import CASES, Case


def test_what_it_answers_is_what_all_texts_are_answered(matcher: Matcher) -> None:
    answered = asked = 0
    for case in CASES:
        # What values may hide a longer message in is left to the other way.
        captures = matcher.match_any(case.last).matches[0].captures
        words = len(key_of(case.message)) - len(key_of("".join(case.captured)))
        hidden = may_hide(((capture.kind, capture.value) for capture in captures), words)
        for text in (case.message, case.last, f"pkg.errors.{case.last}"):
            report = line.look_up(matcher, text, EVERYTHING)
            asked += not hidden
            if report is not None:
                answered += 1
                assert report == matcher.match_any(text)
    assert answered >= 0.9 * asked
    assert asked >= 0.75 * 3 * len(CASES)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    case=st.sampled_from(CASES),
    before=st.sampled_from(["", "ValueError: ", "x.Y_Error: ", "Unsupported ", "E  ", "[rank1]: "]),
    pieces=st.lists(st.sampled_from([each for each in FRAGMENTS if "\n" not in each]), max_size=2),
)
def test_in_doubt_it_does_not_answer(matcher: Matcher, case: Case, before: str, pieces: list[str]) -> None:
    text = f"{before}{case.message}{''.join(pieces)}"
    report = line.look_up(matcher, text, EVERYTHING)
    assert report is None or report == matcher.match_any(text)


def _entries(*messages: str) -> list[Entry]:
    return [
        entry(f"r{number}", message, Site("a/b.py", "f", (3,), "ValueError"), curated=False)
        for number, message in enumerate(messages)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: layer a needs a scale of its own",  # a template within a value of another
        "ValueError: layer layers.3 needs a scale of its own",  # the first word again in the value
        "ValueError: unsupported unsupported scale of a layer",
        "ValueError: the scale of the layer is unsupported",
    ],
)
def test_templates_inside_each_other(text: str) -> None:
    matcher = Matcher(
        _entries(
            "layer {name} needs a scale of its own",
            "unsupported {what} scale of a layer",
            "the scale of the layer is {what}",
            "unsupported",
            "ValueError {error}",
        )
    )
    report = line.look_up(matcher, text, EVERYTHING)
    assert report is not None
    assert report == matcher.match_any(text)
    assert (report.root_cause, report.matches[0].span) == (0, (len("ValueError: "), len(text)))


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: layer 'a' needs a scale of its own, see OSError: disk full",
        "ValueError: layer 'a' needs a scale of its own...",
        "ValueError: layer 'a' needs\na scale of its own",
        "\x1b[31mValueError: layer 'a' needs a scale of its own",
        "Failed at a.cuh:3: layer 'a' needs a scale of its own",
        "see: layer 'a' needs a scale of its own",
        "KeyError: layer 'a' needs a scale of its own",
    ],
)
def test_what_is_not_one_plain_message_is_left_to_the_other_way(text: str) -> None:
    matcher = Matcher(_entries("layer {name!r} needs a scale of its own"))
    assert line.look_up(matcher, text, EVERYTHING) is None


def test_few_places_are_all_places(matcher: Matcher) -> None:
    for case in CASES:
        whole = key_of(case.last)
        found = [(place.group.number, place.places) for place in matcher.index.find(whole, {})]
        assert [(place.group.number, place.places) for place in matcher.index.few(whole)] == found


@pytest.mark.parametrize("value", ["hf_abcdefghijklmnopqrstuv", "/models/a", "user@example.org"])
def test_what_it_echoes_is_redacted(value: str) -> None:
    matcher = Matcher(_entries("no layer of this name was found in any of the checkpoints: {name}"))
    text = f"ValueError: no layer of this name was found in any of the checkpoints: {value}"
    report = line.look_up(matcher, text, EVERYTHING)
    assert report is not None
    assert report == matcher.match_any(text)
    assert (value in report.matches[0].rendered) is (value in report.matches[0].captures[0].value)
    assert (value in report.matches[0].rendered) is (value == "/models/a")


def test_values_that_outweigh_the_words_are_left_to_the_other_way() -> None:
    matcher = Matcher(_entries("{context} requires {name}"))
    text = f"ValueError: {'a long story ' * 25}requires {'more of it ' * 15}x"
    assert line.look_up(matcher, text, EVERYTHING) is None
    assert not matcher.match(text).has_match


@pytest.mark.parametrize(
    ("text", "record", "values"),
    [
        ("ValueError: max_entries must be positive", "r1", []),
        ("E  ValueError: max_entries must be positive", "r1", []),
        ("ValueError: cache: max_entries must be positive", "r0", ["cache"]),
        ("max_entries must be positive", "r1", []),
        # A log line may print the class of what it caught.
        ("RuntimeError: the cache of the engine failed", "r2", ["RuntimeError"]),
        ("[2026-01-01 10:00:00] ERROR ValueError: the cache of the engine failed", "r2", ["ValueError"]),
    ],
)
def test_the_colon_behind_a_class_is_no_word_of_a_message(text: str, record: str, values: list[str]) -> None:
    raised = _entries(
        "{name}: max_entries must be positive",
        "max_entries must be positive",
        "{kind}: the cache of the engine failed",
    )
    matcher = Matcher([*raised[:2], replace(raised[2], logged=True)])
    [match] = matcher.match(text).matches
    assert (match.record_id, [capture.value for capture in match.captures]) == (record, values)


@pytest.mark.parametrize(
    ("message", "printed", "values"),
    [
        (
            "q/k/v shape mismatch: {q.shape} {k.shape} {v.shape}",
            "q/k/v shape mismatch: (1,) (2, 3) (4,)",
            ["(1,)", "(2, 3)", "(4,)"],
        ),
        (
            "no weight of this shape: {name}{tuple(x.shape)}, got one",
            "no weight of this shape: q_proj[1, 3, 224], got one",
            ["q_proj", "[1, 3, 224]"],
        ),
        (
            "the scale is wrong, got {scale_dtype}{scale_shape}",
            "the scale is wrong, got torch.float8_e4m3fn(1,)",
            ["torch.float8_e4m3fn", "(1,)"],
        ),
        (
            "the layer's number is wrong: {name}{index}",
            "the layer's number is wrong: blocks.3.ffn7",
            ["blocks.3.ffn", "7"],
        ),
        (
            "{e}\n\nSharding propagation failed for {op}",
            "no rule\n\nSharding propagation failed for aten.mm",
            ["no rule", "aten.mm"],
        ),
    ],
)
def test_values_that_touch(message: str, printed: str, values: list[str]) -> None:
    matcher = Matcher(_entries(message))
    for text in (printed, f"ValueError: {printed}"):
        match = matcher.match(text).matches[0]
        assert [capture.value for capture in match.captures] == values
