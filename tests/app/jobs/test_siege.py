"""Jobs under bad luck and worse intent: many at once, clients that vanish, ends that race, a file that is
locked, a disk that is full, processes that are killed at any moment.
"""

from __future__ import annotations

import random
import resource
import socket
import sqlite3
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from app.jobs.service import MOST_OPEN
from app.jobs.streams import MOST_STREAMS
from tests.app.serving import Service, killed

LIMIT = 2.5
"""Seconds of a run."""

ASYNC = {"Prefer": "respond-async"}
ENDS_IN = 180.0

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        sys.platform != "linux", reason="finds worker processes in /proc, sets other's limits"
    ),
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("siege")
    made = Service(folder, device="cpu", run_timeout=str(LIMIT), max_tensor_bytes="64MiB")
    try:
        made.until_ready()
        yield made
    finally:
        made.end()


def body(seed: int, kind: str = "none", level: str = "run") -> dict[str, Any]:
    return {"operation": "hazard", "arguments": {"kind": kind}, "level": level, "seed": seed}


def ask(service: Service, seed: int, kind: str = "none", level: str = "run") -> str:
    status, answer = service.answers("POST", "/api/diagnose", body(seed, kind, level), **ASYNC)
    assert status == 202, answer
    return str(answer["location"].rpartition("/")[2])


def end(service: Service, job: str) -> dict[str, Any]:
    """A job's diagnosis, once it has ended; it has ended once."""
    deadline = time.monotonic() + ENDS_IN
    while True:
        status, answer = service.answers("GET", f"/api/diagnoses/{job}")
        if status != 202:
            assert status == 200, (status, answer)
            assert [kind for kind, _ in service.steps(job)].count("done") == 1
            return dict(answer)
        assert time.monotonic() < deadline, (job, answer, service.log.read_text()[-3000:])
        time.sleep(0.05)


def test_of_a_thousand_at_once_each_is_refused_or_ends(service: Service) -> None:
    def one(seed: int) -> tuple[int, str]:
        status, answer = service.ask("POST", "/api/diagnose", body(seed, level="checks"), **ASYNC)
        return status, str(answer["location"]).rpartition("/")[2]

    with ThreadPoolExecutor(64) as threads:
        told = list(threads.map(one, range(1000)))
        statuses = Counter(status for status, _ in told)
        assert set(statuses) <= {202, 503}, statuses
        assert statuses[202] >= MOST_OPEN
        answers = list(
            threads.map(lambda job: end(service, job), [job for status, job in told if status == 202])
        )
    assert {answer["verdict"] for answer in answers} == {"passed"}


def test_a_cancellation_that_races_with_the_end_leaves_one_of_both(service: Service) -> None:
    draw = random.Random(1)
    delays = [draw.random() * 0.15 for _ in range(60)]

    def raced(seed: int) -> tuple[str, str]:
        job = ask(service, 2000 + seed)
        time.sleep(delays[seed])
        for _ in range(2):
            status, said = service.answers("DELETE", f"/api/diagnoses/{job}")
            assert status in (200, 202)
        answer = end(service, job)
        state = service.steps(job)[-1][1]["status"]
        if status == 200:
            assert said["status"] == state, "what was told once stays so"
        assert (state == "done") is (answer["run"] is not None)
        return str(state), str(answer["detail"])

    with ThreadPoolExecutor(4) as threads:
        told = Counter(threads.map(raced, range(60)))
    assert {state for state, _ in told} <= {"done", "cancelled"}, told
    assert end(service, ask(service, 2999))["verdict"] == "passed"


def test_readers_of_events_that_vanish_give_their_places_back(service: Service) -> None:
    job = ask(service, 3000, "spin")
    request = f"GET /api/diagnoses/{job}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    sockets = []
    for _ in range(MOST_STREAMS):
        client = socket.create_connection(("127.0.0.1", service.port), timeout=60)
        client.sendall(request)
        sockets.append(client)
    heads = [client.recv(15) for client in sockets]
    assert set(heads) == {b"HTTP/1.1 200 OK"}
    assert service.ask("GET", f"/api/diagnoses/{job}/events")[0] == 503
    for client in sockets:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # without a farewell
        client.close()
    deadline = time.monotonic() + 20
    job = ask(service, 3001, "spin")
    while service.ask("GET", f"/api/diagnoses/{job}/events")[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    end(service, job)


def test_another_process_that_locks_the_file_delays_jobs_and_nothing_else(service: Service) -> None:
    jobs = [ask(service, 4000 + number) for number in range(4)]
    known = jobs[0]
    end(service, known)
    file = service.folder / "data/jobs.sqlite"
    with (
        closing(sqlite3.connect(file, isolation_level=None, timeout=30)) as other,
        ThreadPoolExecutor(50) as threads,
    ):
        other.execute("BEGIN EXCLUSIVE")
        refused = [
            threads.submit(service.ask, "POST", "/api/diagnose", body(4100 + number), **ASYNC)
            for number in range(48)
        ]
        slowest, locked = 0.0, time.monotonic()
        while time.monotonic() < locked + 13:
            began = time.monotonic()
            assert service.ask("GET", "/api/search?q=scale")[0] == 200
            assert service.ask("GET", f"/api/diagnoses/{known}")[0] == 200
            assert service.ask("POST", "/api/diagnose", body(4200, level="checks"))[0] == 200
            slowest = max(slowest, time.monotonic() - began)
        other.execute("ROLLBACK")
        told = [future.result() for future in refused]
    assert {status for status, _ in told} <= {202, 503}
    assert 503 in {status for status, _ in told}
    assert slowest < 5, "no one else waited for the file"
    jobs += [answer["location"].rpartition("/")[2] for status, answer in told if status == 202]
    assert {end(service, job)["verdict"] for job in jobs} == {"passed"}


def test_a_full_disk_refuses_jobs_and_loses_none(service: Service) -> None:
    jobs = [ask(service, 5000 + number) for number in range(6)]
    wal = service.folder / "data/jobs.sqlite-wal"
    soft, hard = resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (wal.stat().st_size + 100_000, hard))
    try:
        accepted = 0
        deadline = time.monotonic() + ENDS_IN
        while True:
            assert time.monotonic() < deadline
            status, answer = service.ask("POST", "/api/diagnose", body(5100 + accepted), **ASYNC)
            if status == 503 and "store of jobs cannot be reached" in answer["detail"]:
                break
            if status == 503:  # as many are open as may be
                time.sleep(0.1)
                continue
            assert status == 202
            accepted += 1
            jobs.append(answer["location"].rpartition("/")[2])
        assert service.ask("GET", "/api/search?q=scale")[0] == 200
        assert service.ask("POST", "/api/diagnose", body(5200))[1]["verdict"] == "passed", (
            "at once it is answered"
        )
    finally:
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (soft, hard))
    assert {end(service, job)["verdict"] for job in jobs} == {"passed"}
    end(service, ask(service, 5999))


def test_a_service_that_is_stopped_among_open_jobs_gives_them_all_to_the_next(service: Service) -> None:
    before = len(service.log.read_text())
    jobs = [ask(service, 7000 + number) for number in range(20)]
    for _ in range(2):
        time.sleep(0.4)
        service.stop()
        service.start()
        service.until_ready()
    assert {end(service, job)["verdict"] for job in jobs} == {"passed"}
    said = service.log.read_text()[before:]
    assert "Traceback" not in said, said
    assert "was destroyed" not in said, said


def test_a_service_that_is_killed_takes_its_run_with_it(service: Service) -> None:
    """A run without end would keep the processor, or the GPU, for ever: nobody else ends it."""
    job = ask(service, 8000, "spin")
    while not any(kind == "checks" for kind, _ in seen(service, job)):
        time.sleep(0.05)
    time.sleep(0.5)
    below = service.descendants()
    assert len(below) >= 2
    service.kill()
    deadline = time.monotonic() + 20
    while left := [pid for pid in below if alive(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    service.start()
    service.until_ready()
    assert end(service, job)["verdict"] == "timed-out"


def seen(service: Service, job: str) -> list[tuple[str, str]]:
    """The events of a job that goes on, as they stand in the file."""
    with closing(sqlite3.connect(service.folder / "data/jobs.sqlite", timeout=30)) as base:
        return base.execute("SELECT kind, data FROM events WHERE job = ?", (job,)).fetchall()


def alive(pid: int) -> bool:
    """Whether a process goes on; one that has ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_whichever_process_below_it_is_killed_jobs_end_and_go_on(service: Service) -> None:
    draw = random.Random(2)
    jobs = [ask(service, 6000 + number) for number in range(60)]
    for _ in range(25):
        time.sleep(draw.random() * 0.3)
        for pid in draw.sample(found := service.descendants(), min(len(found), 1)):
            killed(pid)
    verdicts = Counter(end(service, job)["verdict"] for job in jobs)
    assert set(verdicts) <= {"passed", "crashed"}, verdicts
    assert end(service, ask(service, 6999))["verdict"] == "passed"
