"""A request body as a question: the envelope, then the operation's own arguments, every fault listed."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from app.diagnose import schemas
from app.diagnose.arguments import read_arguments
from app.diagnose.service import Question, complete
from app.errors import Fault, NotFound
from app.http.bodies import invalid, load_json
from kernels.registry import Operation, operations

_REQUEST = TypeAdapter(schemas.DiagnoseRequest)


def parse_question(body: bytes) -> Question:
    """A request body as a question; InvalidRequest lists every fault, NotFound an unknown operation."""
    value = load_json(body)
    envelope: schemas.DiagnoseRequest | None = None
    errors: list[ErrorDetails] = []
    try:
        envelope = _REQUEST.validate_python(value)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False, include_context=False)
    name = value.get("operation") if isinstance(value, dict) else None
    arguments = value.get("arguments", {}) if isinstance(value, dict) else None
    operation = operation_named(name) if isinstance(name, str) else None
    given: dict[str, Any] = {}
    faults: list[Fault] = []
    if operation is not None and isinstance(arguments, dict):
        given, faults = read_arguments(operation.call, arguments, ("arguments",))
    if envelope is None or operation is None or faults:
        raise invalid(errors, value, faults)
    call, assumed = complete(operation, given)
    return Question(operation, call, envelope.level, envelope.device, envelope.target, envelope.seed, assumed)


def operation_named(name: str) -> Operation:
    """The operation of this name; NotFound says which there are."""
    found = operations().get(name)
    if found is None:
        raise NotFound(f"There is no operation of this name; there are {', '.join(operations())}.")
    return found
