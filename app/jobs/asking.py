"""What a job asks, as text that outlives the service: a request body, or a record to reproduce.

It is the request itself and not what was read from it: a later version reads it by its own rules.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from app.diagnose.questions import example_question, read_question
from app.diagnose.service import Question
from catalog.store import load_catalog

LONGEST = 4 << 20
"""Bytes of a request that may wait in the store; what is longer is answered at once."""


@dataclass(frozen=True, slots=True)
class CallAsked:
    """The body of POST /api/diagnose."""

    body: bytes

    @property
    def keepable(self) -> bool:
        """Whether it is short enough to wait in the store."""
        return len(self.body) <= LONGEST

    def written(self) -> str:
        """Text to store."""
        return "call " + self.body.decode()

    async def question(self) -> Question:
        """Raises what the request would have been answered with."""
        return await read_question(self.body)


@dataclass(frozen=True, slots=True)
class RecordAsked:
    """A record's own example; `check` names one of its checks."""

    record: str
    check: str | None

    @property
    def keepable(self) -> bool:
        """Whether it is short enough to wait in the store."""
        return True

    def written(self) -> str:
        """Text to store."""
        return "record " + json.dumps([self.record, self.check])

    async def question(self) -> Question:
        """Raises what the request would have been answered with."""
        return example_question(load_catalog(), self.record, self.check)


Asked = CallAsked | RecordAsked


def read_asked(text: str) -> Asked:
    """What `written` wrote."""
    kind, _, rest = text.partition(" ")
    if kind == "record":
        return RecordAsked(*json.loads(rest))
    return CallAsked(rest.encode())
