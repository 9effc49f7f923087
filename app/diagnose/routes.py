"""POST /api/diagnose, and what may be diagnosed: /api/operations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, cast

from fastapi import APIRouter, FastAPI, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from app.access.caller import caller_of
from app.access.quotas import quotas_of
from app.diagnose import schemas
from app.diagnose.arguments import schema
from app.diagnose.files import diagnose_files, file_of, files_of, files_schema
from app.diagnose.questions import example_question, operation_named, read_question
from app.diagnose.recent import Given, Recent
from app.diagnose.service import Diagnoser, Question, summaries
from app.errors import (
    Conflict,
    ContentTooLarge,
    InvalidRequest,
    NotFound,
    Unavailable,
    UnsupportedMediaType,
    described,
)
from app.http.bodies import media_type, read_bytes, request_body
from app.http.caching import json_response
from app.http.express import express
from app.http.metrics import Metrics, metrics_of
from app.http.text import json_bytes
from app.http.urls import absolute
from app.jobs.asking import Asked, CallAsked, RecordAsked
from app.jobs.opening import open_store
from app.jobs.preferences import preference
from app.jobs.routes import JobModel, accept, diagnosis_response, jobs_of, sent
from app.jobs.service import Jobs
from app.jobs.store import StoreUnavailable
from app.operators import Readiness, probes
from app.upstream.asking import opened
from app.worker.pool import Runs, open_pool
from catalog.store import load_catalog
from kernels.safetensors_file.file_start import MAX_SIZE

IN_CLUSTER = 32
"""Jobs at once in a service whose runs happen on other hosts: it only waits for them."""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Start the workers with the service, and end them with it."""
    catalog = load_catalog()
    settings = app.state.settings
    pool = open_pool(settings)
    upstream = opened(settings)
    quotas, version = app.state.quotas, catalog.dataset_version
    diagnoser = Diagnoser(settings, pool, catalog.record_id_of, version, quotas, upstream)
    app.state.diagnoser = diagnoser
    app.state.recent = Recent()
    app.state.jobs = jobs = Jobs(
        await run_in_threadpool(open_store, settings),
        diagnoser,
        parallel=IN_CLUSTER if settings.broker_url else max(settings.workers, 1),
        retention=settings.retention,
        count=partial(_count, app.state.metrics),
    )
    probes(app)["worker"] = lambda: _worker_state(pool)
    probes(app)["jobs"] = lambda: _jobs_state(jobs)
    app.state.metrics.watch_workers(pool)
    app.state.metrics.watch_jobs(partial(_open_jobs, jobs), partial(_kept_bytes, jobs))
    pool.start()
    jobs.start()
    try:
        yield
    finally:
        await jobs.stop()
        await pool.stop()
        if upstream is not None:
            upstream.close()


router = APIRouter(tags=["diagnosis"], lifespan=lifespan)


@router.get("/api/operations", summary="The operations that can be diagnosed")
async def list_operations(request: Request) -> Response:
    found = summaries(partial(absolute, request))
    body = {"operations": [item.model_dump(by_alias=True) for item in found]}
    return json_response(request, json_bytes(body))


@router.get(
    "/api/operations/{name}",
    summary="One operation: its arguments, a valid call, and every check",
    responses={200: {"model": schemas.OperationModel}, **described(NotFound)},
)
async def one_operation(request: Request, name: str) -> Response:
    operation = operation_named(name)
    answer = diagnoser_of(request).describe(operation, schema(operation.call))
    return json_response(request, answer.model_dump_json(by_alias=True).encode())


@router.post(
    "/api/diagnose",
    summary="Every failing check of one call, and fixes that were tried",
    responses={
        200: {"model": schemas.DiagnosisModel},
        202: {"model": JobModel},
        **described(NotFound, ContentTooLarge, UnsupportedMediaType, InvalidRequest, Unavailable),
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": schemas.DiagnoseRequest.model_json_schema()}},
        }
    },
)
@express
async def diagnose(request: Request) -> Response:
    """With `Prefer: respond-async` the answer is 202, and the diagnosis is at its `Location`."""
    body = await read_bytes(request, "application/json")
    recent, diagnoser = cast(Recent, request.app.state.recent), diagnoser_of(request)
    prefers = "prefer" in request.headers
    if not prefers and not _wants_fresh(request):
        given = recent.get(body, diagnoser.circumstances())
        if given is not None:
            metrics_of(request).diagnosed(given.operation, "checks", given.verdict)
            return sent(given.body(), stored=True)
    question = await read_question(body)
    if prefers and preference(request).respond_async:
        return await _answered(request, CallAsked(body), question)
    passed = diagnoser.passed(await diagnoser.aimed(question)) if question.level == "checks" else None
    if passed is not None:
        metrics_of(request).diagnosed(passed.operation, "checks", passed.verdict)
        recent.keep(passed, body, diagnoser.circumstances())
        return sent(passed.body(), stored=False)
    answer = await _answer(request, question)
    response = diagnosis_response(answer)
    given = Given.of(answer, bytes(response.body))
    if given is not None:
        recent.keep(given, body, diagnoser.circumstances())
    return response


@router.post(
    "/api/diagnose/checkpoint",
    summary="A checkpoint by its first bytes: can it be opened, and what does its format's loader refuse",
    responses={
        200: {"model": schemas.DiagnosisModel},
        **described(NotFound, ContentTooLarge, UnsupportedMediaType, InvalidRequest),
    },
    openapi_extra=request_body(
        binary={
            "type": "string",
            "format": "binary",
            "description": "a .safetensors file from its first byte to the end of its header, or further",
        },
        json={
            **files_schema(),
            "description": "the same of several files that hold one component, in the order they are read in",
        },
    ),
)
async def diagnose_checkpoint(
    request: Request,
    operation: Annotated[
        str | None,
        Query(max_length=200, description="the format to inspect; default: the one that claims the file"),
    ] = None,
    size: Annotated[
        int | None,
        Query(ge=0, le=MAX_SIZE, description="bytes of the whole file, to tell whether its data is there"),
    ] = None,
) -> Response:
    body = await read_bytes(request, "application/octet-stream", "application/json")
    if media_type(request)[0] == "application/octet-stream":
        starts = {"the file": file_of(body, size)}
    else:
        starts = await run_in_threadpool(files_of, body)
    return _reported(request, await diagnose_files(diagnoser_of(request), starts, operation))


async def _answered(request: Request, asked: Asked, question: Question) -> Response:
    preferred = preference(request)
    if preferred.respond_async and asked.keepable:
        await _admit(request, question)
        return await accept(request, asked, preferred)
    return diagnosis_response(await _answer(request, question))


async def _answer(request: Request, question: Question) -> schemas.DiagnosisModel:
    await _admit(request, question)
    owner = caller_of(request).name
    return await jobs_of(request).answer(question, owner, fresh=_wants_fresh(request))


async def _admit(request: Request, question: Question) -> None:
    """Refuse a run to a key whose seconds of today are spent."""
    if question.level != "checks":
        await run_in_threadpool(quotas_of(request).admit, caller_of(request))


def _wants_fresh(request: Request) -> bool:
    return "no-cache" in request.headers.get("cache-control", "").lower()


def _reported(request: Request, answer: schemas.DiagnosisModel) -> Response:
    _count(metrics_of(request), answer)
    return diagnosis_response(answer)


def _count(metrics: Metrics, answer: schemas.DiagnosisModel) -> None:
    metrics.diagnosed(answer.operation, answer.level, answer.verdict)


@router.post(
    "/api/errors/{record_id}/reproduce",
    summary="A record's own failing example, diagnosed and repaired",
    responses={
        200: {"model": schemas.DiagnosisModel},
        202: {"model": JobModel},
        **described(NotFound, Conflict, InvalidRequest, Unavailable),
    },
)
async def reproduce(request: Request, record_id: str, check: str | None = None) -> Response:
    question = example_question(load_catalog(), record_id, check)
    return await _answered(request, RecordAsked(record_id, check), question)


def diagnoser_of(connection: HTTPConnection) -> Diagnoser:
    """The diagnoser of the service that answers."""
    return cast(Diagnoser, connection.app.state.diagnoser)


def _worker_state(pool: Runs) -> Readiness:
    if pool.failure:
        return Readiness(ready=False, required=False, detail=pool.failure)
    if not pool.exists:
        detail = pool.absence if pool.joins else "none: level checks only"
        return Readiness(ready=False, required=False, detail=detail)
    if not pool.workers:
        return Readiness(ready=False, required=False, detail="starting")
    names = ", ".join(worker.device.name for worker in pool.workers)
    return Readiness(ready=True, required=False, detail=names)


def _open_jobs(jobs: Jobs) -> Mapping[str, int]:
    try:
        return jobs.store.open()
    except StoreUnavailable:
        return {}  # whoever watches sees none; the log has why


def _kept_bytes(jobs: Jobs) -> int | None:
    try:
        return jobs.store.kept()
    except StoreUnavailable:
        return None


def _jobs_state(jobs: Jobs) -> Readiness:
    if (trouble := jobs.store.trouble()) != "":
        return Readiness(ready=False, required=False, detail=trouble)
    if jobs.store.durable:
        return Readiness(ready=True, required=False, detail="kept across restarts")
    return Readiness(ready=False, required=False, detail="kept in memory: the data folder cannot be written")
