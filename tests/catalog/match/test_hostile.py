"""Whatever is pasted costs time in proportion to its length, and a flood hides nothing.

Limits on time are coarse: a quadratic step over these sizes takes minutes or hours.
"""

from __future__ import annotations

import tracemalloc
from time import perf_counter

import pytest

from catalog.match import MATCH, Matcher
from catalog.match.literals import MAX_TRIED, MAX_TRIED_ALL, Group
from catalog.match.work import ON_A_LINE

MIB = 1 << 20
OUTPUT_S = "ValueError: Unsupported output_s dtype torch.uint8"
OUTPUT_S_ID = "d88716b07b0cf3b3"

UNITS = {
    "one character": "x",
    "NUL": "\x00",
    "spaces": " ",
    "short lines": "ab\n",
    "a literal": "Quanto layer ",
    "a head and no rest": "D=",
    "a middle": ", got ",
    "a message without holes": "Quanto checkpoint is missing quantization_map_base64 ",
    "a message in lines": "ValueError: scale_ue8m0=True requires an int32-packed output_s\n",
    "a message without an end": "D=1 must be divisible by GROUP_SIZE=",
    "quotes before a message": '"' * 20 + "kv_scales must be fp32, got torch.float16",
    "open brackets": "ValueError: Unsupported Quanto weight type for '([",
    "exceptions": "XError: x\n",
    "exceptions in a line": "XError: ",
    "bare exceptions": "AssertionError\n",
    "launcher places": "Failed at a/per_token_group_quant.cuh:557\n",
    "launcher prefixes": "Failed at a/b.cuh:5: ",
    "frames": '  File "/x/paged_decode.py", line 684, in f\n',
    "places": ".py:1 ",
    "tracebacks": "Traceback (most recent call last)\n",
    "chains": "During handling of the above exception, another exception occurred:\n",
    "escapes": "\\n",
    "backslashes": "\\",
    "entities": "&#39;",
    "colours": "\x1b[0m",
    "broken colours": "\x1b[",
    "quote marks": "> ",
    "prefixes": "[rank1]: ",
    "not ASCII": "é✓😀",
    "line ends": "\r\n",
}


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS.keys())
def test_a_flood_of_2_mib_and_a_message_behind_it(matcher: Matcher, unit: str) -> None:
    text = unit * (2 * MIB // len(unit))
    started = perf_counter()
    report = matcher.match(f"{text}\n{OUTPUT_S}\n")
    assert perf_counter() - started < 15
    assert OUTPUT_S_ID in {match.record_id for match in report.matches}
    assert len(report.matches) <= 25
    assert len(report.unmatched) <= 25


@pytest.mark.parametrize("unit", ["x", "Quanto layer ", "ab\n"])
def test_16_mib(matcher: Matcher, unit: str) -> None:
    text = (unit * (16 * MIB // len(unit))).encode() + b"\xff"
    started = perf_counter()
    matcher.match(text)
    assert perf_counter() - started < 30


def test_work_does_not_grow_faster_than_the_text(matcher: Matcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations, not seconds: verified anchors per repetition of what costs most of them."""
    verified = 0
    locate = Group.locate

    def counted(self: Group, key: bytes, segment: int, at: int) -> list[tuple[int, int]] | None:
        nonlocal verified
        verified += 1
        return locate(self, key, segment, at)

    monkeypatch.setattr(Group, "locate", counted)
    unit = "Comfy W4A4 layer 'a' needs I8 packed weights and F32 scales, got F16 and F16\n"
    per_unit = []
    for count in (100, 1000, 10_000):
        verified = 0
        matcher.match(unit * count)
        per_unit.append(verified / count)
    assert per_unit[2] <= per_unit[1] <= per_unit[0]
    verified = 0
    matcher.match(unit * 200_000)
    assert verified <= MAX_TRIED_ALL


def test_a_flood_is_counted_up_to_the_limit_and_said_to_be_cut(matcher: Matcher) -> None:
    few = matcher.match(f"{OUTPUT_S}\n" * 3000)
    assert (few.matches[0].count, few.truncated) == (3000, False)
    many = matcher.match(f"{OUTPUT_S}\n" * (2 * MAX_TRIED))
    assert (many.matches[0].count, many.truncated) == (MAX_TRIED, True)


@pytest.mark.parametrize("between", [" ", "; ", ""])
def test_a_message_repeated_on_one_line_is_a_match(matcher: Matcher, between: str) -> None:
    message = "Quanto checkpoint is missing quantization_map_base64"
    few = matcher.match(f"{message}{between}" * 100)
    assert (few.matches[0].score >= MATCH, few.matches[0].count, few.truncated) == (True, 100, False)
    many = matcher.match(f"{message}{between}" * (2 * ON_A_LINE))
    assert (many.matches[0].count, many.truncated) == (ON_A_LINE, True)


def test_a_full_line_hides_nothing_on_the_next(matcher: Matcher) -> None:
    flood = "XError: Quanto checkpoint is missing quantization_map_base64 " * 2000
    report = matcher.match(f"{flood}\nXError: y\n{OUTPUT_S}\n{flood}")
    assert OUTPUT_S_ID in {match.record_id for match in report.matches}
    assert ("XError", "y") in {(missed.exception, missed.message) for missed in report.unmatched}
    assert report.truncated


def test_many_different_values_are_cut(matcher: Matcher) -> None:
    report = matcher.match("\n".join(f"Unsupported output_s dtype {number}" for number in range(5000)))
    assert report.truncated
    assert 0 < len(report.matches) <= 25


@pytest.mark.parametrize("before", [0, 17, 1 << 14, (1 << 20) - 30, (1 << 20) + 5])
@pytest.mark.parametrize("filler", ["x", "log line\n"])
def test_a_message_is_found_once_wherever_pieces_are_cut(matcher: Matcher, before: int, filler: str) -> None:
    start = (filler * (before // len(filler) + 1))[:before]
    report = matcher.match(f"{start}\n{OUTPUT_S}\n{filler * 200_000}")
    assert [(match.record_id, match.count) for match in report.matches] == [(OUTPUT_S_ID, 1)]
    assert report.matches[0].span[0] == len(start) + 1 + len("ValueError: ")


def test_memory_is_a_small_multiple_of_the_text(matcher: Matcher) -> None:
    text = "ERROR 02-22 00:01:41 engine.py:400] some line of a log\n" * (8 * MIB // 56)
    tracemalloc.start()
    try:
        matcher.match(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(text)


def test_nothing_of_the_text_is_kept(matcher: Matcher) -> None:
    """A second text is judged as if the first had not been."""
    before = matcher.match(OUTPUT_S)
    matcher.match("kv_scales must be fp32, got torch.int8\n" * 50)
    assert matcher.match(OUTPUT_S) == before
