"""Answers at level checks that were given lately, by the bytes of their requests.

Such an answer follows from the request, the code, the records and the worker alone. Programs that report an
error again and again, and clients that poll, send the same bytes.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from app.diagnose.schemas import DiagnosisModel

MOST_BYTES = 16 << 20
"""Requests and answers that are kept, together."""

LONGEST = 256 << 10
"""Bytes of a request with its answer that is still kept."""


@dataclass(frozen=True, slots=True)
class Given:
    """An answer without its id, in pieces that answers share, and what is counted of it."""

    rest: tuple[bytes, ...]
    operation: str
    verdict: str

    @classmethod
    def of(cls, answer: DiagnosisModel, written: bytes) -> Given | None:
        """An answer whose JSON is `written`; None where it comes of a run."""
        beginning, _, rest = written.partition(answer.id.encode() + b'"')
        if answer.level != "checks" or beginning != b'{"id":"':
            return None
        return cls((rest,), answer.operation, answer.verdict)

    def body(self) -> bytes:
        """The answer under an id of its own."""
        return b"".join((b'{"id":"', secrets.token_hex(16).encode(), b'"', *self.rest))


class Recent:
    """The answers of one service, the least recently used ones dropped."""

    def __init__(self) -> None:
        self._given: OrderedDict[Hashable, tuple[int, Given]] = OrderedDict()
        self._bytes = 0

    def get(self, body: bytes, *circumstances: Hashable) -> Given | None:
        """The answer to an equal request in equal circumstances."""
        found = self._given.get((body, circumstances))
        if found is None:
            return None
        self._given.move_to_end((body, circumstances))
        return found[1]

    def keep(self, given: Given, body: bytes, *circumstances: Hashable) -> None:
        """Keep the answer to a request, unless it is large."""
        size = len(body) + sum(map(len, given.rest))
        if size > LONGEST:
            return
        key = (body, circumstances)
        former = self._given.pop(key, None)
        self._bytes += size - (former[0] if former else 0)
        self._given[key] = (size, given)
        while self._bytes > MOST_BYTES:
            _, (gone, _) = self._given.popitem(last=False)
            self._bytes -= gone
