"""Runs and outcomes arrive at another host as they were sent."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from app.cluster.wire import (
    Unreadable,
    job_json,
    outcome_json,
    queue_of,
    read_job,
    read_outcome,
    read_worker,
    worker_json,
)
from app.worker.messages import Device, Environment, Job, Outcome, Output, Raised, Worker
from kernels.registry import operations
from kernels.target import Target

CALLS = [
    (name, call)
    for name, operation in operations().items()
    for call in (operation.valid, *(check.example() for check in operation.checks))
    if call is not None
]
OUTPUT = Output("y", (4, 2), "float32", math.inf, 0.5, 3, 8, False, 1e-3, 1e-2, 0.0)


@pytest.mark.parametrize("name", list(operations()))
def test_every_call_arrives_as_it_was_sent(name: str) -> None:
    for found, call in CALLS:
        if found == name and call.describable:
            job = Job(name, call.replace(target=Target.parse("sm90")), 7)
            assert read_job(json.loads(json.dumps(job_json(job)))) == job


def test_that_a_run_may_fault_is_sent_and_never_assumed() -> None:
    name, call = CALLS[0]
    sent = job_json(Job(name, call, faulting=True))
    assert read_job(sent).faulting is True
    assert read_job({key: value for key, value in sent.items() if key != "faulting"}).faulting is False


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome("crashed", detail="signal 9"),
        Outcome(
            "raised", raised=Raised("ValueError", "no", "a_check"), environment=Environment("2.13", "3.7")
        ),
        Outcome("unsupported", detail="not run", drawn={"loc": (1, -2), "x": (0.5, math.inf), "m": (True,)}),
        Outcome(
            "returned", Device("H200", "9.0", False), "triton", 0.5, (OUTPUT,), seconds=1.5, breaches=("x",)
        ),
    ],
)
def test_every_outcome_arrives_as_it_was_sent(outcome: Outcome) -> None:
    assert read_outcome(outcome_json(outcome)) == outcome


def test_an_error_that_is_no_number_stays_none() -> None:
    outcome = Outcome("returned", outputs=(replace(OUTPUT, max_abs_error=math.nan),))
    assert math.isnan(read_outcome(outcome_json(outcome)).outputs[0].max_abs_error)


@pytest.mark.parametrize(
    ("capability", "queue"), [(None, "cpu"), ("9.0", "sm90"), ("10.0", "sm100"), ("gfx942", "gfx942")]
)
def test_a_worker_takes_the_queue_of_its_architecture(capability: str | None, queue: str) -> None:
    worker = Worker(Device("a name", capability, False), Environment("2.13.0", "3.7.1"))
    assert read_worker(worker_json(worker)) == worker
    assert queue_of(worker) == queue


@pytest.mark.parametrize(
    "change",
    [{"operation": "of another version"}, {"arguments": {"unknown": 1}}, {"seed": None, "arguments": None}],
)
def test_what_cannot_be_read_is_said(change: dict[str, object]) -> None:
    name, call = CALLS[0]
    with pytest.raises(Unreadable):
        read_job({**job_json(Job(name, call)), **change})
