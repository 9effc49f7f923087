"""Diagnoses that are asked for with `Prefer: respond-async`, through HTTP and with a real worker."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Response
from starlette.testclient import TestClient

from app.diagnose.identity import interpreter
from app.diagnose.schemas import DiagnosisModel
from app.diagnose.service import Question, Report, nobody
from app.errors import Busy, Unavailable
from app.jobs import routes, service
from app.jobs.answers import shareable
from app.jobs.endings import LONGEST_SHARED
from app.main import create_app
from app.settings import Settings

ASYNC = {"Prefer": "respond-async"}
VALID = {"operation": "per_token_group_quant", "level": "run"}
REFUSED = {
    "operation": "per_token_group_quant",
    "arguments": {
        "input": {"shape": [16, 7168], "dtype": "bfloat16"},
        "output_q": {"shape": [16, 7168], "dtype": "float8_e4m3fn"},
        "output_s": {"shape": [16, 14], "dtype": "int32", "strides": [1, 16]},
        "group_size": 128,
        "scale_ue8m0": False,
    },
    "level": "run",
}
LONG = {
    "operation": "per_token_group_quant",
    "arguments": {
        "input": {"shape": [60_000, 4096], "dtype": "bfloat16"},
        "output_q": {"shape": [60_000, 4096], "dtype": "float8_e4m3fn"},
        "output_s": {"shape": [60_000, 32], "dtype": "float32"},
    },
    "level": "run",
}


def settings(data: Path, **others: Any) -> Settings:
    return Settings(device="cpu", run_timeout=60, data=data, **others)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service with one CPU worker."""
    with TestClient(create_app(settings(tmp_path_factory.mktemp("jobs")))) as made:
        yield made


@pytest.fixture
def checker(tmp_path: Path) -> Iterator[TestClient]:
    """A service without a worker."""
    with TestClient(create_app(settings(tmp_path, workers=0))) as made:
        yield made


def ask(client: TestClient, body: dict[str, Any], **headers: str) -> str:
    """The address of a job that was accepted."""
    response = client.post("/api/diagnose", json=body, headers={**ASYNC, **headers})
    assert response.status_code == 202, response.text
    assert response.headers["preference-applied"] == "respond-async"
    return response.headers["location"]


def end(client: TestClient, place: str, limit: float = 60.0) -> Response:
    """The answer once it is no 202."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        response = client.get(place)
        if response.status_code != 202:
            return response
        assert response.json()["status"] in ("queued", "running")
        time.sleep(0.05)
    raise AssertionError("the job did not end")


def until(client: TestClient, place: str, kind: str) -> None:
    """Read the job's events up to this one."""
    jobs = routes.jobs_of(client)  # type: ignore[arg-type]
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if any(event.kind == kind for event in jobs.store.events(place.rpartition("/")[2], 0)):
            return
        time.sleep(0.02)
    raise AssertionError(f"no event {kind}")


def events(text: str) -> list[tuple[int, str, dict[str, Any]]]:
    """Server-sent events as (id, event, data)."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            data = json.loads(fields["data"])
            assert abs(data.pop("at") - time.time()) < 120
            found.append((int(fields["id"]), fields["event"], data))
    return found


def test_an_accepted_job_is_202_until_it_is_the_diagnosis(client: TestClient) -> None:
    place = ask(client, REFUSED)
    assert place.startswith("/api/diagnoses/")
    assert len(place.rpartition("/")[2]) == 32
    answer = end(client, place).json()
    assert (answer["id"], answer["verdict"]) == (place.rpartition("/")[2], "rejected")
    assert answer["fixes"][0]["level"] == "matches-reference"
    assert answer["cached"] is None
    synchronous = client.post("/api/diagnose", json=REFUSED, headers={"Cache-Control": "no-cache"}).json()
    for answered in (answer, synchronous):
        del answered["id"]
        for run in (answered, *answered["fixes"]):
            if run["run"]:
                del run["run"]["milliseconds"]
    assert answer == synchronous


def test_its_steps_are_told_in_order_and_end(client: TestClient) -> None:
    place = ask(client, {**REFUSED, "seed": 1})
    with client.stream("GET", f"{place}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        told = events("".join(stream.iter_text()))
    kinds = [kind for _, kind, _ in told]
    assert kinds[:4] == ["queued", "started", "checks", "run"]
    assert set(kinds[4:-1]) == {"fix"}
    assert [number for number, *_ in told] == list(range(1, len(told) + 1))
    assert told[-1][1:] == ("done", {"status": "done", "verdict": "rejected"})
    answer = client.get(place).json()
    assert [data["title"] for _, kind, data in told if kind == "fix"] == [
        fix["title"] for fix in answer["fixes"]
    ]
    rest = client.get(f"{place}/events", headers={"Last-Event-ID": "3"})
    assert events(rest.text) == told[3:]
    assert client.get(f"{place}/events", headers={"Last-Event-ID": str(len(told))}).status_code == 204


def test_a_quiet_stream_says_that_it_is_alive(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "HEARTBEAT", 0.1)
    monkeypatch.setattr(service, "POLL", 0.05)
    place = ask(client, {**LONG, "seed": 1})
    seen = ""
    with client.stream("GET", f"{place}/events") as stream:
        for text in stream.iter_text():
            seen += text
            if ": still here" in seen and not client.delete(place).is_error:
                break
    assert ": still here" in seen


def test_a_client_that_can_wait_a_moment_gets_the_answer_itself(client: TestClient) -> None:
    response = client.post(
        "/api/diagnose", json={**VALID, "seed": 2}, headers={"Prefer": "respond-async, wait=30"}
    )
    assert (response.status_code, response.json()["verdict"]) == (200, "passed")
    assert response.headers["preference-applied"] == "respond-async, wait=30"
    assert client.get(response.headers["location"]).json() == response.json()


def test_a_record_is_reproduced_as_a_job(client: TestClient) -> None:
    response = client.post("/api/errors/402df144293dfbb6/reproduce", headers=ASYNC)
    assert response.status_code == 202
    assert end(client, response.headers["location"]).json()["verdict"] == "rejected"


def test_a_running_job_is_cancelled_and_its_process_ended(client: TestClient) -> None:
    end(client, ask(client, {**VALID, "seed": 3}))
    place = ask(client, LONG)
    until(client, place, "checks")
    time.sleep(0.3)
    response = client.delete(place)
    assert (response.status_code, response.json()["status"]) == (200, "cancelled")
    answer = client.get(place).json()
    assert (answer["verdict"], answer["detail"], answer["run"]) == (
        "unsupported",
        "cancelled while it ran",
        None,
    )
    assert events(client.get(f"{place}/events").text)[-1][2]["status"] == "cancelled"
    began = time.monotonic()
    assert end(client, ask(client, {**VALID, "seed": 4})).json()["verdict"] == "passed"
    assert time.monotonic() - began < 10
    assert client.delete(place).json()["status"] == "cancelled"


def test_a_queued_job_is_cancelled_before_it_begins(client: TestClient) -> None:
    running, queued = ask(client, LONG), ask(client, {**REFUSED, "seed": 5})
    until(client, running, "checks")
    assert client.delete(queued).json()["status"] == "cancelled"
    answer = client.get(queued).json()
    assert (answer["verdict"], answer["detail"]) == ("rejected", "cancelled before it ran")
    assert answer["raised"]["recordId"] == "402df144293dfbb6"
    assert client.delete(running).json()["status"] == "cancelled"


def test_a_job_that_is_done_stays_done(client: TestClient) -> None:
    place = ask(client, {**VALID, "seed": 6})
    answer = end(client, place).json()
    assert client.delete(place).json()["status"] == "done"
    assert client.get(place).json() == answer


def test_an_equal_question_is_answered_from_the_store_and_says_so(client: TestClient) -> None:
    body = {**REFUSED, "seed": 7}
    first = client.post("/api/diagnose", json=body)
    assert "cache-status" not in first.headers
    again = client.post("/api/diagnose", json=body)
    assert again.headers["cache-status"].endswith("hit")
    assert again.json()["cached"]["at"].endswith("Z")
    assert {**again.json(), "cached": None} == first.json()  # its id too: asking again stores nothing
    kept = routes.jobs_of(client).store  # type: ignore[arg-type]
    before = kept._read("SELECT count(*) FROM jobs")  # type: ignore[attr-defined]
    client.post("/api/diagnose", json=body)
    assert kept._read("SELECT count(*) FROM jobs") == before  # type: ignore[attr-defined]
    job = end(client, ask(client, body))
    assert job.headers["cache-status"].endswith("hit")
    fresh = client.post("/api/diagnose", json=body, headers={"Cache-Control": "no-cache"})
    assert fresh.json()["cached"] is None
    other = client.post("/api/diagnose", json={**body, "seed": 8})
    assert other.json()["cached"] is None


def test_a_long_answer_is_run_again(client: TestClient) -> None:
    """Of stored ones each job would keep a copy, which costs who asks nothing."""
    values = {"kind": "list", "data": [1.5] * 65_536}
    body = {**VALID, "arguments": {"input": {"shape": [256, 256], "dtype": "bfloat16", "values": values}}}
    for _ in range(2):
        answer = client.post("/api/diagnose", json=body)
        assert len(answer.content) > LONGEST_SHARED
        assert answer.json()["cached"] is None
    assert client.get(f"/api/diagnoses/{answer.json()['id']}").content == answer.content


def test_what_ran_at_once_is_readable_by_its_id_too(client: TestClient) -> None:
    answer = client.post("/api/diagnose", json={**VALID, "seed": 9}).json()
    assert client.get(f"/api/diagnoses/{answer['id']}").json() == answer


def test_what_ended_otherwise_is_no_answer_to_others(tmp_path: Path) -> None:
    with TestClient(create_app(settings(tmp_path).model_copy(update={"run_timeout": 0.5}))) as client:
        for _ in range(2):
            answer = client.post("/api/diagnose", json=LONG).json()
            assert (answer["verdict"], answer["cached"]) == ("timed-out", None)


def test_results_outlive_the_service(tmp_path: Path) -> None:
    with TestClient(create_app(settings(tmp_path, workers=0))) as client:
        place = ask(client, {**REFUSED, "level": "checks"})
        answer = end(client, place).json()
    with TestClient(create_app(settings(tmp_path, workers=0))) as client:
        assert client.get(place).json() == answer


def test_what_a_stopped_service_had_begun_is_done_by_the_next(tmp_path: Path) -> None:
    with TestClient(create_app(settings(tmp_path))) as client:
        running, queued = ask(client, LONG), ask(client, REFUSED)
        until(client, running, "checks")
    with TestClient(create_app(settings(tmp_path))) as client:
        until(client, running, "checks")
        assert client.delete(running).json()["status"] == "cancelled"
        assert end(client, queued).json()["fixes"][0]["level"] == "matches-reference"


def test_results_are_gone_when_their_retention_ends(tmp_path: Path) -> None:
    with TestClient(create_app(settings(tmp_path, workers=0, retention=0.5))) as client:
        place = ask(client, {**REFUSED, "level": "checks"})
        time.sleep(0.1)
        assert client.get(place).status_code == 200
        time.sleep(0.6)
        assert client.get(place).status_code == 404


def test_a_full_queue_is_refused_and_says_when_to_try_again(
    checker: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST_OPEN", 0)
    response = checker.post("/api/diagnose", json=VALID, headers=ASYNC)
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) > 0


def test_a_store_without_room_for_what_is_asked_refuses_it_and_says_when_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.Jobs, "start", lambda _jobs: None)  # nobody takes what is accepted
    large = json.dumps(VALID).ljust(3 << 20)
    fields = {**ASYNC, "Content-Type": "application/json"}
    with TestClient(create_app(settings(tmp_path, workers=0, max_store_bytes=64 << 20))) as client:
        told = [client.post("/api/diagnose", content=large, headers=fields) for _ in range(11)]
        assert [answer.status_code for answer in told[:10]] == [202] * 10
        assert told[-1].status_code == 503
        assert told[-1].headers["content-type"] == "application/problem+json"
        assert told[-1].json()["type"].endswith("/about/problems/unavailable")
        assert "room" in told[-1].json()["detail"]
        assert int(told[-1].headers["retry-after"]) > 0
        kept = re.search(r"^faultbook_kept_bytes (\S+)", client.get("/metrics").text, re.MULTILINE)
        assert kept is not None
        assert 30 << 20 < float(kept[1]) <= 32 << 20
        assert client.post("/api/diagnose", json={**VALID, "level": "checks"}).status_code == 200


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("job", ["0" * 32, "x"])
def test_an_unknown_job_is_not_found(checker: TestClient, method: str, job: str) -> None:
    assert checker.request(method, f"/api/diagnoses/{job}").status_code == 404
    assert checker.get(f"/api/diagnoses/{job}/events").status_code == 404


def test_a_bad_request_is_refused_at_once_and_a_misfit_at_its_end(client: TestClient) -> None:
    assert client.post("/api/diagnose", json={"operation": 1}, headers=ASYNC).status_code == 422
    assert client.post("/api/diagnose", json={"operation": "x"}, headers=ASYNC).status_code == 404
    huge = {**VALID, "arguments": {"input": "float32[8000000,8192]"}}
    answer = end(client, ask(client, huge))
    assert (answer.status_code, answer.headers["content-type"]) == (413, "application/problem+json")
    assert answer.json()["errors"] == [
        {"pointer": "/arguments", "detail": answer.json()["errors"][0]["detail"]}
    ]


def test_without_a_data_folder_jobs_are_kept_in_memory_and_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with TestClient(create_app(settings(tmp_path / "file", workers=0))) as client:
        assert client.get("/readyz").json()["parts"]["jobs"]["ready"] is False
        assert end(client, ask(client, {**REFUSED, "level": "checks"})).status_code == 200


def test_a_store_that_was_deleted_under_the_service_is_said(checker: TestClient) -> None:
    data: Path = checker.app.state.settings.data  # type: ignore[attr-defined]
    kept = {"ready": True, "required": False, "detail": "kept across restarts"}
    assert checker.get("/readyz").json()["parts"]["jobs"] == kept
    (data / "jobs.sqlite").unlink()
    told = checker.get("/readyz")
    assert told.status_code == 200, "look-ups and checks go on"
    jobs = told.json()["parts"]["jobs"]
    assert jobs["ready"] is False
    assert jobs["detail"].startswith("jobs.sqlite was removed while it was in use")
    assert end(checker, ask(checker, {**REFUSED, "level": "checks"})).status_code == 200


def test_one_key_does_not_take_every_stream(checker: TestClient) -> None:
    jobs = routes.jobs_of(checker)  # type: ignore[arg-type]
    with ExitStack() as streams:
        for owner, count in (("bob", 64), ("", 192)):
            for _ in range(count):
                streams.enter_context(jobs.streams.place(owner))
            with pytest.raises(Unavailable, match="256 streams of events are open already, or 64"):
                streams.enter_context(jobs.streams.place("bob"))
        with pytest.raises(Unavailable):
            streams.enter_context(jobs.streams.place("ann"))
    with jobs.streams.place("bob"):
        pass


@pytest.mark.parametrize(
    ("problem", "ending"), [(Busy("every worker is busy"), "done"), (Unavailable("no worker"), "interrupted")]
)
def test_a_place_is_waited_for_longer_than_a_worker_that_is_lost(
    checker: TestClient, monkeypatch: pytest.MonkeyPatch, problem: Unavailable, ending: str
) -> None:
    monkeypatch.setattr(service, "PATIENCE", 0.3)
    monkeypatch.setattr(service, "POLL", 0.05)
    diagnoser = checker.app.state.diagnoser  # type: ignore[attr-defined]
    diagnose, times = diagnoser.diagnose, 0

    async def busy(question: Question, report: Report = nobody, *, obstacle: str = "") -> DiagnosisModel:
        nonlocal times
        times += 1
        if obstacle or times > 20:
            return await diagnose(question, report, obstacle=obstacle)  # type: ignore[no-any-return]
        await report("checks", {"failed": 0, "rejected": False})
        raise problem

    monkeypatch.setattr(diagnoser, "diagnose", busy)
    place = ask(checker, {**VALID, "level": "checks"})
    assert end(checker, place).json()["verdict"] in ("passed", "unsupported")
    told = events(checker.get(f"{place}/events").text)
    assert told[-1][2]["status"] == ending
    assert [kind for _, kind, _ in told] == ["queued", "started", "checks", "done"]
    assert (times > 10) is (ending == "done")


def test_an_answer_of_other_versions_or_of_a_failed_neighbour_is_shared_with_nobody(
    client: TestClient,
) -> None:
    answer = DiagnosisModel.model_validate(client.post("/api/diagnose", json={**VALID, "seed": 10}).json())
    worker = client.app.state.diagnoser._pool.worker  # type: ignore[attr-defined]
    assert shareable(answer, worker)
    assert not shareable(answer, None)
    older = replace(worker, environment=replace(worker.environment, triton="3.0.0"))
    assert not shareable(answer, older)
    assert not shareable(answer.model_copy(update={"verdict": "crashed"}), worker)
    assert not shareable(answer.model_copy(update={"detail": "not run"}), worker)


def test_packages_of_another_interpreter_that_change_are_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "lib/python3.12/site-packages"
    folder.mkdir(parents=True)
    python = str(tmp_path / "bin/python")
    before = interpreter(python)
    assert interpreter(python) == before
    (folder / "sglang").mkdir()
    os.utime(folder, ns=(1, 1))
    assert interpreter(python) != before
    assert interpreter("") == ()
