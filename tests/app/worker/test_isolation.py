"""A service as it is started, with an operation more that ends its process in every way there is: that job
alone ends, its verdict says how, and the next one is right.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
MORE = Path(__file__).parent / "more"
STARTED = 60.0
BACK_CPU, BACK_GPU = 3.0, 10.0
"""Seconds after which the next run has ended with the right result."""

pytestmark = pytest.mark.timeout(240)


class Service:
    """One `faultbook serve` with a short time limit, and a client of it."""

    def __init__(
        self, folder: Path, device: str, environment: dict[str, str] | None = None, **settings: str
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.asked = 1000
        self.orphan = folder / "orphan"
        self.log = folder / "log"
        whole = {
            **os.environ,
            **(environment or {}),
            "PYTHONPATH": os.pathsep.join([str(MORE), str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "HAZARD_ORPHAN": str(self.orphan),
            "FAULTBOOK_DATA": str(folder / "data"),
            "FAULTBOOK_DEVICE": device,
            "FAULTBOOK_RUN_TIMEOUT": "10" if device == "cuda" else "4",
            **{f"FAULTBOOK_{name.upper()}": value for name, value in settings.items()},
        }
        command = [sys.executable, "-m", "app.cli", "serve", "--port", str(self.port)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=whole, stdout=log, stderr=subprocess.STDOUT
            )
        self._until_ready()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def hazard(self, kind: str, seed: int | None = None) -> dict[str, Any]:
        self.asked += 1  # an equal question would be answered from the store
        seed = self.asked if seed is None else seed
        body = {"operation": "hazard", "arguments": {"kind": kind}, "level": "run", "seed": seed}
        status, answer = self.ask("POST", "/api/diagnose", body)
        assert status == 200, answer
        found: dict[str, Any] = answer
        return found

    def _until_ready(self) -> None:
        ended = time.monotonic() + STARTED
        state: Any = None
        while time.monotonic() < ended:
            assert self.process.poll() is None, self.log.read_text()
            try:
                state = self.ask("GET", "/readyz")[1]
                if state["parts"]["worker"]["ready"]:
                    return
            except (OSError, KeyError):
                pass
            time.sleep(0.1)
        raise AssertionError(f"{state}\n{self.log.read_text()}")

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(30) == 0


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("cpu"), "cpu", max_tensor_bytes="64MiB")
    yield service
    service.stop()


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("gpu"), "cuda", allow_faulting_runs="true")
    yield service
    service.stop()


def survived(service: Service, kind: str, verdict: str, within: float) -> dict[str, Any]:
    """The hazard's answer; the next run is right, and ends in time."""
    assert service.hazard("none")["verdict"] == "passed"
    began = time.monotonic()
    answer = service.hazard(kind)
    hazarded = time.monotonic()
    following = service.hazard("none")
    back = time.monotonic() - hazarded
    told = f"{kind}: {answer['verdict']} after {hazarded - began:.2f} s, right again {back:.2f} s later"
    sys.stdout.write(f"{told}; {answer['detail']}\n")
    assert answer["verdict"] == verdict, answer["detail"]
    assert following["verdict"] == "passed", following
    assert following["run"]["maxAbsError"] == 0.0
    assert back < within
    assert service.process.poll() is None
    return answer


@pytest.mark.parametrize(
    ("kind", "verdict", "word"),
    [
        ("kill", "crashed", "signal 9"),
        ("abort", "crashed", "signal 6"),
        ("segfault", "crashed", "signal 11"),
        ("exit", "crashed", "status 3"),
        ("gulp", "out-of-memory", ""),
        ("spin", "timed-out", "longer than 4 s"),
        ("stubborn", "timed-out", "longer than 4 s"),
    ],
)
def test_a_run_that_ends_its_process_ends_alone(cpu: Service, kind: str, verdict: str, word: str) -> None:
    answer = survived(cpu, kind, verdict, BACK_CPU)
    assert word in answer["detail"]


def test_what_a_run_has_started_ends_with_it(cpu: Service) -> None:
    survived(cpu, "orphan", "crashed", BACK_CPU)
    time.sleep(0.3)
    last = cpu.orphan.read_text()
    time.sleep(0.5)
    assert cpu.orphan.read_text() == last


def test_a_worker_is_a_process_group_of_its_own(cpu: Service) -> None:
    cpu.hazard("none")
    (worker,) = _workers(cpu.process.pid)
    assert os.getpgid(worker) == worker


def test_the_service_itself_has_no_torch(cpu: Service) -> None:
    assert not _has_torch(cpu.process.pid)
    assert _workers(cpu.process.pid)


def test_a_service_that_is_told_to_stop_ends_what_it_has_begun(tmp_path: Path) -> None:
    service = Service(tmp_path, "cpu")
    workers = _workers(service.process.pid)
    answers: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: answers.append(service.hazard("slow")))
    asking.start()
    time.sleep(0.7)
    service.process.terminate()
    asking.join()
    assert service.process.wait(30) == 0
    assert answers[0]["verdict"] == "passed"
    with pytest.raises(OSError, match="refused"):
        service.ask("GET", "/healthz")
    assert workers
    assert not [worker for worker in workers if Path(f"/proc/{worker}").exists()]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kind", "verdict", "word"),
    [
        ("illegal", "crashed", "CUDA context"),
        ("misaligned", "crashed", "CUDA context"),
        ("exhaust", "out-of-memory", ""),
        ("endless", "timed-out", "longer than 10 s"),
        ("kill", "crashed", "signal 9"),
    ],
)
def test_a_fault_on_the_card_ends_alone(gpu: Service, kind: str, verdict: str, word: str) -> None:
    answer = survived(gpu, kind, verdict, BACK_GPU)
    assert word in answer["detail"]


@pytest.mark.gpu
def test_a_card_that_others_have_is_left_to_them(tmp_path: Path) -> None:
    """Asked before each run: what others do with a card changes while the service lives."""
    pipes = tmp_path / "mps"
    pipes.mkdir()
    service = Service(tmp_path, "cuda", environment={"CUDA_MPS_PIPE_DIRECTORY": str(pipes)})
    try:
        assert service.hazard("none")["verdict"] == "passed"
        os.mkfifo(pipes / "control")
        refused = service.hazard("none", seed=1)
        assert (refused["verdict"], refused["run"]) == ("unsupported", None)
        assert "MPS" in refused["detail"]
        (pipes / "control").unlink()
        assert service.hazard("none", seed=2)["verdict"] == "passed"
    finally:
        service.stop()


@pytest.mark.gpu
def test_a_card_without_its_reserve_is_not_used_from_the_start(tmp_path: Path) -> None:
    service = Service(tmp_path, "cuda", gpu_memory_reserve="100TiB")
    try:
        refused = service.hazard("none")
        assert refused["verdict"] == "unsupported"
        assert "stay reserved for others" in refused["detail"]
        assert service.ask("GET", "/readyz")[1]["parts"]["worker"]["ready"]
        used = subprocess.run(
            ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert not {str(worker) for worker in _workers(service.process.pid)} & set(used.split())
    finally:
        service.stop()


def _workers(process: int) -> list[int]:
    """Descendants of a process that have loaded torch and have no children: the workers."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [process]
    while todo:
        children = parents.get(todo.pop(), [])
        todo += children
        found += [child for child in children if child not in parents and _has_torch(child)]
    return found


def _has_torch(process: int) -> bool:
    return "libtorch" in Path(f"/proc/{process}/maps").read_text()
