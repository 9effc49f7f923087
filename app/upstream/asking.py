"""Putting a diagnosis's call to upstream, as far as the settings allow, and its word beside the checks'."""

from __future__ import annotations

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

    def _made(self, *, launches: bool) -> Oracle:
        settings = self._settings
        return Oracle(
            settings.upstream_python,
            [prefix.strip() for prefix in settings.upstream_modules.split(",") if prefix.strip()],
            limit=settings.upstream_timeout,
            memory=int(settings.max_tensor_bytes) * 8,
            launches=launches,
        )

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
    ) -> UpstreamModel:
        """What upstream says of the call, and how that relates to the checks.

        runs   whether kernels may be launched on it; it then fits into the memory allowed, too
        """
        try:
            question = job(operation, call, seed)
        except NotAllKnown as error:
            return _model(operation, examination, Answer("not-run", str(error)), record_id)
        oracle = self._running if runs else self._stating
        return _model(operation, examination, await run_in_threadpool(oracle.ask, question), record_id)


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
