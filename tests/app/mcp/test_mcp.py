"""The protocol over HTTP and over standard input: the six tools, with the service's keys and limits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.access.keys import digest_of, new_key
from app.main import create_app
from app.settings import Settings

ERROR = "ValueError: int32-packed scale buffers require scale_ue8m0=True"
TOOLS = ["search_error", "get_error", "list_repos", "describe_operation", "diagnose", "suggest_fix"]
HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
KEYS = {scope: new_key() for scope in ("read", "diagnose")}
ENTRIES = ",".join(f"{scope}-key:{scope}:sha256-{digest_of(key)}" for scope, key in KEYS.items())


def service(folder: Path, **settings: Any) -> TestClient:
    app = create_app(Settings(workers=0, data=folder, **settings))
    return TestClient(app, base_url="http://127.0.0.1:8000")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with service(tmp_path_factory.mktemp("data")) as client:
        yield client


def rpc(client: TestClient, method: str, params: dict[str, Any], **headers: str) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = client.post("/mcp", json=body, headers={**HEADERS, **headers}, follow_redirects=False)
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


def call(client: TestClient, tool: str, **arguments: Any) -> Any:
    result = rpc(client, "tools/call", {"name": tool, "arguments": arguments})
    assert not result.get("isError"), result
    return result.get("structuredContent") or json.loads(result["content"][0]["text"])


def test_a_client_is_welcomed_at_exactly_that_path(client: TestClient) -> None:
    params = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    result = rpc(client, "initialize", params)
    assert result["serverInfo"]["name"] == "faultbook"
    assert "tools" in result["capabilities"]
    assert client.post("/mcp/", json={}, headers=HEADERS, follow_redirects=False).status_code == 404


def test_the_tools_say_what_they_take(client: TestClient) -> None:
    tools = rpc(client, "tools/list", {})["tools"]
    assert [tool["name"] for tool in tools] == TOOLS
    for tool in tools:
        assert tool["description"]
        assert tool["inputSchema"]["type"] == "object"
        assert "ctx" not in tool["inputSchema"].get("properties", {})


def test_an_error_leads_to_its_record_a_diagnosis_and_a_fix(client: TestClient) -> None:
    found = call(client, "search_error", text=f"Traceback …\n{ERROR}\n")
    match = found["matches"][0]
    assert match["rendered"].endswith("require scale_ue8m0=True")
    record = call(client, "get_error", identifier=match["id"])["record"]
    assert record["id"] == match["id"]
    assert record["x"]["fix"]
    described = call(client, "describe_operation", name=match["operation"])
    assert described["name"] == match["operation"]
    spec = match["spec"]
    answer = call(client, "diagnose", operation=spec["operation"], arguments=spec["arguments"])
    assert f"ValueError: {answer['raised']['message']}" == ERROR
    fixed = call(client, "suggest_fix", text=ERROR)
    assert fixed["recordId"] == match["id"]
    edits = fixed["fixes"][0]["edits"]
    assert [(edit["argument"], edit["to"]) for edit in edits] == [("scale_ue8m0", True)]
    assert call(client, "list_repos")["repos"]
    assert call(client, "describe_operation")["operations"]


@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        ("get_error", {"identifier": "no-such-record"}, "No record"),
        ("diagnose", {"operation": "nothing", "arguments": {}}, "There is no operation"),
        ("diagnose", {"operation": "per_token_group_quant", "arguments": {"input": 3}}, "/arguments/input"),
        ("suggest_fix", {}, "Give a text"),
        ("suggest_fix", {"text": "all is well"}, "No error in this text"),
        ("search_error", {"text": ERROR, "limit": 0}, "limit is 1 to 25"),
    ],
)
def test_what_cannot_be_done_is_told_to_the_model(
    client: TestClient, tool: str, arguments: dict[str, Any], told: str
) -> None:
    result = rpc(client, "tools/call", {"name": tool, "arguments": arguments})
    assert result["isError"]
    assert told in result["content"][0]["text"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "PUT"])
def test_there_is_no_stream_to_hold_open(client: TestClient, method: str) -> None:
    answer = client.request(method, "/mcp", headers={"Accept": "text/event-stream"})
    assert answer.status_code == 405
    assert answer.headers["allow"] == "OPTIONS, POST"
    assert answer.headers["content-type"] == "application/problem+json"
    text = client.get("/metrics").text
    assert 'route="/mcp",status="405"' in text


def test_a_page_elsewhere_does_not_get_in_by_its_own_name(client: TestClient) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    for headers in ({"Host": "rebound.example"}, {"Origin": "https://a.example"}):
        assert client.post("/mcp", json=body, headers={**HEADERS, **headers}).status_code in (403, 421)


def test_keys_and_rates_hold_here_too(tmp_path: Path) -> None:
    arguments = {"operation": "per_token_group_quant", "arguments": {}}
    params = {"name": "diagnose", "arguments": arguments}
    with service(tmp_path, api_keys=ENTRIES, rate_limit="3/hour") as client:
        assert client.post("/mcp", json={}, headers=HEADERS).status_code == 401
        reader = {"Authorization": f"Bearer {KEYS['read']}"}
        refused = rpc(client, "tools/call", params, **reader)
        assert refused["isError"]
        assert "scope diagnose" in refused["content"][0]["text"]
        assert rpc(client, "tools/list", {}, **reader)["tools"]
        passed = rpc(client, "tools/call", params, Authorization=f"Bearer {KEYS['diagnose']}")
        assert not passed.get("isError")
        rpc(client, "tools/list", {}, **reader)
        assert client.post("/mcp", json={}, headers={**HEADERS, **reader}).status_code == 429


def test_over_standard_input(tmp_path: Path) -> None:
    params = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    asked = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
        {
            "jsonrpc": "2.0",
            "id": 3,
            "method": "tools/call",
            "params": {"name": "suggest_fix", "arguments": {"text": ERROR}},
        },
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "app.cli", "mcp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"FAULTBOOK_DATA": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    answers: dict[int, Any] = {}
    for message in asked:
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()
        if "id" in message:
            answer = json.loads(process.stdout.readline())
            answers[answer["id"]] = answer["result"]
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert [tool["name"] for tool in answers[2]["tools"]] == TOOLS
    assert not answers[3].get("isError")
