from __future__ import annotations

import re

import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from app.http.metrics import Metrics
from app.main import create_app
from app.operators import Readiness, probes
from app.settings import Settings


@pytest.fixture
def app() -> FastAPI:
    return create_app(Settings(), routers=[])


@pytest.fixture
def client(app: FastAPI) -> TestClient:
    return TestClient(app)


def samples(client: TestClient) -> dict[tuple[str, ...], float]:
    """Values by name and labels, which stand in the order of their own names."""
    text = client.get("/metrics").text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_alive_is_alive_even_when_nothing_is_ready(app: FastAPI, client: TestClient) -> None:
    probes(app)["catalog"] = lambda: Readiness(False)
    answer = client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "alive"})


def test_ready_when_every_required_part_is(app: FastAPI, client: TestClient) -> None:
    state = {"catalog": False}
    probes(app)["catalog"] = lambda: Readiness(state["catalog"], detail="4 records")
    probes(app)["worker"] = lambda: Readiness(False, required=False, detail="starting")
    waiting = client.get("/readyz", headers={"Accept": "text/html"})
    assert waiting.status_code == 503
    assert waiting.headers["content-type"] == "application/problem+json"
    assert waiting.headers["retry-after"] == "1"
    assert waiting.json()["detail"] == "Not ready: catalog."
    assert waiting.json()["parts"]["worker"] == {"ready": False, "required": False, "detail": "starting"}
    state["catalog"] = True
    ready = client.get("/readyz")
    assert ready.status_code == 200
    assert ready.headers["cache-control"] == "no-store"
    assert ready.json()["status"] == "ready"
    assert ready.json()["parts"]["catalog"] == {"ready": True, "required": True, "detail": "4 records"}


def test_requests_are_counted_by_route_template_never_by_path(client: TestClient) -> None:
    for slug in ("conflict", "not-found", "no-such-slug"):
        client.get(f"/about/problems/{slug}")
    client.get("/api/secret-7")
    client.post("/healthz")
    client.request("BREW", "/healthz")
    found = samples(client)
    page = "/about/problems/{slug}"
    assert found["faultbook_requests_total", "GET", page, "200"] == 2
    assert found["faultbook_requests_total", "GET", page, "404"] == 1
    assert found["faultbook_request_seconds_count", "GET", page] == 3
    assert found["faultbook_requests_total", "GET", "unmatched", "404"] == 1
    assert found["faultbook_requests_total", "POST", "/healthz", "405"] == 1
    assert found["faultbook_requests_total", "other", "/healthz", "405"] == 1
    assert not [key for key in found if any("secret-7" in part for part in key)]


def test_what_other_modules_count_is_shown(app: FastAPI, client: TestClient) -> None:
    metrics: Metrics = app.state.metrics
    metrics.lookups.labels("match", "pattern").inc()
    metrics.diagnoses.labels("per_token_group_quant", "checks", "rejected").inc(2)
    found = samples(client)
    assert found["faultbook_lookups_total", "match", "pattern"] == 1
    assert found["faultbook_diagnoses_total", "checks", "per_token_group_quant", "rejected"] == 2


def test_two_services_in_one_process_count_apart(client: TestClient) -> None:
    client.get("/healthz")
    other = TestClient(create_app(Settings(), routers=[]))
    assert ("faultbook_requests_total", "GET", "/healthz", "200") not in samples(other)


def test_metrics_speak_openmetrics_when_asked(client: TestClient) -> None:
    answer = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_crawlers_are_told_what_is_here(client: TestClient) -> None:
    assert client.get("/robots.txt").text.splitlines() == ["User-agent: *", "Disallow: /api/"]
    text = client.get("/llms.txt").text
    assert text.startswith("# Faultbook\n")
    listed = re.findall(r"^- GET (\S+): (.+)$", text, re.MULTILINE)
    documented = client.get("/openapi.json").json()["paths"]
    assert [path for path, _ in listed] == [path for path, methods in documented.items() if "get" in methods]
