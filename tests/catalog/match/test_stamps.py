"""Time stamps: every usual form, and which of two is earlier."""

from __future__ import annotations

import pytest

from catalog.match.stamps import earlier, epoch, last, stamp

AT = 1796202845  # 2026-12-02 09:14:05 UTC


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("[2026-12-02 09:14:05 DP0 TP2] x", "2026-12-02 09:14:05"),
        ("2026-12-02T09:14:05Z x", "2026-12-02T09:14:05Z"),
        ("2026-12-02T11:14:05+02:00 x", "2026-12-02T11:14:05+02:00"),
        ("2026-12-02T04:14:05-0500 x", "2026-12-02T04:14:05-0500"),
        ("time : 2026-12-02_09:14:05", "2026-12-02_09:14:05"),
        ("2026/12/02 09:14:05 x", "2026/12/02 09:14:05"),
        ("[12/02/26 09:14:05] ERROR", "12/02/26 09:14:05"),
        ("02/Dec/2026:09:14:05 +0000", "02/Dec/2026:09:14:05 +0000"),
        ("Wed Dec  2 09:14:05 2026", "Dec  2 09:14:05 2026"),
        ("Wed, 02 Dec 2026 09:14:05 GMT", "02 Dec 2026 09:14:05"),
    ],
)
def test_a_dated_time(text: str, printed: str) -> None:
    found = stamp(text)
    assert found is not None
    assert (found.printed, found.form, found.seconds) == (printed, "dated", AT)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("ERROR 12-02 09:14:05 a.py:1]", "12-02 09:14:05"),
        ("E1202 09:14:05.500000 1234 a.cc:12] x", "1202 09:14:05.500000"),
        ("[rank1]:[E1202 09:14:05.5 ProcessGroupNCCL.cpp:616] x", "1202 09:14:05.5"),
        ("Dec  2 00:38:51 host", "Dec  2 00:38:51"),
    ],
)
def test_a_time_without_a_year(text: str, printed: str) -> None:
    found = stamp(text)
    assert found is not None
    assert (found.printed, found.form) == (printed, "yearless")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[00:07<00:00]",
        "[01:00:07<00:00]",
        "2026-13-45 09:14:05",
        "12:34:56:78",
        "at 1:2:3",
        "25:61:61",
    ],
)
def test_what_is_no_time(text: str) -> None:
    assert stamp(text) is None


@pytest.mark.parametrize("number", ["1796202845", "1796202845000", "1796202845000000", "1796202845000000000"])
def test_seconds_since_1970_in_any_unit(number: str) -> None:
    found = epoch(number)
    assert found is not None
    assert (found.printed, found.seconds) == ("2026-12-02T09:14:05Z", AT)


@pytest.mark.parametrize("number", ["0", "9" * 30])
def test_a_number_that_is_no_time(number: str) -> None:
    assert epoch(number) is None


def test_only_times_of_one_form_are_compared() -> None:
    first, second = stamp("09:14:05.1"), stamp("09:14:05.2")
    assert earlier(first, second)
    assert not earlier(second, first)
    dated = stamp("1999-12-02 09:14:05")
    assert not earlier(dated, second)
    assert not earlier(None, first)
    assert not earlier(first, None)


def test_the_last_of_several() -> None:
    found = last("09:14:05 a\n09:14:07 b\n09:14:06 c 1:2")
    assert found is not None
    assert found.printed == "09:14:06"
    assert last("nothing") is None
