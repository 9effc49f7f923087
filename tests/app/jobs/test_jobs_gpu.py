"""Jobs on a GPU: a cancelled kernel is ended with its process, and the card is good for the next one."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.app.serving import Service

pytestmark = pytest.mark.gpu

BACK = 10.0
"""Seconds after which the next run has ended with the right result."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = Service(tmp_path_factory.mktemp("gpu"), device="cuda", run_timeout="60")
    try:
        made.until_ready()
        yield made
    finally:
        made.end()


def asked(kind: str, seed: int) -> dict[str, Any]:
    return {"operation": "hazard", "arguments": {"kind": kind}, "level": "run", "seed": seed}


def test_an_endless_kernel_is_cancelled_and_the_next_run_is_right(service: Service) -> None:
    place = service.answers("POST", "/api/diagnose", asked("endless", 1), Prefer="respond-async")[1][
        "location"
    ]
    while not any(kind == "checks" for kind, _ in _steps(service, place)):
        time.sleep(0.05)
    time.sleep(1)
    began = time.monotonic()
    status, state = service.answers("DELETE", place)
    assert (status in (200, 202), state["status"] in ("cancelled", "running")) == (True, True)
    cancelled = time.monotonic() - began
    answer = service.answers("POST", "/api/diagnose", asked("none", 2))[1]
    back = time.monotonic() - began
    assert answer["verdict"] == "passed"
    assert back < BACK
    assert service.answers("GET", place)[1]["detail"] == "cancelled while it ran"
    sys.stdout.write(f"cancelled after {cancelled:.2f} s, the next run right after {back:.2f} s\n")


def test_a_stored_answer_says_so_and_names_the_card(service: Service) -> None:
    body = {"operation": "per_token_group_quant", "level": "run", "seed": 3}
    first, second = (service.answers("POST", "/api/diagnose", body)[1] for _ in range(2))
    assert (first["cached"], second["cached"] is not None) == (None, True)
    assert first["run"]["device"]["capability"]
    assert first["environment"]["driver"]
    assert {**second, "id": "", "cached": None} == {**first, "id": ""}


def _steps(service: Service, place: str) -> list[tuple[str, Any]]:
    jobs = service.folder / "data/jobs.sqlite"
    base = sqlite3.connect(jobs)
    try:
        job = place.rpartition("/")[2]
        return base.execute("SELECT kind, data FROM events WHERE job = ?", (job,)).fetchall()
    finally:
        base.close()
