"""A key's runs are charged to it, on a service with a real worker; results are for who asked, and admins."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.access.keys import digest_of, new_key
from app.main import create_app
from app.settings import Settings

KEYS = {name: new_key() for name in ("alice", "bob", "carol", "root")}
QUOTAS = {"alice": ":0.0001", "bob": "", "carol": ":0.0001", "root": ""}
ENTRIES = ",".join(
    f"{name}:{'admin' if name == 'root' else 'diagnose'}:sha256-{digest_of(KEYS[name])}{quota}"
    for name, quota in QUOTAS.items()
)
SPEC = {"operation": "per_token_group_quant", "arguments": {}}


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[name]}"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    data = tmp_path_factory.mktemp("data")
    settings = Settings(host="0.0.0.0", api_keys=ENTRIES, device="cpu", data=Path(data))
    with TestClient(create_app(settings)) as client:
        yield client


def diagnose(client: TestClient, who: str, level: str, seed: int = 0, **headers: str) -> Any:
    body = {**SPEC, "level": level, "seed": seed}
    return client.post("/api/diagnose", json=body, headers={**bearer(who), **headers})


def test_a_key_runs_until_its_seconds_of_the_day_are_spent(client: TestClient) -> None:
    assert diagnose(client, "alice", "run").json()["verdict"] == "passed"
    refused = diagnose(client, "alice", "run", seed=1)
    assert refused.status_code == 429
    assert refused.json()["detail"].startswith("The key alice has used 0.")
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    later = diagnose(client, "alice", "run", seed=1, Prefer="respond-async")
    assert later.status_code == 429
    assert diagnose(client, "alice", "checks").status_code == 200
    assert diagnose(client, "bob", "run", seed=2).json()["verdict"] == "passed"


def test_jobs_that_were_accepted_before_the_quota_was_spent_are_refused_after_it(client: TestClient) -> None:
    accepted = [diagnose(client, "carol", "run", seed=100 + n, Prefer="respond-async") for n in range(12)]
    places = [answer.headers["location"] for answer in accepted if answer.status_code != 429]
    assert len(places) > 1, "all but the first came after its end"
    ended = time.monotonic() + 60
    while any(client.get(place, headers=bearer("carol")).status_code == 202 for place in places):
        assert time.monotonic() < ended
        time.sleep(0.05)
    first, *others = [client.get(place, headers=bearer("carol")) for place in places]
    assert first.json()["verdict"] == "passed"
    assert {answer.status_code for answer in others} == {429}
    assert others[0].json()["detail"].startswith("The key carol has used 0.")


def test_a_result_is_for_whoever_asked_and_for_admins(client: TestClient) -> None:
    accepted = diagnose(client, "bob", "run", seed=3, Prefer="respond-async")
    assert accepted.status_code == 202
    place = accepted.headers["location"]
    ended = time.monotonic() + 60
    while (mine := client.get(place, headers=bearer("bob"))).status_code == 202:
        assert time.monotonic() < ended
        time.sleep(0.05)
    assert mine.json()["verdict"] == "passed"
    assert client.get(place, headers=bearer("root")).json() == mine.json()
    for method, path in (("GET", place), ("GET", place + "/events"), ("DELETE", place)):
        assert client.request(method, path, headers=bearer("alice")).status_code == 404
        assert client.request(method, path).status_code == 401


def test_what_workers_did_is_in_the_metrics(client: TestClient) -> None:
    diagnose(client, "bob", "run", seed=4)
    text = client.get("/metrics", headers=bearer("root")).text
    values = {line.split()[0]: float(line.split()[-1]) for line in text.splitlines() if line[0] != "#"}
    assert values["faultbook_gpu_seconds_total"] > 0
    assert values["faultbook_queue_depth"] == 0
    assert values["faultbook_worker_restarts_total"] == 0
