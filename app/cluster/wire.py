"""Runs and their outcomes as JSON. Whoever can write to the broker can describe a call, and nothing more:
nothing that comes from it is unpickled or executed.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter

from app.diagnose.arguments import read_arguments
from app.worker.messages import Job, Outcome, Worker
from kernels.call import arguments_json
from kernels.registry import operations
from kernels.target import Target

_OUTCOME = TypeAdapter(Outcome)
_WORKER = TypeAdapter(Worker)


class Unreadable(Exception):
    """A message that this version cannot read; the text says why."""


def job_json(job: Job) -> dict[str, Any]:
    """A run as it is sent."""
    target = job.call.target
    return {
        "operation": job.operation,
        "arguments": arguments_json(job.call),
        "target": None if target is None else target.name,
        "seed": job.seed,
        "faulting": job.faulting,
    }


def read_job(message: dict[str, Any]) -> Job:
    """A run as it was sent; raises Unreadable, as where another version knows other operations."""
    try:
        operation = operations()[message["operation"]]
        given, faults = read_arguments(operation.call, message["arguments"], ())
        if faults:
            raise ValueError("; ".join(f"{fault.pointer}: {fault.detail}" for fault in faults[:3]))
        target = None if message["target"] is None else Target.parse(message["target"])
        faulting = message.get("faulting") is True
        return Job(operation.name, operation.call(**given, target=target), message["seed"], faulting)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def outcome_json(outcome: Outcome) -> str:
    """An outcome as it is sent; errors of a comparison may be infinite or NaN, and stay so."""
    return json.dumps(_OUTCOME.dump_python(outcome))


def read_outcome(text: str | bytes) -> Outcome:
    """An outcome as it was sent."""
    return _OUTCOME.validate_python(json.loads(text))


def worker_json(worker: Worker) -> str:
    """Who a worker is, as it is sent."""
    return _WORKER.dump_json(worker).decode()


def read_worker(text: str | bytes) -> Worker:
    """Who a worker is."""
    return _WORKER.validate_json(text)


def queue_of(worker: Worker) -> str:
    """The queue of a worker's architecture."""
    target = worker.device.target
    return "cpu" if target is None else target.name
