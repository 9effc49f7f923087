"""A worker that may not use its GPU just now says why, does nothing, and is asked again at the next run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from app.worker import process
from app.worker.messages import Device, Environment, Job, Outcome, Worker
from app.worker.pool import WorkerPool
from kernels.per_token_group_quant.signature import VALID

NAME = "per_token_group_quant"
WHY = "the GPU is in compute mode exclusive-process: a run would fail, or keep its owner from starting"


class Gpu:
    """One that belongs to somebody else."""

    def __init__(self) -> None:
        self.why = WHY
        self.turns = 0

    def refusal(self) -> str:
        return self.why

    def described(self) -> tuple[str, str]:
        return "NVIDIA H200", "9.0"

    @contextmanager
    def turn(self) -> Iterator[None]:
        self.turns += 1
        yield

    def release(self) -> None:
        raise RuntimeError("CUDA error: misaligned address")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    monkeypatch.setattr(process, "_state", {"device": "cpu", "gpu": gpu})
    return gpu


def test_a_refused_run_is_not_begun(gpu: Gpu) -> None:
    outcome = process.run(Job(NAME, VALID))
    assert (outcome.ending, outcome.detail) == ("unsupported", f"not run: {WHY}")
    assert gpu.turns == 0


def test_a_context_that_is_lost_is_noticed_whatever_the_run_said(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.why = ""
    left: list[int] = []

    def leave(status: int) -> None:
        left.append(status)

    monkeypatch.setattr("os._exit", leave)
    for ending in (Outcome("returned"), Outcome("out-of-memory"), Outcome("raised")):
        monkeypatch.setattr(process, "_run", lambda *_, ending=ending: ending)
        process.run(Job(NAME, VALID))

    def broken(*_: object) -> Outcome:
        raise MemoryError

    monkeypatch.setattr(process, "_run", broken)
    process.run(Job(NAME, VALID))
    assert left == [process.CONTEXT_LOST] * 4


def test_the_answer_says_why_nothing_was_run(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(Device("NVIDIA H200", "9.0", False), Environment(torch="2.13.0"))

    async def run(self: WorkerPool, job: Job, worker: Worker | None, _: object) -> Outcome:
        return Outcome("unsupported", device=Device("NVIDIA H200", "9.0", False), detail=f"not run: {WHY}")

    def start(self: WorkerPool) -> None:
        self.worker = worker

    monkeypatch.setattr(WorkerPool, "run", run)
    monkeypatch.setattr(WorkerPool, "start", start)
    with TestClient(create_app(Settings(device="cpu"))) as client:
        body = {"operation": NAME, "arguments": {}, "level": "run"}
        answer = client.post("/api/diagnose", json=body).json()
        assert (answer["verdict"], answer["run"]) == ("unsupported", None)
        assert answer["detail"] == f"not run: {WHY}"
        rejected = client.post("/api/diagnose", json={**body, "arguments": {"group_size": 100}}).json()
        assert rejected["verdict"] == "rejected"
        assert rejected["raised"]
        assert rejected["detail"] == f"not run: {WHY}"
        again = client.post("/api/diagnose", json=body)
        assert "cache-status" not in again.headers  # what others do with a GPU changes


@pytest.mark.parametrize("allowed", [False, True])
def test_what_the_checks_say_would_fault_runs_only_where_that_is_allowed(
    monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    ran: list[str] = []

    async def run(self: WorkerPool, job: Job, worker: Worker | None, _: object) -> Outcome:
        ran.append(job.operation)
        return Outcome("crashed", detail="the run broke the CUDA context")

    def start(self: WorkerPool) -> None:
        self.worker = Worker(Device("NVIDIA H200", "9.0", False), Environment())

    monkeypatch.setattr(WorkerPool, "run", run)
    monkeypatch.setattr(WorkerPool, "start", start)
    outside = {"shape": [8], "dtype": "int32", "values": {"kind": "full", "value": 1_000_000_000}}
    arguments = {"q": "bfloat16[2,16,128]", "unified_kv": "bfloat16[8,128]", "kv_indices": outside}
    body = {"operation": "sparse_attn_v4_paged_decode", "arguments": arguments, "level": "run"}
    with TestClient(create_app(Settings(device="cpu", allow_faulting_runs=allowed))) as client:
        answer = client.post("/api/diagnose", json=body).json()
    # Repairs are run in any case: they pass every check.
    assert answer["verdict"] == ("crashed" if allowed else "rejected")
    assert (answer["detail"] or "").startswith("the run broke" if allowed else "not run")
    assert ran.count("sparse_attn_v4_paged_decode") == len(answer["fixes"]) + allowed
