"""What `doctor` finds of a broker and of upstream's interpreter: real ones, and ones that are not there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cluster.names import NODES
from app.host import Finding
from app.neighbours import broker, upstream
from tests.app.redis_server import RedisServer, server
from tests.app.serving import free_port


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if server() is None:
        pytest.skip("no redis-server on this host")
    running = RedisServer(tmp_path_factory.mktemp("redis"))
    yield running
    running.client.close()
    running.stop()


def found(url: str) -> dict[str, Finding]:
    return {finding.name: finding for finding in broker(url)}


def test_a_broker_without_workers_says_how_they_join(redis: RedisServer) -> None:
    findings = found(redis.url)
    assert findings["broker"].state == "ok"
    assert findings["workers"].state == "missing"
    assert "faultbook worker" in findings["workers"].remedy


def test_workers_are_counted_by_architecture(redis: RedisServer) -> None:
    names = [f"{NODES}sm90:a:1:x", f"{NODES}sm90:b:1:y", f"{NODES}cpu:c:2:z"]
    for name in names:
        redis.client.set(name, "{}")
    assert found(redis.url)["workers"].detail == "1 of cpu, 2 of sm90"
    redis.client.delete(*names)


def test_a_broker_that_forgets_or_drops_jobs_is_said(redis: RedisServer) -> None:
    assert {"broker-disk", "broker-memory"}.isdisjoint(found(redis.url))
    redis.client.config_set("appendonly", "no")
    redis.client.config_set("maxmemory-policy", "allkeys-lru")
    findings = found(redis.url)
    redis.client.config_set("appendonly", "yes")
    redis.client.config_set("maxmemory-policy", "noeviction")
    assert "appendonly yes" in findings["broker-disk"].remedy
    assert "allkeys-lru" in findings["broker-memory"].detail
    assert not findings["broker-disk"].required


def test_a_wrong_password_is_said_and_not_shown(redis: RedisServer) -> None:
    redis.client.config_set("requirepass", "right")
    try:
        finding = found(redis.url.replace("//", "//:wrong-secret@"))["broker"]
        assert found(redis.url.replace("//", "//:right@"))["broker"].state == "ok"
    finally:
        redis.client.execute_command("AUTH", "right")
        redis.client.config_set("requirepass", "")
    assert finding.state == "broken"
    assert "password" in finding.detail
    assert "wrong-secret" not in str(finding)


def test_a_broker_that_is_not_there_is_named() -> None:
    port = free_port()
    findings = found(f"redis://:a-secret@127.0.0.1:{port}/0")
    assert list(findings) == ["broker"]
    assert findings["broker"].state == "broken"
    assert f"127.0.0.1:{port}" in findings["broker"].detail
    assert "a-secret" not in str(findings["broker"])


def test_an_interpreter_without_the_package_is_named() -> None:
    finding = upstream(sys.executable, "no_such_package.here,nor_this")
    assert finding.state == "broken"
    assert "none of no_such_package, nor_this" in finding.detail
    assert "FAULTBOOK_UPSTREAM_PYTHON" in finding.remedy


def test_an_interpreter_says_what_it_has() -> None:
    finding = upstream(sys.executable, "no_such_package,pytest.fixtures")
    assert (finding.state, finding.detail) == ("ok", f"pytest {pytest.__version__}")


def test_a_package_of_a_folder_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checked_out").mkdir()
    (tmp_path / "checked_out/__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert upstream(sys.executable, "checked_out").detail == "checked_out from a folder"


@pytest.mark.parametrize("python", ["/nowhere/python", "/etc/passwd"])
def test_what_is_no_interpreter_is_named(python: str) -> None:
    finding = upstream(python, "sglang")
    assert finding.state == "broken"
    assert python in finding.detail


def test_an_interpreter_that_fails_is_named(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexit 3\n")
    script.chmod(0o755)
    assert upstream(str(script), "sglang").state == "broken"
