"""Calls that pass every check, answered without a model: their answers differ in three members only."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from app.diagnose.schemas import DiagnosisModel
from app.http.text import json_bytes
from kernels.call import Call
from kernels.examining import Examination
from kernels.nearby import Nearby
from kernels.registry import Operation

MOST_FRAMES = 64
"""Answers without their own members that are kept: one for each operation on each kind of host."""

# No text of an answer holds these: what is not printable is escaped in JSON.
_ASSUMED, _REPRODUCTION = "\x01", "\x02"


class Passing:
    """Examines calls by those examined before, and writes the answers to calls that pass."""

    def __init__(self) -> None:
        self._nearby: dict[str, Nearby] = {}
        self._last: tuple[Call, Examination] | None = None
        self._frames: dict[Hashable, tuple[bytes, bytes, bytes]] = {}

    def passes(self, operation: Operation, call: Call) -> bool:
        """Whether a call passes every check; of a call with a checkpoint, False without looking at it: no two
        checkpoints are taken for equal.
        """
        if operation.claims is not None:
            return False
        return self.examine(operation, call) is self._near(operation).unbroken

    def examine(self, operation: Operation, call: Call) -> Examination:
        """What the operation's checks say of a call; of the last one without looking again."""
        if operation.claims is not None:
            return operation.examine(call)
        if self._last is None or self._last[0] is not call:
            self._last = call, self._near(operation).examine(call)
        return self._last[1]

    def _near(self, operation: Operation) -> Nearby:
        nearby = self._nearby.get(operation.name)
        if nearby is None:
            nearby = self._nearby[operation.name] = Nearby(operation.stages, operation.call)
        return nearby

    def rest(
        self,
        key: Hashable,
        model: Callable[[list[str], str], DiagnosisModel],
        assumed: list[str],
        script: str,
    ) -> tuple[bytes, ...]:
        """An answer behind its id and the quotation mark that ends it.

        key      what the answer depends on beside what was assumed and the script that reproduces it
        model    makes the answer of the two
        """
        frame = self._frames.get(key)
        if frame is None:
            whole = model([_ASSUMED], _REPRODUCTION).model_dump_json(by_alias=True).encode()
            begin, rest = whole.split(json_bytes([_ASSUMED]))
            middle, end = rest.split(json_bytes(_REPRODUCTION))
            if len(self._frames) >= MOST_FRAMES:
                self._frames.clear()
            frame = self._frames[key] = (b',"' + begin.partition(b'","')[2], middle, end)
        return frame[0], json_bytes(assumed), frame[1], json_bytes(script), frame[2]
