"""The pool with real worker processes: what a job's end means, and that the next job is not touched by it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine, Iterator
from threading import Thread
from typing import Any, TypeVar

import pytest

from app.settings import Settings
from app.worker.messages import Device, Environment, Job, Outcome, Worker
from app.worker.pool import PoolBusy, WorkerPool
from app.worker.slot import Slot
from kernels.dtypes import DType
from kernels.per_token_group_quant.signature import PACKED, VALID
from kernels.spec import TensorSpec

T = TypeVar("T")
NAME = "per_token_group_quant"

LONG = VALID.replace(
    input=TensorSpec((120_000, 4096), DType.BF16),
    output_q=TensorSpec((120_000, 4096), DType.F8_E4M3FN),
    output_s=TensorSpec((120_000, 32), DType.F32),
)


class Loop:
    """An event loop in a thread, so that one pool serves a module's tests."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def __call__(self, coroutine: Coroutine[Any, Any, T], limit: float = 120.0) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(limit)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture(scope="module")
def pool(loop: Loop) -> Iterator[WorkerPool]:
    made = WorkerPool(Settings(run_timeout=3, device="cpu", max_tensor_bytes=4 << 30))

    async def start() -> None:
        made.start()

    loop(start())
    yield made
    loop(made.stop())


def worker_of(pool: WorkerPool) -> int:
    """Process id of the pool's only worker."""
    (worker,) = pool.processes()
    return worker


def run(loop: Loop, pool: WorkerPool, call: Any) -> Outcome:
    return loop(pool.run(Job(NAME, call)))


def test_a_valid_call_runs_the_kernel_and_agrees_with_the_reference(loop: Loop, pool: WorkerPool) -> None:
    outcome = run(loop, pool, VALID)
    assert (outcome.ending, outcome.implementation, outcome.agrees) == ("returned", "triton", True)
    assert {output.name: output.elements for output in outcome.outputs} == {"output_q": 1024, "output_s": 8}
    assert outcome.device is not None
    assert outcome.device.emulated
    assert pool.worker is not None
    assert pool.worker.environment.torch == outcome.environment.torch


def test_the_guard_of_the_real_function_raises_what_the_check_says(loop: Loop, pool: WorkerPool) -> None:
    outcome = run(loop, pool, PACKED.without("scale_ue8m0"))
    assert outcome.ending == "raised"
    assert outcome.raised is not None
    assert outcome.raised.error_class == "ValueError"
    assert outcome.raised.message == "int32-packed scale buffers require scale_ue8m0=True"
    assert outcome.raised.check == "packed_scales_without_ue8m0"


def test_a_run_over_its_time_is_ended_and_the_next_one_runs(loop: Loop, pool: WorkerPool) -> None:
    assert run(loop, pool, LONG).ending == "timed-out"
    assert run(loop, pool, VALID).agrees


def test_a_killed_worker_is_a_crash_of_its_own_job_only(loop: Loop, pool: WorkerPool) -> None:
    run(loop, pool, VALID)

    async def killed() -> Outcome:
        job = asyncio.ensure_future(pool.run(Job(NAME, LONG)))
        await asyncio.sleep(0.5)
        os.kill(worker_of(pool), signal.SIGKILL)
        return await job

    outcome = loop(killed())
    assert outcome.ending == "crashed"
    assert "signal 9" in outcome.detail
    assert run(loop, pool, VALID).agrees


def test_a_worker_killed_between_jobs_is_replaced(loop: Loop, pool: WorkerPool) -> None:
    run(loop, pool, VALID)
    os.kill(worker_of(pool), signal.SIGKILL)
    assert run(loop, pool, VALID).agrees


def test_a_run_that_is_cancelled_ends_its_process_and_gives_its_place_back(
    loop: Loop, pool: WorkerPool
) -> None:
    run(loop, pool, VALID)
    before = worker_of(pool)

    spent: list[float] = []

    async def cancelled() -> None:
        job = asyncio.ensure_future(pool.run(Job(NAME, LONG), spent=spent.append))
        await asyncio.sleep(0.5)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job

    loop(cancelled())
    [seconds] = spent
    assert seconds == pytest.approx(0.5, abs=0.4)  # a key pays for what it cancelled
    assert run(loop, pool, VALID).agrees
    assert worker_of(pool) != before


def test_jobs_that_wait_are_cancelled_without_a_run(loop: Loop, pool: WorkerPool) -> None:
    run(loop, pool, VALID)
    before = worker_of(pool)

    async def cancelled() -> Outcome:
        first = asyncio.ensure_future(pool.run(Job(NAME, VALID)))
        waiting = [asyncio.ensure_future(pool.run(Job(NAME, LONG))) for _ in range(3)]
        await asyncio.sleep(0)
        for job in waiting:
            job.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert pool.waiting == 0
        return await first

    assert loop(cancelled()).agrees
    assert worker_of(pool) == before


def test_too_much_memory_is_said_and_survived(loop: Loop, pool: WorkerPool) -> None:
    huge = VALID.replace(
        input=TensorSpec((4, 256), DType.BF16, strides=(1 << 36, 1)),
    )
    outcome = run(loop, pool, huge)
    assert outcome.ending == "out-of-memory"
    assert run(loop, pool, VALID).agrees


def test_a_full_queue_is_refused(loop: Loop) -> None:
    made = WorkerPool(Settings(run_timeout=30, device="cpu"))

    async def fill() -> int:
        made.start()
        jobs = [asyncio.ensure_future(made.run(Job(NAME, VALID))) for _ in range(12)]
        ended = await asyncio.gather(*jobs, return_exceptions=True)
        await made.stop()
        return sum(isinstance(answer, PoolBusy) for answer in ended)

    assert loop(fill()) == 12 - 9


def test_each_gpu_has_one_worker(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    h200 = Worker(Device("H200", "9.0", False), Environment("2.11", "3.6"))
    monkeypatch.setattr(Slot, "launch", lambda self: h200)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    made = WorkerPool(Settings(device="cuda", workers=5))

    async def start() -> None:
        made.start()
        assert made._starting is not None
        await made._starting
        await made.stop()

    loop(start())
    assert len(made._slots) == 2
    assert "FAULTBOOK_WORKERS is 5 and 2 are started" in caplog.text


def test_a_worker_that_cannot_start_is_reported(loop: Loop) -> None:
    made = WorkerPool(Settings(device="cuda"))
    import torch

    if torch.cuda.is_available():
        pytest.skip("this host has the device asked for")

    async def ask() -> None:
        made.start()
        try:
            with pytest.raises(PoolBusy, match="did not start"):
                await made.run(Job(NAME, VALID))
        finally:
            await made.stop()

    loop(ask())
    assert made.failure
