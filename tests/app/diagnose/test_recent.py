"""Answers that follow from a request alone are given again, under ids of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.diagnose import recent
from app.main import create_app
from app.settings import Settings

SPEC = {"operation": "per_token_group_quant", "arguments": {"group_size": 100}}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(workers=0, data=tmp_path_factory.mktemp("data")))) as client:
        yield client


def ask(client: TestClient, body: Any, **headers: str) -> tuple[dict[str, Any], str]:
    answer = client.post("/api/diagnose", content=json.dumps(body), headers={**JSON, **headers})
    assert answer.status_code == 200
    return answer.json(), answer.headers.get("cache-status", "")


JSON = {"Content-Type": "application/json"}


def test_the_same_request_gets_the_same_answer_under_another_id(client: TestClient) -> None:
    body = {**SPEC, "level": "checks"}
    first, fresh = ask(client, body)
    second, stored = ask(client, body)
    assert (fresh, stored) == ("", "faultbook; hit")
    assert first.pop("id") != second.pop("id")
    assert first == second
    again, told = ask(client, body, **{"Cache-Control": "no-cache"})
    assert told == ""
    again.pop("id")
    assert again == first


def test_what_was_given_again_is_counted(client: TestClient) -> None:
    body = {**SPEC, "level": "checks", "seed": 5}
    ask(client, body)
    ask(client, body)
    name = 'faultbook_diagnoses_total{level="checks",operation="per_token_group_quant",verdict="rejected"}'
    text = client.get("/metrics").text
    (count,) = (float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))
    assert count >= 2


def test_another_request_is_another_question(client: TestClient) -> None:
    ask(client, {**SPEC, "level": "checks", "seed": 6})
    assert ask(client, {**SPEC, "level": "checks", "seed": 7})[1] == ""


def test_answers_of_level_run_are_not_among_them(client: TestClient) -> None:
    body = {**SPEC, "level": "run", "seed": 8}  # unsupported here: no worker
    assert ask(client, body)[1] == ""
    assert ask(client, body)[1] == ""


def test_what_is_kept_is_bounded(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "MOST_BYTES", 40_000)
    kept = client.app.state.recent  # type: ignore[attr-defined]
    for seed in range(100, 120):
        ask(client, {**SPEC, "level": "checks", "seed": seed})
    assert kept._bytes <= 40_000
    assert kept._bytes == sum(size for size, _ in kept._given.values())
    assert ask(client, {**SPEC, "level": "checks", "seed": 100})[1] == ""
