"""The scripts of deployments, run for real with a stand-in for the `faultbook` command."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from app.cluster.names import NODES
from tests.app.redis_server import RedisServer, server
from tests.deployed import DEPLOY, Host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


# --- the entry point of images


START = DEPLOY / "image/start"


def test_an_image_brings_its_snapshots_once(host: Host) -> None:
    host.brings("a")
    assert host.run(START, "serve").returncode == 0
    assert host.commands() == ["bundle import", "serve"]
    host.run(START, "serve")
    assert host.commands() == ["serve"]


def test_another_image_brings_its_own(host: Host) -> None:
    host.brings("a")
    host.run(START, "serve")
    host.brings("b")
    host.commands()
    host.run(START, "serve")
    assert host.commands() == ["bundle import", "serve"]


def test_snapshots_that_cannot_be_taken_in_keep_nobody_from_being_served(host: Host) -> None:
    host.brings("a")
    done = host.run(START, "serve", BUNDLE_STATUS="2")
    assert done.returncode == 0
    assert "could not be taken" in done.stderr
    assert host.commands() == ["bundle import", "serve"]
    host.run(START, "serve")
    assert host.commands() == ["bundle import", "serve"], "the next start tries again"


def test_only_a_service_takes_snapshots_in(host: Host) -> None:
    host.brings("a")
    host.run(START, "worker")
    host.run(START, "doctor", "--json")
    assert host.commands() == ["worker", "doctor --json"]


@pytest.mark.parametrize(
    ("published", "stated", "told"),
    [
        ("127.0.0.1:8000", None, "true"),
        ("[::1]:9000", "", "true"),
        ("127.0.0.1:8000", "false", "false"),
        ("0.0.0.0:8000", None, None),
        ("8000", None, None),
        ("10.0.0.5:8000", "true", "true"),
        (None, None, None),
    ],
)
def test_runs_are_open_to_all_where_only_loopback_reaches_them(
    host: Host, published: str | None, stated: str | None, told: str | None
) -> None:
    given = {"PUBLISHED": published, "FAULTBOOK_OPEN": stated}
    variables = {name: value for name, value in given.items() if value is not None}
    assert host.run(START, "serve", **variables).returncode == 0
    [(_, seen)] = host.calls()
    assert seen.get("FAULTBOOK_OPEN") == told


def test_compose_leaves_settings_to_their_file() -> None:
    """What compose sets under `environment` wins over faultbook.env, where operators set it."""
    compose = (DEPLOY.parent / "docker-compose.yml").read_text()
    assert "FAULTBOOK_OPEN:" not in compose
    assert "PUBLISHED: ${FAULTBOOK_PUBLISH:-127.0.0.1:8000}" in compose


def test_an_image_without_snapshots_serves(host: Host) -> None:
    host.run(START, "serve")
    assert host.commands() == ["serve"]


# --- the health check


class Answers(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def http() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def healthy(port: int) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FAULTBOOK_PORT": str(port), "http_proxy": "http://127.0.0.1:9"}
    command = [sys.executable, DEPLOY / "image/healthy"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30)


def test_healthy_is_what_answers(http: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert healthy(http.server_port).returncode == 0
    monkeypatch.setattr(Answers, "status", 500)
    done = healthy(http.server_port)
    assert done.returncode == 1
    assert "500" in done.stderr


def test_what_does_not_answer_is_not_healthy() -> None:
    done = healthy(1)
    assert done.returncode == 1
    assert "127.0.0.1:1/healthz" in done.stderr
    assert "Traceback" not in done.stderr


def worker_healthy(url: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FAULTBOOK_BROKER_URL": url}
    command = [sys.executable, DEPLOY / "image/healthy", "worker"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.skipif(server() is None, reason="no redis-server on this host")
def test_a_worker_is_healthy_while_it_is_known_to_the_broker(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path)
    try:
        redis.client.set(f"{NODES}sm90:another-host:1:x", "{}")
        done = worker_healthy(redis.url)
        assert done.returncode == 1
        assert socket.gethostname() in done.stderr
        redis.client.set(f"{NODES}sm90:{socket.gethostname()}:1:x", "{}")
        assert worker_healthy(redis.url).returncode == 0
        redis.client.config_set("requirepass", "right")
        assert worker_healthy(redis.url.replace("//", "//:wrong@")).returncode == 1
    finally:
        redis.client.close()
        redis.stop()
    done = worker_healthy(redis.url)
    assert done.returncode == 0, "a broker that is away is no fault of the worker"
    assert "cannot be reached" in done.stderr


# --- backups


BACKUP = DEPLOY / "image/backup"


def with_results(host: Host) -> sqlite3.Connection:
    """A data folder in use: its database is open, and its last row is only in the write-ahead log."""
    base = sqlite3.connect(host.data / "jobs.sqlite")
    base.execute("PRAGMA journal_mode=WAL")
    base.execute("CREATE TABLE jobs (id TEXT)")
    base.execute("INSERT INTO jobs VALUES ('written')")
    base.commit()
    (host.data / "snapshots/manifest.json").write_text("{}")
    (host.data / "snapshots/a-1.sqlite").write_bytes(b"a snapshot")
    (host.data / "snapshots/.lock").touch()
    (host.data / "triton").mkdir()
    (host.data / "triton/kernel.so").write_bytes(b"compiled")
    return base


@pytest.mark.parametrize("to_stdout", [False, True])
def test_a_backup_is_of_a_running_service(host: Host, to_stdout: bool) -> None:
    base = with_results(host)
    file = host.folder / "backup.tar"
    if to_stdout:
        with file.open("wb") as out:
            subprocess.run([BACKUP, "-"], env=host.environment, stdout=out, check=True, timeout=30)
    else:
        assert host.run(BACKUP, file).returncode == 0
    base.close()
    restored = host.folder / "restored"
    restored.mkdir()
    subprocess.run(["tar", "-xf", file, "-C", restored], check=True, timeout=30)
    names = sorted(str(path.relative_to(restored)) for path in restored.rglob("*") if path.is_file())
    assert names == ["jobs.sqlite", "snapshots/a-1.sqlite", "snapshots/manifest.json"]
    copy = sqlite3.connect(restored / "jobs.sqlite")
    assert copy.execute("SELECT id FROM jobs").fetchall() == [("written",)]
    copy.close()
    assert not list(host.data.glob(".backup*"))


def test_a_backup_is_nobody_elses(host: Host) -> None:
    target = host.folder / "backup.tar"
    ended = host.run(DEPLOY / "image/backup", target)
    assert ended.returncode == 0, ended.stderr
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_backup_that_fails_leaves_the_last_one(host: Host) -> None:
    file = host.folder / "backup.tar"
    file.write_text("the last one")
    (host.data / "jobs.sqlite").write_bytes(b"no database" * 100)
    done = host.run(BACKUP, file)
    assert done.returncode == 1
    assert done.stderr.startswith("no backup was made")
    assert file.read_text() == "the last one"
    assert host.run(BACKUP, file, FAULTBOOK_DATA="/nowhere").returncode != 0
