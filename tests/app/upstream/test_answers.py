"""A diagnosis at level run has upstream's own word, first on the page; at level checks nobody is asked."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.access.caller import Caller
from app.access.keys import digest_of, new_key
from app.access.quotas import DAY
from app.main import create_app
from app.settings import Settings
from kernels.call import arguments_json
from kernels.registry import operations

OPERATION = operations()["safetensors_file"]


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(create_app(Settings(workers=0, upstream_python=sys.executable))) as made:
        yield made


def body(identifier: str, level: str = "run") -> dict[str, Any]:
    check = OPERATION.check(identifier)
    assert check is not None
    example = check.example()
    assert example is not None
    return {"operation": OPERATION.name, "arguments": arguments_json(example), "level": level}


def test_upstream_s_word_stands_beside_ours(client: TestClient) -> None:
    answer = client.post("/api/diagnose", json=body("header_too_large")).json()
    said = answer["upstream"]
    assert (said["outcome"], said["agrees"], said["differences"]) == ("raised", True, [])
    assert said["function"] == "safetensors.safe_open"
    assert said["raised"]["message"] == answer["raised"]["message"]
    assert said["raised"]["atCheck"] == "header_too_large"
    assert said["raised"]["recordId"] == answer["raised"]["recordId"]
    assert said["host"]["packages"]["safetensors"]
    assert said["host"]["device"] is None


def test_at_level_checks_nobody_is_asked(client: TestClient) -> None:
    assert client.post("/api/diagnose", json=body("header_too_large", "checks")).json()["upstream"] is None


def test_a_package_that_is_missing_there_is_stated(client: TestClient) -> None:
    quant = operations()["per_token_group_quant"]
    asked = {"operation": quant.name, "arguments": arguments_json(quant.valid), "level": "run"}
    said = client.post("/api/diagnose", json=asked).json()["upstream"]
    assert (said["outcome"], said["raised"], said["agrees"]) == ("unavailable", None, None)
    assert "No module named 'sglang'" in said["detail"]


def test_the_page_shows_it_before_our_own_word(client: TestClient) -> None:
    form = {"body": json.dumps(body("header_too_large")), "level": "run"}
    page = client.post(f"/operations/{OPERATION.name}", data=form)
    assert page.status_code == 200, page.text[:500]
    first, ours = page.text.index("Upstream itself says"), page.text.index("What its user sees")
    assert first < ours
    assert "The checks predict exactly this." in page.text


def test_without_an_interpreter_there_is_no_word() -> None:
    with TestClient(create_app(Settings(workers=0))) as bare:
        assert bare.post("/api/diagnose", json=body("header_too_large")).json()["upstream"] is None


def test_its_seconds_are_the_asking_key_s_to_pay_for(tmp_path: Path) -> None:
    keys = {name: new_key() for name in ("alice", "root")}
    digests = {name: f"sha256-{digest_of(key)}" for name, key in keys.items()}
    entries = f"alice:diagnose:{digests['alice']}:0.0001,root:admin:{digests['root']}"
    settings = Settings(workers=0, upstream_python=sys.executable, api_keys=entries, data=tmp_path)
    with TestClient(create_app(settings)) as made:

        def ask(name: str) -> Any:
            headers = {"Authorization": f"Bearer {keys[name]}", "Cache-Control": "no-cache"}
            return made.post("/api/diagnose", json=body("header_too_large"), headers=headers)

        assert ask("alice").json()["upstream"]["outcome"] == "raised"
        refused = ask("alice")
        assert refused.status_code == 429
        assert "has used 0.0 of its 0.0001 seconds" in refused.json()["detail"]
        assert ask("root").json()["upstream"]["outcome"] == "raised"
        ledger = made.app.state.quotas._ledger  # type: ignore[attr-defined]
        assert 0 < ledger.spent("root", int(time.time() // DAY)) < 60


def test_a_key_whose_run_was_its_last_is_answered_without_it(tmp_path: Path) -> None:
    """The run itself was admitted; what it found is not withheld for want of upstream's word."""
    with TestClient(create_app(Settings(workers=0, upstream_python=sys.executable, data=tmp_path))) as made:
        quotas = made.app.state.quotas  # type: ignore[attr-defined]
        quotas._named = lambda name: Caller(name, gpu_seconds=0.0)
        answer = made.post("/api/diagnose", json=body("header_too_large")).json()
    assert answer["verdict"] == "rejected"
    assert answer["upstream"]["outcome"] == "not-run"
    assert "seconds of runs" in answer["upstream"]["detail"]
