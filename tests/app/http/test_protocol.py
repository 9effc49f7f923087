"""Clients that take their time, or speak something else, do not keep what others need."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from fastapi import APIRouter, Request, Response

from app.http import protocol
from app.http.bodies import read_text
from app.main import create_app
from app.settings import Settings

HEAD = b"Host: x\r\nContent-Type: text/plain\r\n"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of a service that waits for a second at most, as `faultbook serve` sets it up."""
    router = APIRouter()

    async def echo(request: Request) -> Response:
        return Response(await read_text(request), media_type="text/plain")

    async def large() -> Response:
        return Response(b"x" * (64 << 20), media_type="text/plain")

    router.add_api_route("/api/match", echo, methods=["POST"], response_class=Response)
    router.add_api_route("/large", large, response_class=Response)
    app = create_app(Settings(max_body_bytes=100), routers=[router])
    with pytest.MonkeyPatch.context() as patch:
        for name, seconds in (("HEAD_SECONDS", 1.0), ("PAUSE", 1.0), ("BODY_SECONDS", 3.0), ("LOOK", 0.1)):
            patch.setattr(protocol, name, seconds)
        config = uvicorn.Config(
            app,
            host="127.0.0.1",
            port=0,
            log_config=None,
            access_log=False,
            http=protocol.bounded(32 * 1024),
            ws="none",
            timeout_keep_alive=60,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield int(server.servers[0].sockets[0].getsockname()[1])
        server.should_exit = True
        thread.join()


def told(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    received = b""
    while data := connection.recv(65_536):
        received += data
    return received


def late(port: int, *parts: bytes, every: float) -> tuple[bytes, float]:
    """What a client is told that sends these parts one after another, and after how many seconds."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        for part in parts:
            try:
                connection.sendall(part)
            except OSError:
                break
            time.sleep(every)
        return told(connection), time.monotonic() - began


def test_a_connection_that_asks_nothing_is_closed_without_a_word(port: int) -> None:
    answer, seconds = late(port, every=0)
    assert answer == b""
    assert 0.9 < seconds < 10


@pytest.mark.parametrize(
    ("parts", "every"),
    [
        ([b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: "], 0.0),
        ([b"GET /healthz HTTP/1.1\r\n", *[b"X-A: b\r\n"] * 8], 0.2),
        ([b"POST /api/match HTTP/1.1\r\n" + HEAD + b"Content-Length: 90\r\n\r\nabc"], 0.0),
        ([b"POST /api/match HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n"], 0.0),
        ([b"POST /api/match HTTP/1.1\r\n" + HEAD + b"Content-Length: 90\r\n\r\n", *[b"a"] * 30], 0.2),
    ],
    ids=["head", "head, drop by drop", "body", "chunks", "body, drop by drop"],
)
def test_whoever_is_late_is_told_so(port: int, parts: list[bytes], every: float) -> None:
    answer, seconds = late(port, *parts, every=every)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    for field in (b"application/problem+json", b"content-security-policy: ", b"nosniff"):
        assert field in head
    assert b'"status":408' in body
    assert seconds < 12


def test_a_body_that_was_refused_before_it_came_is_not_waited_for(port: int) -> None:
    began = b"POST /api/match HTTP/1.1\r\n" + HEAD + b"Content-Length: 1000000\r\n\r\nabc"
    answer, seconds = late(port, began, every=0)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert seconds < 10


def test_an_answer_that_nobody_reads_is_given_up(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(2.5)
        assert len(told(connection)) < 64 << 20  # what its own buffers held


def test_a_client_that_is_only_slow_is_served(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        for _ in range(2):  # the second request finds the clock of the first over
            for part in (b"POST /api/match HT", b"TP/1.1\r\n" + HEAD + b"Content-Length: 6\r\n\r\n"):
                connection.sendall(part)
                time.sleep(0.3)
            for part in (b"ab", b"cd", b"ef"):
                connection.sendall(part)
                time.sleep(0.5)
            received = b""
            while not received.endswith(b"abcdef"):
                received += connection.recv(65_536)
            assert received.startswith(b"HTTP/1.1 200 ")
            time.sleep(1.2)


def test_an_upgrade_is_no_way_around(port: int) -> None:
    """A WebSocket is no request to the layers that ask for keys and count: it is not spoken."""
    asked = (
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(asked)
        answer = connection.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"x-request-id: " in answer
