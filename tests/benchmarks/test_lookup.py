"""The benchmark of look-ups: texts are what they say, answers are judged right, the table is whole."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import lookup
from benchmarks.cases import Case, Judge, Place, read
from benchmarks.known import Known
from benchmarks.rival import Rival
from benchmarks.texts import FORMS, Sample, sample


@pytest.fixture(scope="module")
def known() -> Known:
    return Known([])


@pytest.fixture(scope="module")
def drawn(known: Known) -> list[Sample]:
    return list(known.drawn(random.Random(3), 60))


def test_a_message_is_its_template_with_its_values(drawn: list[Sample]) -> None:
    assert len({each.entry.message for each in drawn}) == len(drawn) == 60
    for each in drawn:
        whole = re.fullmatch(each.entry.template.pattern, each.message, re.DOTALL)
        assert whole is not None, each.message
        assert len(whole.groups()) == len(each.values)


@pytest.mark.parametrize("name", FORMS)
def test_a_form_changes_what_it_says_and_nothing_else(drawn: list[Sample], name: str) -> None:
    texts = [(each, FORMS[name](each, random.Random(1))) for each in drawn]
    assert [text for _, text in texts if text] == [
        text for each in drawn if (text := FORMS[name](each, random.Random(1)))
    ]
    for each, text in texts:
        message = each.message
        if name.startswith("cut"):
            assert text == message[: int(name[-2:])]
        elif name == "start lost":
            assert text is not None
            assert message.endswith(text)
            assert 0.4 * len(message) < len(text) < len(message)
        elif name == "word changed":
            assert text is None or text != message
        elif name == "typos":
            assert text is not None
            assert abs(len(text) - len(message)) <= 2
        elif name == "JSON-escaped":
            assert text is not None
            assert json.loads(text)["msg"] == each.raised
        elif name == "wrapped":
            assert text is not None
            assert "".join(text.split()) == "".join(each.raised.split())
        elif name == "coloured":
            assert text is not None
            assert re.sub(r"\x1b\[[\d;]*m", "", text) == each.raised
        else:
            assert text is not None
            assert text.endswith(each.raised)


def test_equal_words_are_the_right_answer_and_other_records_are_counted(known: Known) -> None:
    by_text: dict[int, list[str]] = {}
    for identifier, texts in known.texts.items():
        for text in texts:
            by_text.setdefault(text, []).append(identifier)
    twins = next(names for names in by_text.values() if len(names) > 1)
    other = next(name for name in known.texts if known.texts[name].isdisjoint(known.texts[twins[0]]))
    assert known.rank(twins[0], [twins[1]]) == 0
    assert known.rank(twins[0], [other, other, twins[0]]) == 1
    assert known.rank(twins[0], [other]) == known.rank(twins[0], []) == sys.maxsize


def test_the_obvious_way_takes_the_longest_pattern_found_else_the_most_words(known: Known) -> None:
    rival = Rival(known.entries)
    numbers = {entry.message: number for number, entry in enumerate(known.entries)}
    message = "Quanto checkpoint is missing quantization_map_base64"
    assert rival.find(f"it says: {message}!", 5)[0] == numbers[message]
    assert rival.find("checkpoint of Quanto: missing is quantization_map_base64", 1) == [numbers[message]]
    assert len(rival.loop(message, 0.0)) <= 1


def _case(**wanted: object) -> str:
    return json.dumps(
        {"id": "C1", "text": "ValueError: Unsupported output_s dtype x", "expect": wanted or None}
    )


def test_a_case_counts_when_its_place_is_indexed(known: Known, tmp_path: Path) -> None:
    entry = next(each for each in known.curated if each.message.startswith("Unsupported output_s dtype"))
    site = entry.sites[0]
    file = tmp_path / "cases.jsonl"
    file.write_text(
        "\n".join(
            (
                _case(package="p", path="x.py", function="f", alts=[{"path": site.path, "function": "a.g"}]),
                _case(package="p", path=f"moved/{Path(site.path).name}", function=f"C.{site.function}"),
                _case(),
            )
        ),
        "utf-8",
    )
    wrong, right, none = read(file)
    assert [place.function for place in wrong.places] == ["f", "g"]
    assert none.places == ()
    judge = Judge(known)
    # Curated records alone are no index of a package.
    assert not judge.counts(right)
    report = known.matcher.match(right.text)
    assert judge.rank(right, report) == 0
    assert judge.rank(wrong, report) is None
    unknown = Case("C2", "", "p", (Place.of(site.path, "launcher run / CHECK(x)"),))
    assert judge.rank(unknown, report) == 0  # a function that is no name: the file alone is compared


def test_captures_are_read_right_or_not(known: Known) -> None:
    entry = next(each for each in known.curated if each.message.startswith("Unsupported output_s dtype"))
    each = sample(entry, random.Random(0))
    [found] = known.matcher.match(each.raised).matches
    assert lookup.is_of(each, found)
    assert lookup.read_right(each, found)
    assert not lookup.read_right(Sample(entry, each.message + "x", ("y",)), found)


def test_the_table_has_a_row_for_everything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cases = tmp_path / "cases.jsonl"
    cases.write_text(_case(), "utf-8")
    for name, value in {"MIB": 1 << 14, "DRAWN": 3, "TIMED": 3, "ROUNDS": 1, "RIVALS": 2}.items():
        monkeypatch.setattr(lookup, name, value)
    monkeypatch.setattr(sys, "argv", ["lookup", "--cases", str(cases)])
    lookup.main()
    printed = capsys.readouterr().out
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines() if line.startswith("|")]
    for form in FORMS:
        assert any(row[0].startswith(form) for row in rows), form
    for title in (
        "bare scan",
        "log of",
        "false matches",
        "captures",
        "real cases",
        "a line of 1 MiB: one message",
        "those that lost something",
        "a million lines",
    ):
        assert title in printed
    assert all(line.count("|") == 4 for line in printed.splitlines() if line.startswith("|"))


def test_a_benchmark_is_run_by_its_name_with_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, ...]] = []

    def run(*asked: str) -> bool:
        ran.append(asked)
        return asked[0] != "start"

    monkeypatch.setattr(command, "_run", run)
    for arguments, code in ((["lookup", "--cases", "x"], 0), (["start"], 1), (["nothing"], 2)):
        monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
        assert command.main() == code
    assert ran == [("lookup", "--cases", "x"), ("start",)]
