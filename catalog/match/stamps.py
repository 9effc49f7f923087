"""Time stamps as loggers, container runtimes and launchers print them, and which of two is earlier.

A stamp without a year, or without a date, is compared only with others of its form; one without a zone
counts as UTC.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

Form = Literal["dated", "yearless", "clock"]

_MONTHS: Final = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_NUMBER: Final = {name: number for number, name in enumerate(_MONTHS.split("|"), 1)}
_LEAP: Final = 2000
"""The year that a date without one is counted in: it has every day."""

# Every part is bounded and each alternative begins differently enough: linear on any text.
_STAMP: Final = re.compile(
    r"(?:(?P<y>\d{4})[-/](?P<m>\d\d)[-/](?P<d>\d\d)[T _,]"  # ISO 8601, torchrun, Go
    rf"|(?P<d1>\d\d)[/ ](?P<n1>{_MONTHS})[/ ](?P<y1>\d{{4}})[: ]"  # access logs, HTTP dates
    r"|(?P<m2>\d\d)/(?P<d2>\d\d)/(?P<y2>\d\d) "  # rich
    rf"|(?P<n3>{_MONTHS}) {{1,2}}(?P<d3>\d{{1,2}}) "  # syslog, asctime
    r"|(?<!\d)(?P<m4>\d\d)-(?P<d4>\d\d) "  # vLLM
    r"|(?<=[IWEF])(?P<m5>\d\d)(?P<d5>\d\d) "  # glog
    r"|(?<![\d:])(?=\d\d:\d\d:\d\d(?![\d:<])))"
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<part>\d{1,9}))?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d| [+-]\d{4}(?!\d))?(?(n3)(?P<asctime> \d{4}(?!\d))?|)"
)


# What every stamp has: looking for that first is ten times as fast.
_CLOCK: Final = re.compile(r"\d\d:\d\d:\d\d")
LONGEST: Final = 24
"""Characters of a date before a clock, and of a fraction and a zone behind it."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """One time: as it is `printed`, and in seconds of its form's own count."""

    printed: str
    form: Form
    seconds: float


def stamp(text: str) -> Stamp | None:
    """The first time stamp in a text; None where there is none, or none of a possible time."""
    clock = _CLOCK.search(text)
    return _around(text, clock) if clock is not None else None


def last(text: str) -> Stamp | None:
    """The last one."""
    clock = deque(_CLOCK.finditer(text), maxlen=1)
    return _around(text, clock[0]) if clock else None


def _around(text: str, clock: re.Match[str]) -> Stamp | None:
    near = _STAMP.finditer(text, max(0, clock.start() - LONGEST), clock.end() + LONGEST)
    found = next((each for each in near if each.end() >= clock.end()), None)
    return _read(found) if found is not None else None


def epoch(number: str) -> Stamp | None:
    """Seconds, milliseconds, microseconds or nanoseconds since 1970, told apart by their size."""
    value = float(number)
    for _ in range(3):
        if value > 1e11:
            value /= 1000
    if not 0 < value < 1e11:
        return None
    moment = datetime.fromtimestamp(value, UTC)
    return Stamp(moment.isoformat(timespec="auto").replace("+00:00", "Z"), "dated", value)


def earlier(left: Stamp | None, right: Stamp | None) -> bool:
    """Whether one time is known to be before another."""
    if left is None or right is None or left.form != right.form:
        return False
    return left.seconds < right.seconds


def _read(found: re.Match[str]) -> Stamp | None:
    part = found.groupdict()
    year = part["y"] or part["y1"] or part["asctime"] or (part["y2"] and f"20{part['y2']}")
    month = part["m"] or part["m2"] or part["m4"] or part["m5"]
    name = part["n1"] or part["n3"]
    day = part["d"] or part["d1"] or part["d2"] or part["d3"] or part["d4"] or part["d5"]
    form: Form = "clock" if day is None else "yearless" if year is None else "dated"
    clock = int(part["hour"]), int(part["minute"]), int(part["second"])
    try:
        date = datetime(
            int(year or _LEAP), _NUMBER[name] if name else int(month or 1), int(day or 1), tzinfo=UTC
        )
    except ValueError:
        return None
    if clock[0] > 24 or clock[1] > 59 or clock[2] > 60:
        return None
    seconds = timegm(date.timetuple()) + clock[0] * 3600 + clock[1] * 60 + clock[2]
    fraction = float(f"0.{part['part']}") if part["part"] else 0.0
    return Stamp(found[0].strip(), form, seconds + fraction - _offset(part["zone"]))


def _offset(zone: str | None) -> int:
    """Seconds that a zone is ahead of UTC."""
    if not zone or zone == "Z":
        return 0
    digits = zone.strip()[1:].replace(":", "")
    ahead = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return ahead if zone.strip()[0] == "+" else -ahead
