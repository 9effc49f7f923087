"""`/operations` and `/operations/{name}`: what can be diagnosed, and the form that does it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from app.access.caller import caller_of
from app.access.quotas import quotas_of
from app.diagnose.questions import operation_named, read_question
from app.diagnose.routes import diagnoser_of
from app.diagnose.schemas import DiagnosisModel
from app.diagnose.service import Question
from app.errors import MAX_FAULTS, Conflict, Fault, Forbidden, InvalidRequest, NotFound, Problem
from app.http.bodies import load_json
from app.http.metrics import metrics_of
from app.http.text import json_bytes
from app.pages.forms import read_form
from app.pages.presenting import page, pretty, stored
from catalog.additions import request as spec_of
from catalog.store import load_catalog
from kernels.registry import Operation, operations

router = APIRouter()

LEVELS = {
    "": "As far as this service goes",
    "checks": "Checks only: nothing is allocated",
    "run": "Run the operation",
}

VERDICTS = {
    "passed": "Passed: no check refuses this call",
    "rejected": "Rejected",
    "wrong-result": "Wrong result: the run does not agree with the reference",
    "crashed": "The run crashed",
    "out-of-memory": "The run ran out of memory",
    "timed-out": "The run took too long and was ended",
    "unsupported": "Not run here; no check refuses this call",
}

UPSTREAM_OUTCOMES = {
    "returned": "Upstream itself returned",
    "raised": "Upstream itself says",
    "unlaunched": "Upstream's own checks pass",
    "crashed": "Upstream itself crashed",
    "timed-out": "Upstream itself took too long and was ended",
    "out-of-memory": "Upstream itself ran out of memory",
    "unavailable": "Upstream could not be asked",
    "not-run": "Upstream was not asked",
}

PROOFS = {
    "checks-pass": "every check passes with it; it was not run",
    "ran": "it was run and returned; there is no second implementation to compare with",
    "matches-reference": "it was run, and its outputs agree with the reference",
}


@dataclass(frozen=True, slots=True)
class Form:
    """What the diagnosis form holds."""

    body: str
    level: str = ""


@router.get("/operations")
async def listed(request: Request) -> Response:
    found = list(operations().values())
    return stored(request, "operations.html", twin="/api/operations", operations=found)


@router.get("/operations/{name}")
async def described(request: Request, name: str, example: str = "") -> Response:
    """The operation with the form; `example` names the check whose failing call the form starts with."""
    operation = operation_named(name)
    spec = _example(operation, example) if example else spec_of(operation, operation.valid)
    return stored(
        request,
        "operation.html",
        **_content(operation),
        form=Form(pretty(spec)),
        example=example,
        answer=None,
        problem=None,
    )


@router.post("/operations/{name}")
async def posted(request: Request, name: str) -> Response:
    """The form's answer: a diagnosis, or what is wrong with what was typed, which stays in the form.

    With `step=edit` the form is only filled in: matches and fixes offer their call that way, since a call
    is too long for an address.
    """
    operation = operation_named(name)
    fields = await read_form(request)
    form = Form(fields.get("body", ""), fields.get("level", ""))
    if fields.get("step") == "edit":
        return _answered(request, operation, _readable(form))
    try:
        question = await read_question(_request(operation, form))
        _refuse_foreign_run(request, question)
        caller = caller_of(request)
        if question.level != "checks":
            await run_in_threadpool(quotas_of(request).admit, caller)
        answer = await diagnoser_of(request).diagnose(replace(question, owner=caller.name))
    except Problem as problem:
        return _answered(request, operation, form, problem=problem)
    metrics_of(request).diagnosed(answer.operation, answer.level, answer.verdict)
    return _answered(request, operation, form, answer=answer)


def _answered(
    request: Request,
    operation: Operation,
    form: Form,
    *,
    answer: DiagnosisModel | None = None,
    problem: Problem | None = None,
) -> Response:
    return page(
        request,
        "operation.html",
        status_code=problem.status if problem else 200,
        headers=problem.headers if problem else None,
        **_content(operation),
        form=form,
        example="",
        answer=answer,
        problem=problem,
        faults=[fault.document() for fault in problem.faults[:MAX_FAULTS]] if problem else [],
    )


def _content(operation: Operation) -> dict[str, Any]:
    """What the page shows whatever was asked."""
    return {
        "operation": operation,
        "arguments": operation.call.arguments(),
        "valid": spec_of(operation, operation.valid),
        "record_id": partial(load_catalog().record_id_of, operation),
        "twin": f"/api/operations/{operation.name}",
        "levels": LEVELS,
        "verdicts": VERDICTS,
        "upstream_outcomes": UPSTREAM_OUTCOMES,
        "proofs": PROOFS,
    }


def _example(operation: Operation, name: str) -> dict[str, Any]:
    """The failing call of a check as a diagnosis request."""
    check = operation.check(name)
    if check is None:
        raise NotFound(f"{operation.name} has no check of this name.")
    call = check.example()
    if call is None:
        raise Conflict(f"No call reaches this check: {check.unreachable}.")
    return spec_of(operation, call)


def _request(operation: Operation, form: Form) -> bytes:
    """The body of POST /api/diagnose that the form stands for."""
    value = load_json(form.body.encode())
    if not isinstance(value, dict):
        return form.body.encode()  # the API's own words for what is missing
    stated = value.setdefault("operation", operation.name)
    if stated != operation.name:
        fault = Fault("/operation", f"this page diagnoses {operation.name}")
        raise InvalidRequest("The request has one fault.", faults=[fault])
    return json_bytes({**value, "level": form.level} if form.level else value)


def _refuse_foreign_run(request: Request, question: Question) -> None:
    """A page elsewhere may send its visitors here with a form; what it may not do is make this host work."""
    if request.headers.get("sec-fetch-site") == "cross-site" and question.level != "checks":
        raise Forbidden("A form of another site may ask for level checks only.")


def _readable(form: Form) -> Form:
    """The form with its JSON laid out, or as it is where it is none."""
    try:
        return Form(pretty(load_json(form.body.encode())), form.level)
    except Problem:
        return form
