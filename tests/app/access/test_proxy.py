"""A trusted proxy says who its client is; anybody else only claims to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient
from typer.testing import CliRunner
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from app.access.keys import digest_of, new_key
from app.cli import cli
from app.http.protocol import BoundedHttp
from app.main import create_app
from app.settings import Settings


def behind(peer: str, **settings: Any) -> TestClient:
    """A service as `faultbook serve` wraps it, asked by `peer`."""
    chosen = Settings(rate_limit="1/hour", **settings)
    wrapped = ProxyHeadersMiddleware(create_app(chosen, routers=[]), trusted_hosts=chosen.forwarded_allow_ips)
    return TestClient(wrapped, client=(peer, 5))


def codes(client: TestClient, *addresses: str) -> list[int]:
    return [client.get("/docs", headers={"X-Forwarded-For": address}).status_code for address in addresses]


def test_each_client_of_a_trusted_proxy_has_a_rate_of_its_own() -> None:
    client = behind("10.1.2.3", forwarded_allow_ips="10.1.0.0/16")
    assert codes(client, "192.0.2.1", "192.0.2.2", "192.0.2.1") == [200, 200, 429]


def test_whoever_is_not_trusted_cannot_be_somebody_else_each_time() -> None:
    client = behind("203.0.113.9", forwarded_allow_ips="10.1.0.0/16")
    assert codes(client, "192.0.2.1", "192.0.2.2") == [200, 429]


def test_what_is_set_reaches_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[uvicorn.Config] = []

    def serve(config: uvicorn.Config, app: object) -> bool:
        given.append(config)
        return True

    monkeypatch.setattr("app.http.leaving.serve", serve)
    monkeypatch.setenv("FAULTBOOK_DATA", str(tmp_path))
    monkeypatch.setenv("FAULTBOOK_FORWARDED_ALLOW_IPS", "10.1.0.0/16")
    monkeypatch.setenv("FAULTBOOK_MAX_HEADER_BYTES", "1000")
    assert CliRunner().invoke(cli, ["serve", "--port", "0"]).exit_code == 0
    (config,) = given
    assert config.forwarded_allow_ips == "10.1.0.0/16"
    assert isinstance(config.http, type)
    assert issubclass(config.http, BoundedHttp)
    assert config.http.most_bytes == 1000 + 64 * 1024
    assert config.server_header is False


def test_a_file_of_keys_that_is_wrong_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.http.leaving.serve", lambda *_: pytest.fail("it started"))
    monkeypatch.setenv("FAULTBOOK_DATA", str(tmp_path))
    file = tmp_path / "keys"
    file.write_text(f"a:read:sha256-{digest_of(new_key())}\nhunter2\n", "utf-8")
    monkeypatch.setenv("FAULTBOOK_API_KEYS_FILE", str(file))
    result = CliRunner().invoke(cli, ["serve", "--port", "0"])
    assert result.exit_code == 2
    assert "FAULTBOOK_API_KEYS_FILE: entry 2" in result.stderr
    assert "hunter2" not in result.stderr
