"""200 jobs while workers are killed in every way, and the service twice: none is lost, none is wrong."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import pytest

from app.cli import GRACE
from tests.app.serving import Service, killed

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="finds worker processes in /proc"),
]

BACK = 3.0
"""Seconds after which another run has ended, once a worker was killed."""

LIMIT = 2.5
"""Seconds of a run."""

KILLS = {"kill": 6, "abort": 8, "segfault": 8, "gulp": 6, "spin": 6, "victim": 6}
"""Ways in which a job loses its worker, `victim` to a kill from outside, and how often."""

VERDICTS = {
    "gulp": "out-of-memory",
    "spin": "timed-out",
    "none": "passed",
    "quant": "passed",
    "refused": "rejected",
}
"""What each job ends with; what is not here ends with `crashed`."""

REFUSED = {
    "input": {"shape": [16, 7168], "dtype": "bfloat16"},
    "output_q": {"shape": [16, 7168], "dtype": "float8_e4m3fn"},
    "output_s": {"shape": [16, 14], "dtype": "int32", "strides": [1, 16]},
    "scale_ue8m0": False,
}


@dataclass
class Asked:
    """A job of the test: what it is, and its id once accepted."""

    kind: str
    seed: int
    id: str = ""

    @property
    def body(self) -> dict[str, Any]:
        if self.kind in ("quant", "refused"):
            arguments: dict[str, Any] = REFUSED if self.kind == "refused" else {}
            return {"operation": "per_token_group_quant", "arguments": arguments, **self.common}
        kind = "spin" if self.kind == "victim" else self.kind
        return {"operation": "hazard", "arguments": {"kind": kind}, **self.common}

    @property
    def common(self) -> dict[str, Any]:
        return {"level": "run", "seed": self.seed}  # its own seed: no job is answered by another's result


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path, device="cpu", run_timeout=str(LIMIT), max_tensor_bytes="64MiB")
    try:
        made.until_ready()
        yield made
    finally:
        made.end()


def mixed() -> list[Asked]:
    """200 jobs, the kills among them in an order that is the same every time."""
    kinds = [kind for kind, times in KILLS.items() for _ in range(times)]
    kinds += ["none"] * 130 + ["quant"] * 20 + ["refused"] * 10
    random.Random(16).shuffle(kinds)
    return [Asked(kind, seed) for seed, kind in enumerate(kinds)]


def test_no_job_is_lost_and_no_verdict_wrong(service: Service) -> None:
    jobs = mixed()
    assert (len(jobs), sum(KILLS.values())) == (200, 40)
    for job in jobs:
        status, answer = service.answers("POST", "/api/diagnose", job.body, Prefer="respond-async")
        assert status == 202, answer
        job.id = answer["location"].rpartition("/")[2]
    victims = [job for job in jobs if job.kind == "victim"]
    assert not any(job.kind == "victim" for at in (60, 130) for job in jobs[at - 2 : at + 8])
    killer = Thread(target=_kill_workers_of, args=(service, victims))
    killer.start()
    began = time.monotonic()
    stopped: list[float] = []
    stops = {60: service.kill, 130: service.stop}
    for number, job in enumerate(jobs):
        if number in stops:
            stopped.append(time.time())
            stops[number]()
            service.start()
        _until_ended(service, job)
    killer.join(60)
    took = time.monotonic() - began
    verdicts = {job.id: service.answers("GET", f"/api/diagnoses/{job.id}")[1]["verdict"] for job in jobs}
    wrong = [
        (job, found)
        for job, found in ((job, verdicts[job.id]) for job in jobs)
        if found != VERDICTS.get(job.kind, "crashed")
    ]
    assert wrong == []
    gaps = _gaps(service, jobs, stopped)
    sys.stdout.write(
        f"200 jobs in {took:.0f} s: {dict(Counter(verdicts.values()))}; next run ended after a kill: "
        f"median {median(gaps):.2f} s, longest {max(gaps):.2f} s\n"
    )
    assert max(gaps) < BACK


def _until_ended(service: Service, job: Asked) -> None:
    deadline = time.monotonic() + 120
    while service.answers("GET", f"/api/diagnoses/{job.id}")[0] == 202:
        assert time.monotonic() < deadline, (job, service.log.read_text()[-3000:])
        time.sleep(0.05)


def _kill_workers_of(service: Service, victims: list[Asked]) -> None:
    """Kill the worker while it is at each of these jobs; the service has one, and does one job at a time."""
    for job in victims:
        place = f"/api/diagnoses/{job.id}"
        while service.answers("GET", place)[1].get("status") == "queued":
            time.sleep(0.05)
        time.sleep(0.3)
        for pid in service.leaves() if service.answers("GET", place)[1].get("status") == "running" else ():
            killed(pid)


def _gaps(service: Service, jobs: list[Asked], stopped: list[float]) -> list[float]:
    """Seconds from the end of each run that cost the worker to the end of the next run that did not, where
    the service was not stopped in between.
    """
    ends = []
    for job in jobs:
        runs = [data["at"] for kind, data in service.steps(job.id) if kind == "run"]
        ends.append((runs[-1], job.kind))
    return [
        after - before
        for (before, lost), (after, following) in pairwise(sorted(ends))
        if lost in KILLS and following == "none" and not any(before < at < after for at in stopped)
    ]


def test_a_service_that_stops_does_not_wait_for_those_who_watch(service: Service) -> None:
    job = Asked("spin", 1000)
    answer = service.answers("POST", "/api/diagnose", job.body, Prefer="respond-async")[1]
    with ThreadPoolExecutor(1) as threads:
        stream = threads.submit(service.ask, "GET", f"{answer['location']}/events")
        time.sleep(1)
        began = time.monotonic()
        service.process.terminate()
        assert "event: started" in stream.result(30)[1]
        took = time.monotonic() - began
        assert service.process.wait(30) == 0
    assert took < GRACE - 1
