"""The `Prefer` header (RFC 7240), as far as it concerns answers that take long."""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.requests import Request

LONGEST_WAIT = 60.0
"""Seconds that a request is held open at most because it prefers to wait."""

_WAIT = re.compile(r"wait\s*=\s*\"?([0-9]{1,6})\"?")


@dataclass(frozen=True, slots=True)
class Preference:
    """What a client prefers.

    respond_async  an answer 202 with an address
    wait           seconds to wait for the answer itself before that; None where it names none
    """

    respond_async: bool = False
    wait: float | None = None

    @property
    def applied(self) -> str:
        """The value of Preference-Applied."""
        wait = "" if self.wait is None else f", wait={self.wait:g}"
        return f"respond-async{wait}"


def preference(request: Request) -> Preference:
    """The client's preference; of several values for one the first counts, what is unknown is ignored."""
    items = [
        item.partition(";")[0].strip().lower()
        for line in request.headers.getlist("prefer")
        for item in line.split(",")
    ]
    waits = (found for item in items if (found := _WAIT.fullmatch(item)))
    first = next(waits, None)
    wait = None if first is None else min(float(first[1]), LONGEST_WAIT)
    return Preference("respond-async" in items, wait)
