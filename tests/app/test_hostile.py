"""Whatever is sent, the service answers, and what is no success says so as a problem document."""

from __future__ import annotations

import json
import random
import socket
import string
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

from app.http.protocol import bounded
from app.main import create_app
from app.settings import Settings
from kernels.call import arguments_json
from kernels.registry import operations

PROBLEM = {"type", "title", "status", "detail", "instance"}
CHECKS = (
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a service without workers listens."""
    app = create_app(Settings(workers=0, data=tmp_path_factory.mktemp("data")))
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_config=None, access_log=False, http=bounded(32 * 1024)
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def test_what_the_document_says_is_so(address: str) -> None:
    """A dozen requests to each operation that its schema allows, and that it does not."""
    document = schemathesis.openapi.from_url(f"{address}/openapi.json")
    tried = []
    for found in document.get_all_operations():
        operation = found.ok()
        if operation.path.endswith("/events"):
            continue  # a stream is open until its job ends; there are no jobs here

        @given(case=operation.as_strategy())
        @settings(
            max_examples=12,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def asked(case: Any) -> None:
            case.call_and_validate(base_url=address, checks=CHECKS)

        asked()
        tried.append(operation.label)
    assert len(tried) >= 20, tried


# --- a thousand texts and specs


HOSTILE = [
    "\x00",
    "\ud800",
    "\N{ZERO WIDTH JOINER}" * 50,
    "‮",
    "' OR 1=1 --",
    "<script>alert(1)</script>",
    "../../../../etc/passwd",
    "${jndi:ldap://x/a}",
    "{{7*7}}",
    "%s%n%x",
    "A" * 10_000,
    "(" * 3000,
    "[" * 3000,
    "(a+)+$" * 20,
    "Traceback (most recent call last):\n" * 200,
    "\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    "1e999",
    "NaN",
    "-0",
    str(2**63),
    str(-(2**200)),
]
NUMBERS = [0, -1, 1, 2**31, 2**63, -(2**63), 2**200, 1e308, -1e-308, 0.5, True, None]
STRINGS = ["", "float99", "int32[" + "9" * 30 + "]", "int32[1,2]:stride(0,0)", "bfloat16[-1]", "cuda:999"]


def hostile_text(rng: random.Random) -> str:
    """A known error message, bent, among other things."""
    parts = [rng.choice(HOSTILE) for _ in range(rng.randint(0, 3))]
    parts.append("".join(rng.choices(string.printable, k=rng.randint(0, 80))))
    known = "RuntimeError: kv_scales must be fp32, got torch.float16"
    at = rng.randrange(len(known))
    parts.insert(rng.randrange(len(parts) + 1), known[:at] + rng.choice(HOSTILE) + known[at:])
    return rng.choice(["", "\n", "\t"]).join(parts)


def bent(rng: random.Random, value: Any, depth: int = 0) -> Any:
    """A JSON value with something in it replaced, removed, repeated or wrapped."""
    if rng.random() < 0.25 or depth > 4:
        return rng.choice(
            [*NUMBERS, *STRINGS, rng.choice(HOSTILE), [], {}, [value] * rng.randint(1, 5), {"shape": value}]
        )
    if isinstance(value, dict) and value:
        name = rng.choice(list(value))
        changed = {**value, name: bent(rng, value[name], depth + 1)}
        if rng.random() < 0.2:
            del changed[name]
        if rng.random() < 0.2:
            changed[rng.choice(["x", "", "input", "values", rng.choice(HOSTILE)[:40]])] = value[name]
        return changed
    if isinstance(value, list) and value:
        at = rng.randrange(len(value))
        return [*value[:at], bent(rng, value[at], depth + 1), *value[at + rng.randint(0, 1) :]]
    return rng.choice([*NUMBERS, *STRINGS])


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    app = create_app(Settings(workers=0, data=Path(tmp_path_factory.mktemp("data"))))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def answered(response: Any, what: object) -> None:
    """A success, or a problem with all that belongs to one."""
    assert response.status_code < 500, (response.status_code, what, response.text)
    if response.status_code >= 400:
        assert response.headers["content-type"] == "application/problem+json", what
        assert response.json().keys() >= PROBLEM, what
        assert response.json()["status"] == response.status_code


@pytest.mark.parametrize("seed", range(10))
def test_hostile_texts_are_looked_up(client: TestClient, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        text = hostile_text(rng)
        plain = text.encode("utf-8", "surrogatepass")
        body = json.dumps(
            {"text": text, "repo": rng.choice([None, text[:50]]), "limit": rng.choice([1, 5, 99])}
        )
        for response in (
            client.post("/api/match", content=plain, headers={"Content-Type": "text/plain"}),
            client.post("/api/match", content=body, headers={"Content-Type": "application/json"}),
            client.get("/api/search", params={"q": plain[:2000]}),
            client.get("/api/errors", params={"regex": plain[:300], "limit": 1}),
            client.get("/api/errors", params={"q": plain[:300], "cursor": plain[:40]}),
        ):
            answered(response, text)


@pytest.mark.parametrize("seed", range(10))
def test_hostile_specs_are_diagnosed_or_refused(client: TestClient, seed: int) -> None:
    rng = random.Random(1000 + seed)
    found = list(operations().values())
    for _ in range(50):
        operation = rng.choice(found)
        arguments: Any = arguments_json(operation.valid)
        for _ in range(rng.randint(1, 3)):
            arguments = bent(rng, arguments)
        body: Any = {"operation": operation.name, "arguments": arguments, "level": "checks"}
        if rng.random() < 0.2:
            body = bent(rng, body)
        written = json.dumps(body).encode("utf-8", "surrogatepass")
        headers = {"Content-Type": "application/json"}
        answered(client.post("/api/diagnose", content=written, headers=headers), written[:3000])


POST = b"POST /api/match HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"
SECOND = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
SMUGGLED = [
    POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECOND,
    POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + SECOND,
    POST + b"Content-Length: 0\r\nContent-Length: 40\r\n\r\n" + SECOND,
    POST + b"Content-Length: +0\r\n\r\n" + SECOND,
    POST + b"Content-Length: -1\r\n\r\n" + SECOND,
    POST + b"Content-Length: 0x0\r\n\r\n" + SECOND,
    POST + b"Content-Length: 9999999999999999999999\r\n\r\n" + SECOND,
    POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SECOND,
    POST + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n" + SECOND,
    POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + SECOND,
    POST + b"X: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECOND,
    POST + b"X-A: \x00\r\n\r\n" + SECOND,
    POST + b"X-A: \x1b[31m\r\n\r\n" + SECOND,
    POST.replace(b"\r\n", b"\n") + b"Content-Length: 0\n\n" + SECOND,
    b"get /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + SECOND,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SECOND,
]
"""Where a proxy and a service could disagree where a request ends."""


def test_what_is_no_http_gets_a_problem_too(address: str) -> None:
    host, port = address.removeprefix("http://").split(":")
    for sent, status in (
        (b"\x00\x01\x02\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 200_000, b"431"),
        (b"GET /" + b"a" * 200_000, b"431"),
        (b"GET /healthz HTTP/1.1\r\n" + b"X-A: b\r\n" * 30_000, b"431"),
        *((form, b"400") for form in SMUGGLED),
    ):
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(sent)
            received = b""
            while data := connection.recv(65_536):
                received += data
        head, _, body = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 " + status)
        for field in (b"content-type: application/problem+json", b"nosniff", b"content-security-policy: "):
            assert field in head
        assert received.count(b"HTTP/1.1 ") == 1, "a second request was read out of the first"
        assert json.loads(body)["status"] == int(status)
