"""Redis and who joins it, as compose starts them: Redis itself is run with the very arguments."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from redis import Redis, RedisError

from tests.app.redis_server import server
from tests.app.serving import free_port
from tests.composing import FILE, PROFILES, REACHES, REMOTE, Compose, container_of


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Compose:
    return Compose(tmp_path_factory.mktemp("compose"))


class Broker:
    """Redis as compose starts it, here: on a port and in a folder of its own."""

    def __init__(self, command: Sequence[str], folder: Path, **variables: str) -> None:
        program = server()
        assert program is not None
        self.port = free_port()
        moved = [
            part.replace("--dir /data", f"--dir {folder} --port {self.port}")
            if "redis-server" in part
            else part.replace("/data", str(folder))
            for part in command
        ]
        if moved[0] == "redis-server":
            moved = [program, *moved[1:], f"--port {self.port}"]
        environment = {"PATH": f"{Path(program).parent}:{os.environ['PATH']}", **variables}
        self.process = subprocess.Popen(moved, env=environment, stdout=subprocess.DEVNULL)

    def client(self, **options: Any) -> Any:
        client: Any = Redis(port=self.port, decode_responses=True, **options)
        for _ in range(400):
            try:
                client.ping()
            except (ConnectionError, RedisError) as error:
                if "Connection refused" in str(error):
                    time.sleep(0.05)
                    continue
                raise
            break
        return client

    def end(self) -> None:
        self.process.kill()
        self.process.wait(20)


KEEPS = {"appendonly": "yes", "appendfsync": "everysec", "save": "", "maxmemory-policy": "noeviction"}
no_redis = pytest.mark.skipif(server() is None, reason="no redis-server on this host")


@no_redis
def test_the_broker_keeps_jobs_on_disk_and_answers_other_containers(compose: Compose, tmp_path: Path) -> None:
    service = compose.services("cluster")["redis"]
    assert service["volumes"] == ["broker:/data"]
    assert "ports" not in service, "nobody but this file's services reaches it"
    broker = Broker(service["command"], tmp_path)
    try:
        client = broker.client()
        for name, value in {**KEEPS, "protected-mode": "no", "dir": str(tmp_path)}.items():
            assert client.config_get(name)[name] == value
        client.close()
    finally:
        broker.end()


@no_redis
def test_a_broker_for_other_hosts_has_a_password(compose: Compose, tmp_path: Path) -> None:
    service = compose.services("cluster", FILE, REMOTE, **REACHES)["redis"]
    assert service["ports"] == ["10.0.0.5:6379:6379"]
    assert service["volumes"] == ["broker:/data"]
    assert service["user"] == "redis"
    assert not any(REACHES["REDIS_PASSWORD"] in part for part in service["command"]), "no argument names it"
    broker = Broker(service["command"], tmp_path, PASSWORD=service["environment"]["PASSWORD"])
    try:
        client = broker.client(password=REACHES["REDIS_PASSWORD"])
        for name, value in {**KEEPS, "dir": str(tmp_path)}.items():
            assert client.config_get(name)[name] == value
        client.close()
        with pytest.raises(RedisError, match="authenticated"):
            broker.client()
    finally:
        broker.end()


@pytest.mark.parametrize("missing", REACHES)
def test_without_a_password_and_an_address_it_does_not_start(compose: Compose, missing: str) -> None:
    variables = {name: value for name, value in REACHES.items() if name != missing}
    done, _ = compose.ask("-f", FILE, "-f", REMOTE, "config", COMPOSE_PROFILES="cluster", **variables)
    assert done.returncode != 0
    assert missing in done.stderr


@pytest.mark.parametrize("profile", ["cluster", "cluster-cpu"])
def test_all_that_need_it_are_told_the_password(compose: Compose, profile: str) -> None:
    plain = compose.services(profile)
    services = compose.services(profile, FILE, REMOTE, **REACHES)
    joins = {name for name, found in plain.items() if "FAULTBOOK_BROKER_URL" in found.get("environment", {})}
    assert joins == PROFILES[profile] - {"redis", "cluster"}
    for name in joins:
        assert services[name]["environment"]["FAULTBOOK_BROKER_URL"] == "redis://:secret@redis:6379/0"
        assert plain[name]["environment"]["FAULTBOOK_BROKER_URL"] == "redis://redis:6379/0"


def test_a_worker_of_another_host_is_told_where_redis_is(compose: Compose) -> None:
    address = "redis://:secret@10.0.0.5:6379/0"
    told = compose.told(
        "up", "-d", "--no-build", "worker", FAULTBOOK_BROKER_URL=address, COMPOSE_PROFILES="cluster"
    )
    created = dict(container_of(call) for call in told if call[0] == "create")
    assert created.keys() == {"worker"}
    assert created["worker"].variables["FAULTBOOK_BROKER_URL"] == address
    assert created["worker"].command == ["worker"]


def test_replicas_are_two_and_wait_for_the_broker(compose: Compose) -> None:
    told = compose.told("up", "-d", "--no-build", COMPOSE_PROFILES="cluster")
    names = [container_of(call)[0] for call in told if call[0] == "create"]
    assert names.count("api") == 2
    services = compose.services("cluster")
    assert services["api"]["depends_on"] == {"redis": {"condition": "service_healthy"}}
    assert services["cluster"]["depends_on"]["api"] == {"condition": "service_healthy"}
