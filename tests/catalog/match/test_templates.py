"""Every template, rendered with plausible values and pasted in all the ways people paste: found, read
right."""

from __future__ import annotations

import html
import json
import random
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any
from urllib.parse import quote

import pytest

from catalog.match import MATCH, Match, Matcher, Site
from catalog.template import Template, infer_kind
from kernels.message import Hole, render
from tests.catalog.match.conftest import entry
from tests.catalog.match.upstream import RECORDS

VALUES: dict[str, list[Any]] = {
    "dtype": ["torch.float16", "torch.float8_e4m3fn", "torch.bfloat16", "F8_E4M3"],
    "shape": [(128, 4), (16, 7168), (1,), ()],
    "int": [448, 64, 7],
    "device": ["cuda:0", "cpu"],
    "path": ["/models/wan/model.safetensors"],
    "name": ["transformer_blocks.0.attn.to_q", "blocks.3.ffn"],
    "float": [9.0, 8.6],
    "bool": [True, False],
    "text": [["blocks.0.weight", "blocks.1.scale"], "qint4", {"format": "int8"}, "unsupported layout"],
}


@dataclass(frozen=True)
class Case:
    """One rendered message; `captured` is what its holes should be read as."""

    record_id: str
    twins: frozenset[str]
    exception: str
    path: str
    function: str
    line: int
    message: str
    captured: list[str]

    @property
    def last(self) -> str:
        return f"{self.exception}: {self.message}"

    @property
    def traceback(self) -> str:
        installed = self.path.replace("python/", "/usr/lib/python3/dist-packages/", 1)
        return (
            "Traceback (most recent call last):\n"
            '  File "/app/serve.py", line 10, in <module>\n    main()\n    ^^^^^^\n'
            f'  File "{installed}", line {self.line}, in {self.function}\n'
            f"    raise {self.exception}(\n{self.last}"
        )


def _value(hole: Hole, chance: random.Random) -> Any:
    return chance.choice(VALUES[infer_kind(hole.expr, hole.format_spec)])


def _cases() -> list[Case]:
    cases = []
    for known in RECORDS:
        chance = random.Random(known.record_id)  # a record added elsewhere changes no other's values
        template = Template.parse(known.message)
        values = [_value(hole, chance) for hole in template.holes]
        shown = [hole.fill(value) for hole, value in zip(template.holes, values, strict=True)]
        cases.append(
            Case(
                known.record_id,
                frozenset(other.record_id for other in RECORDS if other.message == known.message),
                known.exception,
                known.path,
                known.functions[0].rpartition(".")[2],
                known.lines[-1],
                render(known.message, values),
                # A `!r` hole of a string is read without its quotes.
                [
                    value if hole.conversion == "r" and isinstance(value, str) else text
                    for hole, value, text in zip(template.holes, values, shown, strict=True)
                ],
            )
        )
    return cases


CASES = _cases()


def _each_line(before: str, text: str) -> str:
    return "\n".join(before + line for line in text.split("\n"))


# Those with a traceback must also tell sites of the same text apart.
WITH_STACK: dict[str, Callable[[Case], str | bytes]] = {
    "traceback": lambda case: case.traceback,
    "torchrun": lambda case: _each_line("[rank3]: ", case.traceback),
    "ray": lambda case: _each_line("(WorkerDict pid=859188, ip=10.0.0.1) ", case.traceback),
    "vllm worker": lambda case: _each_line(
        "(Worker_TP0 pid=12) ERROR 08-19 13:12:57 [core.py:708] ", case.traceback
    ),
    "sglang scheduler": lambda case: (
        f"[2026-05-22 09:14:03 TP2] Scheduler hit an exception: {case.traceback}\n\n"
        "[2026-05-22 09:14:03] Received sigquit from a child process. It usually means the child failed."
    ),
    "compose": lambda case: _each_line("sglang-1  | ", case.traceback),
    "coloured": lambda case: case.traceback.replace("Error: ", "Error\x1b[0m: \x1b[1;31m") + "\x1b[0m",
    "colours as text": lambda case: (
        case.traceback.replace("Error: ", r"Error\u001b[0m: \u001b[31m") + r"\u001b[0m"
    ),
    "JSON log": lambda case: json.dumps({"level": "error", "msg": case.traceback, "rank": 3}),
    "HTML": lambda case: f"<pre>{html.escape(case.traceback)}</pre>",
    "Windows line ends": lambda case: case.traceback.replace("\n", "\r\n"),
    "progress bar": lambda case: f"Loading:  87%|████▋ | 20/23 [00:07<00:00]\r{case.traceback}",
    "quoted mail": lambda case: _each_line("> ", case.traceback),
    "pytest": lambda case: (
        "    def test_it():\n>       run()\n\ntests/test_it.py:3:\n_ _ _\n\n"
        f">       raise {case.exception}(\n"
        f"E       {case.last}\n\n{case.path}:{case.line}: {case.exception}\n"
    ),
    "question": lambda case: f"Hi, I get this:\n\n{case.traceback}\n\nHow do I fix it?",
    "invalid UTF-8": lambda case: b"\xff\xfe \x00" + case.traceback.encode() + b"\x00\xff \n\x80",
}
WITHOUT_STACK: dict[str, Callable[[Case], str | bytes]] = {
    "bare": lambda case: case.message,
    "last line": lambda case: case.last,
    "log line": lambda case: f"ERROR 02-22 00:01:41 engine.py:400] {case.message}",
    "loguru": lambda case: f"2026-01-01 00:00:00.123 | ERROR    | sglang.srt:run:12 - {case.message}",
    "JSON value": lambda case: json.dumps({"level": "error", "msg": case.message, "rank": 3}),
    "JSON in JSON": lambda case: json.dumps({"outer": json.dumps({"m": case.last, "rank": 1})}),
    "address": lambda case: f"https://example.org/new?title={quote(case.last)}",
    "in an author's quotes": lambda case: f"请问报错“{case.last}”怎么解决？",
    "in corner brackets": lambda case: f"起動すると「{case.last}」が出ました。",
    "before an ideographic comma": lambda case: f"错误信息：{case.message}，请帮忙看看",
    "HTML line breaks": lambda case: f"Loading<br>{html.escape(case.last)}<br />Why?",
    "bytes": lambda case: repr(f"Loading\n{case.last}".encode()),
    "among ideographs": lambda case: f"启动时报错：{case.exception}：{case.message}\n怎么解决？",
    "repr": lambda case: f"caught {case.exception}({case.message!r})",
    "pytest summary": lambda case: f"FAILED tests/test_it.py::test_it[32-2] - {case.last}",
    "wrapped by another": lambda case: (
        f"ValueError: Cannot configure checkpoint quantization for 'x': {case.message}"
    ),
    "re-emitted": lambda case: (
        f"Exception in method load: {case.message}., Traceback (most recent call last):"
    ),
    "Ray, repeated": lambda case: f"(W pid=1) {case.last} [repeated 3x across cluster]",
    "ellipsis": lambda case: f"{case.last}...",
    "code span": lambda case: f"I get `{case.message}` when it starts",
}


def _of(case: Case, found: Sequence[Match]) -> Match | None:
    """The match of a case: its record's own, or that of a copy of its text."""
    own = (match for match in found if match.record_id == case.record_id)
    copies = (match for match in found if case.record_id in match.siblings)
    return next(chain(own, copies), None)


def _wrong(matcher: Matcher, paste: Callable[[Case], str | bytes], *, stack: bool) -> list[str]:
    wrong = []
    for case in CASES:
        found = matcher.match(paste(case)).matches
        first = [match.record_id for match in found if match.score >= found[0].score]
        mine = _of(case, found)
        if mine is None or mine.score < MATCH:
            wrong.append(f"not found: {case.message}")
        elif first != [case.record_id] if stack else not case.twins.issuperset(first):
            wrong.append(f"{first} come first for {case.message}")
        elif [capture.value for capture in mine.captures] != case.captured:
            wrong.append(f"read {[capture.value for capture in mine.captures]} in {case.message}")
        elif mine.rendered != case.message:
            wrong.append(f"rendered {mine.rendered} for {case.message}")
    return wrong


@pytest.mark.parametrize("paste", WITH_STACK.values(), ids=WITH_STACK.keys())
def test_found_with_its_stack(matcher: Matcher, paste: Callable[[Case], str | bytes]) -> None:
    assert _wrong(matcher, paste, stack=True) == []


@pytest.mark.parametrize("paste", WITHOUT_STACK.values(), ids=WITHOUT_STACK.keys())
def test_found_without_a_stack(matcher: Matcher, paste: Callable[[Case], str | bytes]) -> None:
    assert _wrong(matcher, paste, stack=False) == []


@pytest.mark.parametrize("width", [40, 50, 60, 80])
@pytest.mark.parametrize("how", ["words", "columns"])
def test_found_when_wrapped(matcher: Matcher, width: int, how: str) -> None:
    """A break inside a value cannot always be undone; the record is found and most values are read right."""
    missed, misread = [], 0
    for case in CASES:
        columns = range(0, len(case.last), width)
        text = (
            textwrap.fill(case.last, width)
            if how == "words"
            else "\n".join(case.last[at : at + width] for at in columns)
        )
        mine = _of(case, matcher.match(text).matches)
        if mine is None or mine.score < MATCH:
            missed.append(text)
        elif [capture.value for capture in mine.captures] != case.captured:
            misread += 1
    assert missed == []
    assert misread <= len(CASES) // 8  # 15 of 134 at 80 columns, where values are drawn by record


@pytest.mark.parametrize("wrapped", [False, True])
def test_spans_are_places_in_the_text_as_pasted(matcher: Matcher, wrapped: bool) -> None:
    for case in CASES:
        message = textwrap.fill(case.message, 50) if wrapped else case.message
        before = "é ✓ 😀 before it\n\x1b[31m[rank1]:\x1b[0m "
        found = matcher.match(f"{before}{message}\nafter it").matches
        mine = _of(case, found)
        assert mine is not None
        assert mine.line == 2
        start, end = mine.span
        assert start == len(before)
        if not wrapped:
            assert f"{before}{message}\nafter it"[start:end] == message


@pytest.mark.parametrize(
    ("template", "exception", "text", "values"),
    [
        (
            "{key} must be in (0, 1] or null, got {value!r}.",
            "UpdateRejected",
            "UpdateRejected: a must be in (0, 1] or null, got None.",
            ["a", "None"],
        ),
        (
            "{key} must be in (0, 1] or null, got {value!r}.",
            "ValueError",
            "Update: a must be in (0, 1] or null, got 3.",
            ["Update: a", "3"],
        ),
        (
            "Process {rank} timed out with traceback: \n\n{trace}",
            "RuntimeError",
            "RuntimeError: Process 7 timed out with traceback: \n\n{'a': 1}",
            ["7", "{'a': 1}"],
        ),
        (
            "Capture CPU graph failed: {e}\n{hint}",
            "Exception",
            "Exception: Capture CPU graph failed: {'a': 1}\npossible solutions: none",
            ["{'a': 1}", "possible solutions: none"],
        ),
        (
            "{why}\nFailed to split the device into {count} groups.",
            "RuntimeError",
            "RuntimeError: too few SMs\nFailed to split the device into 3 groups.",
            ["too few SMs", "3"],
        ),
        (
            "Weights matched {n}/{all} ({share:.2%}); below threshold {least:.2%}.",
            "RuntimeError",
            "RuntimeError: Weights matched 3/4 (75.00%); below threshold 88.00%.",
            ["3", "4", "75.00%", "88.00%"],
        ),
        (
            "`lengths` must be a torch.Tensor, got {lengths!r}.",
            "TypeError",
            "TypeError: `lengths` must be a torch.Tensor, got 3.",
            ["3"],
        ),
    ],
)
def test_values_are_read_where_the_template_has_them(
    template: str, exception: str, text: str, values: list[str]
) -> None:
    """Behind a class of any name, on a line of their own, with the sign behind a share."""
    known = entry("it", template, Site("a/b.py", "f", (3,), exception), curated=False)
    [match] = Matcher([known]).match(text).matches
    assert [capture.value for capture in match.captures] == values
