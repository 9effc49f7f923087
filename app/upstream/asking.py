"""Putting a diagnosis's call to upstream, as far as the settings allow, and its word beside the checks'."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool

from app.diagnose.schemas import (
    RaisedModel,
    UpstreamHostModel,
    UpstreamModel,
    UpstreamOutputModel,
)
from app.settings import Settings
from app.upstream.comparing import compare
from app.upstream.forms import job
from app.upstream.oracle import Answer, Host, Oracle
from kernels.call import Call
from kernels.checking import Check
from kernels.examining import Examination
from kernels.filed import NotAllKnown
from kernels.registry import Operation

RecordIds = Callable[[Operation, type[Check[Any]]], str | None]

WAITING = 8
"""Calls that one process may have, those that wait for it included; beyond, it is not asked."""

AGAIN = 0.1
"""Seconds after which a process that was to end is ended again: it may have been starting."""


def opened(settings: Settings) -> Upstream | None:
    """Upstream's interpreter where the settings name one; nothing is started before it is asked."""
    return Upstream(settings) if settings.upstream_python else None


class Upstream:
    """Upstream's interpreter as the settings name it.

    Two processes of it are started as they are needed: one that runs kernels, and one that only has
    upstream's checks look at stated tensors, for calls that would read or write outside their tensors, or
    that are meant for another GPU.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._running = self._made(launches=True)
        self._stating = self._made(launches=False)

    def _made(self, *, launches: bool) -> Queue:
        settings = self._settings
        oracle = Oracle(
            settings.upstream_python,
            [prefix.strip() for prefix in settings.upstream_modules.split(",") if prefix.strip()],
            limit=settings.upstream_timeout,
            memory=int(settings.max_tensor_bytes) * 8,
            launches=launches,
        )
        return Queue(oracle)

    def close(self) -> None:
        """End the processes."""
        self._running.close()
        self._stating.close()

    async def ask(
        self,
        operation: Operation,
        call: Call,
        seed: int,
        examination: Examination,
        record_id: RecordIds,
        *,
        runs: bool,
        spent: Callable[[float], None],
    ) -> UpstreamModel:
        """What upstream says of the call, and how that relates to the checks.

        runs   whether kernels may be launched on it; it then fits into the memory allowed, too
        spent  told for how many seconds its process was at the call, also where that is cancelled
        """
        try:
            question = job(operation, call, seed)
        except NotAllKnown as error:
            return unasked(operation, examination, str(error), record_id)
        queue = self._running if runs else self._stating
        return _model(operation, examination, await queue.ask(question, spent), record_id)


class Queue:
    """An oracle's calls, one after another. Who waits holds no thread: the service's are for all."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._turn = asyncio.Lock()
        self._calls = 0

    def close(self) -> None:
        """End the process."""
        self._oracle.close()

    async def ask(self, question: dict[str, Any], spent: Callable[[float], None]) -> Answer:
        """The oracle's answer; cancelled, its process is ended."""
        if self._calls >= WAITING:
            return Answer("not-run", "as many calls as may wait for upstream's interpreter do")
        self._calls += 1
        try:
            async with self._turn:
                return await self._answer(question, spent)
        finally:
            self._calls -= 1

    async def _answer(self, question: dict[str, Any], spent: Callable[[float], None]) -> Answer:
        asked = asyncio.ensure_future(run_in_threadpool(self._oracle.ask, question))
        try:
            return await asyncio.shield(asked)
        finally:
            while not asked.done():  # cancelled, perhaps while the process was just being started
                self._oracle.interrupt()
                await asyncio.wait([asked], timeout=AGAIN)
            spent(asked.result().seconds)


def unasked(operation: Operation, examination: Examination, why: str, record_id: RecordIds) -> UpstreamModel:
    """What is said of upstream where it was not asked."""
    return _model(operation, examination, Answer("not-run", why), record_id)


def _model(
    operation: Operation, examination: Examination, answer: Answer, record_id: RecordIds
) -> UpstreamModel:
    found = compare(operation, examination, answer)
    check = operation.check(found.at_check) if found.at_check else None
    raised = None
    if answer.ending == "raised":
        raised = RaisedModel(
            error_class=answer.error_class.rpartition(".")[2],
            message=answer.message,
            record_id=None if check is None else record_id(operation, check),
            at_check=found.at_check,
        )
    return UpstreamModel(
        function=f"{operation.module}.{operation.function or operation.name}",
        outcome=answer.ending,
        raised=raised,
        agrees=found.agrees,
        differences=list(found.differences),
        detail=answer.detail or None,
        milliseconds=answer.milliseconds,
        outputs=[
            UpstreamOutputModel(
                shape=output["shape"],
                dtype=output["dtype"],
                not_finite=output["nonFinite"],
                zeros=output["zeros"],
            )
            for output in answer.outputs
        ],
        outside=list(answer.outside),
        host=None if answer.host is None else _host(answer.host),
    )


def _host(host: Host) -> UpstreamHostModel:
    return UpstreamHostModel(
        python=host.python, torch=host.torch, cuda=host.cuda, device=host.device, packages=host.packages
    )
