"""Jobs over HTTP: their state, their progress, their end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack
from time import monotonic
from typing import Annotated, Any, cast

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.access.caller import caller_of
from app.diagnose.schemas import DiagnosisModel
from app.errors import Fault, NotFound, Problem, Unavailable, described, from_http
from app.http.text import json_bytes
from app.http.urls import link
from app.jobs.asking import Asked
from app.jobs.preferences import Preference
from app.jobs.service import Jobs
from app.jobs.store import Event, Kept

HEARTBEAT = 15.0
"""Seconds without an event after which a comment says that the connection is alive."""

NOT_STORED = {"Cache-Control": "no-store"}

router = APIRouter(tags=["jobs"])

Id = Annotated[str, Path(description="as `Location` of the 202 answer names it", max_length=100)]


class JobModel(BaseModel):
    """Where a job is. `queued` and `running` come before its end, `done` and `cancelled` are ends, as are
    `interrupted` (it was begun twice, and its host or service ended each time) and `failed` (it was refused).
    """

    id: str
    status: str


@router.get(
    "/api/diagnoses/{job}",
    summary="A job's diagnosis, or 202 until there is one",
    responses={200: {"model": DiagnosisModel}, 202: {"model": JobModel}, **described(NotFound, Unavailable)},
)
async def read_job(request: Request, job: Id) -> Response:
    """A job that was cancelled or interrupted answers with what the checks say; `detail` has the reason."""
    found = await _visible(request, job)
    return _answer(request, found)


@router.get(
    "/api/diagnoses/{job}/events",
    summary="A job's steps as server-sent events",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
        204: {"description": "the last event was `done`: there is nothing more to wait for"},
        **described(NotFound, Unavailable),
    },
)
async def read_events(request: Request, job: Id) -> Response:
    """`queued`, `started`, `checks`, `run`, `fix` for each that was tried, and `done`.

    Their data is JSON; its `at` is the time in seconds since 1970.

    `Last-Event-ID` goes on behind that event. A comment every 15 seconds keeps the connection alive.
    """
    found = await _visible(request, job)
    jobs = jobs_of(request)
    after = _after(request)
    if found.status.is_end and after and not await jobs.told(job, after):
        return Response(status_code=204, headers=NOT_STORED)
    headers = {**NOT_STORED, "X-Accel-Buffering": "no"}
    with ExitStack() as place:
        place.enter_context(jobs.streams.place(caller_of(request).name))
        return _Events(_stream(jobs, job, after), place.pop_all(), headers)


@router.delete(
    "/api/diagnoses/{job}",
    summary="Cancel a job",
    responses={
        200: {"model": JobModel},
        202: {"model": JobModel, "description": "asked for; it ends in a moment"},
        **described(NotFound, Unavailable),
    },
)
async def cancel_job(request: Request, job: Id) -> Response:
    """A queued job is not begun, a running one's process is ended. One that has ended stays as it is."""
    await _visible(request, job)
    found = await jobs_of(request).cancel(job)
    return _state(found, 200 if found.status.is_end else 202)


async def accept(request: Request, asked: Asked, preference: Preference) -> Response:
    """The answer to a request that prefers not to wait: 202, or the diagnosis where it came within the time
    that the request has named.
    """
    jobs = jobs_of(request)
    job = await jobs.accept(asked, caller_of(request).name)
    headers = {"Preference-Applied": preference.applied, "Location": link(request, f"/api/diagnoses/{job}")}
    found = await jobs.ended(job, preference.wait or 0.0)
    answer = _state(found, 202) if preference.wait is None else _answer(request, found)
    answer.headers.update(headers)
    return answer


def diagnosis_response(answer: DiagnosisModel) -> Response:
    """A diagnosis as it is sent, and whether it is a stored one."""
    return sent(answer.model_dump_json(by_alias=True).encode(), answer.cached is not None)


def jobs_of(connection: HTTPConnection) -> Jobs:
    """The jobs of the service that answers."""
    return cast(Jobs, connection.app.state.jobs)


async def _visible(request: Request, job: str) -> Kept:
    """A job that the caller may see: another's is as unknown as one that never was."""
    found = await jobs_of(request).get(job)
    if not caller_of(request).sees(found.owner):
        raise NotFound("There is no job of this id: it never was, or its retention has ended.")
    return found


def _answer(request: Request, found: Kept) -> Response:
    if found.body is None or found.code is None:
        return _state(found, 202)
    if found.code == 200:
        return sent(found.body.encode(), '"cached":{' in found.body[-200:])
    raise _problem(found.code, json.loads(found.body))


def sent(body: bytes, stored: bool) -> Response:
    """A diagnosis as JSON, `stored` where it was made for an earlier request."""
    # RFC 9211; the body's `cached` says the same.
    told = {"Cache-Status": "faultbook; hit"} if stored else {}
    return Response(body, media_type="application/json", headers={**NOT_STORED, **told})


def _state(found: Kept, code: int) -> Response:
    headers = NOT_STORED if code == 200 else {**NOT_STORED, "Retry-After": "1"}
    body = json_bytes(JobModel(id=found.id, status=found.status))
    return Response(body, code, media_type="application/json", headers=headers)


def _problem(code: int, document: dict[str, Any]) -> Problem:
    """The problem that a job ended with."""
    problem = from_http(HTTPException(code, document["detail"]))
    problem.faults = tuple(
        Fault(item["pointer"], item["detail"], item.get("in", "body")) for item in document.get("errors", ())
    )
    return problem


def _after(request: Request) -> int:
    """The number of the last event that the client has; what is not one of ours counts as none."""
    given = request.headers.get("last-event-id", "")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 10 else 0


class _Events(StreamingResponse):
    """A stream of events that gives its place back however it ends, also before its first byte."""

    def __init__(self, content: AsyncIterator[bytes], place: ExitStack, headers: Mapping[str, str]) -> None:
        super().__init__(content, media_type="text/event-stream", headers=headers)
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._place:
            await super().__call__(scope, receive, send)


async def _stream(jobs: Jobs, job: str, after: int) -> AsyncIterator[bytes]:
    sent = monotonic()
    async for event in jobs.events(job, after):
        if event is not None:
            yield _written(event)
        elif monotonic() - sent >= HEARTBEAT:
            yield b": still here\n\n"
        else:
            continue
        sent = monotonic()


def _written(event: Event) -> bytes:
    return f"id: {event.number}\nevent: {event.kind}\ndata: {event.data}\n\n".encode()
