"""A request body as a question: the envelope, then the operation's own arguments, every fault listed."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from starlette.concurrency import run_in_threadpool

from app.diagnose import schemas
from app.diagnose.arguments import read_arguments
from app.diagnose.completing import complete
from app.diagnose.service import Question
from app.errors import Conflict, Fault, InvalidRequest, NotFound
from app.http.bodies import invalid, load_json
from catalog.store import Catalog
from kernels.registry import Operation, operations
from kernels.target import Target

_REQUEST = TypeAdapter(schemas.DiagnoseRequest)
Request = TypeVar("Request", bound=BaseModel)


LARGE = 32 * 1024
"""Bytes of a request from which on it is read and checked in a thread."""


async def read_question(body: bytes) -> Question:
    """`parse_question` for an event loop: a large body does not hold it up."""
    return await run_in_threadpool(parse_question, body) if len(body) > LARGE else parse_question(body)


def parse_question(body: bytes) -> Question:
    """A request body as a question; InvalidRequest lists every fault, NotFound an unknown operation."""
    envelope, operation, given = read_call(load_json(body), _REQUEST)
    target = None if envelope.target is None else Target.parse(envelope.target)
    call, assumed = complete(operation, given, target)
    return Question(
        operation,
        call,
        envelope.level,
        envelope.device,
        envelope.seed,
        assumed,
        large=len(body) > LARGE,
    )


def read_call(value: Any, adapter: TypeAdapter[Request]) -> tuple[Request, Operation, dict[str, Any]]:
    """A request that describes a call: itself, the operation it names, and the arguments given.

    InvalidRequest lists every fault of the request's form and of the arguments; NotFound: no such operation.
    """
    envelope: Request | None = None
    errors: list[ErrorDetails] = []
    try:
        envelope = adapter.validate_python(value)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False, include_context=False)
    members = value if isinstance(value, dict) else {}
    name, arguments = members.get("operation"), members.get("arguments", {})
    operation = operation_named(name) if isinstance(name, str) else None
    given: dict[str, Any] = {}
    faults: list[Fault] = []
    if operation is not None and isinstance(arguments, dict):
        given, faults = read_arguments(operation.call, arguments, ("arguments",))
    if envelope is None or operation is None or faults:
        raise invalid(errors, value, faults)
    return envelope, operation, given


def operation_named(name: str) -> Operation:
    """The operation of this name; NotFound says which there are."""
    found = operations().get(name)
    if found is None:
        raise NotFound(f"There is no operation of this name; there are {', '.join(operations())}.")
    return found


def example_question(catalog: Catalog, record_id: str, wanted: str | None) -> Question:
    """A record's failing example as a question; `wanted` names one of its checks, else the first reachable.

    NotFound for an unknown record, InvalidRequest for a check that is not the record's, Conflict where no
    call reaches it.
    """
    found = catalog.get(record_id)
    if found is None:
        raise NotFound("There is no record of this id.")
    cases = found.fault.cases
    names = list(dict.fromkeys(case.check.id() for case in cases))
    if wanted is not None and wanted not in names:
        detail = f"not a check of this record; its checks are {', '.join(names)}"
        raise InvalidRequest(f"check: {detail}.", faults=[Fault("/check", detail, "query")])
    reasons = []
    for case in cases:
        if wanted not in (None, case.check.id()):
            continue
        example = case.check.example()
        if example is not None:
            return Question(case.operation, example, None, "auto", 0, ())
        reasons.append(case.check.unreachable or "it has no example")
    raise Conflict(f"No call reproduces this record: {reasons[0]}.")
