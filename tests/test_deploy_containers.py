"""The images really built and run, where buildah and podman are; elsewhere the reason is shown.

No registry is needed: the base is made from the distribution's packages, unless FAULTBOOK_TEST_BASE_IMAGE
names one that has Python with venv, Redis and HAProxy. Every image, container and volume made is removed.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
TAG = f"localhost/faultbook-test-{os.getpid()}"
TOOLS = ("buildah", "podman", "runc")
BASE = os.environ.get("FAULTBOOK_TEST_BASE_IMAGE")
INCLUDED = "python3,python3-venv,redis-server,haproxy"

# What works without systemd, with few descriptors, and in a container of its own.
PODMAN = ("podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs")
LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
CONFINED = (
    "--read-only",
    "--tmpfs",
    "/tmp:size=64m",
    "--cap-drop",
    "ALL",
    "--security-opt",
    "no-new-privileges",
)

INDEXED = "iniconfig==2.3.1"
LINE = "iniconfig.exceptions.ParseError: tox.ini:3: duplicate section 'pytest'"
CURATED = "ValueError: int32-packed scale buffers require scale_ue8m0=True"


def missing() -> str:
    tools = [*TOOLS, *([] if BASE else ["debootstrap"])]
    lacking = [tool for tool in tools if shutil.which(tool) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    return "" if os.geteuid() == 0 else "building here needs root"


pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing() or "nothing is missing"),
    pytest.mark.timeout(1500),
]


def run(*command: str | Path, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
        cwd=ROOT,
    )
    assert not check or done.returncode == 0, f"{command}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done


@contextmanager
def container(image: str) -> Iterator[str]:
    """A working container of buildah's."""
    name = run("buildah", "from", "--pull-never", image).stdout.strip()
    try:
        yield name
    finally:
        run("buildah", "rm", name)


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    if BASE:
        yield BASE
        return
    name = f"{TAG}-base"
    with container("scratch") as made:
        folder = run("buildah", "mount", made).stdout.strip()
        suite = run("sh", "-c", '. /etc/os-release && echo "$VERSION_CODENAME"').stdout.strip()
        done = run("debootstrap", "--variant=minbase", f"--include={INCLUDED}", suite, folder, check=False)
        if done.returncode:
            pytest.skip(f"no base image: debootstrap: {(done.stdout + done.stderr).strip()[-200:]}")
        run("buildah", "commit", "-q", made, name)
    yield name
    run("buildah", "rmi", "-f", name)


@pytest.fixture(scope="module")
def image(base: str) -> Iterator[str]:
    """Target `service`, with one small package indexed; the certificates of this host go in as a secret."""
    name = f"{TAG}:service"
    bundle = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    secret = ["--secret", f"id=ca,src={bundle}", "--build-arg", "PIP_CERT=/run/secrets/ca"] if bundle else []
    run(
        *("buildah", "bud", "--isolation", "chroot", "--network", "host", "--format", "docker"),
        *("--target", "service", "--build-arg", f"BASE_IMAGE={base}"),
        *("--build-arg", f"INDEX_PACKAGES={INDEXED}", *secret, "-t", name, "."),
    )
    yield name
    run("buildah", "rmi", "-f", name)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ask(port: int, path: str, text: str | None = None) -> Any:
    """The JSON of an answer, never through a proxy of the environment."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=text.encode() if text is not None else None,
        headers={"Content-Type": "text/plain"},
    )
    with opener.open(request, timeout=30) as answer:
        return json.load(answer)


def ready(port: int, within: float = 120) -> Any:
    ends = time.monotonic() + within
    while True:
        try:
            return ask(port, "/readyz")
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.5)


class Running:
    """One container of the image with a volume of its own."""

    def __init__(self, image: str) -> None:
        self.image = image
        self.name = f"{Path(TAG).name}-service"
        self.port = free_port()

    def start(self) -> None:
        run(
            *(*PODMAN, "run", "-d", "--name", self.name, *CONFINED, *LIMITS),
            *("--memory", "1g", "--pids-limit", "256", "-p", f"127.0.0.1:{self.port}:8000"),
            *("-v", f"{self.name}:/var/lib/faultbook", self.image),
        )
        ready(self.port)

    def inside(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return run(*PODMAN, "exec", self.name, *command, check=check)

    def stop(self) -> tuple[int, str]:
        """The exit status, and all that was said."""
        run(*PODMAN, "stop", "-t", "20", self.name)
        status = run(*PODMAN, "inspect", self.name, "--format", "{{.State.ExitCode}}").stdout
        logs = run(*PODMAN, "logs", self.name)
        run(*PODMAN, "rm", self.name)
        return int(status), logs.stdout + logs.stderr


@pytest.fixture(scope="module")
def service(image: str) -> Iterator[Running]:
    running = Running(image)
    running.start()
    yield running
    run(*PODMAN, "rm", "-f", running.name, check=False)
    run(*PODMAN, "volume", "rm", "-f", running.name, check=False)


def test_it_runs_as_nobody_special(service: Running) -> None:
    status = service.inside("cat", "/proc/1/status").stdout
    assert "CapEff:\t0000000000000000" in status
    assert "CapBnd:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert service.inside("id", "-u").stdout.strip() == "10001"


def test_it_writes_to_its_data_alone(service: Running) -> None:
    for path in ("/", "/opt/faultbook", "/usr/share/faultbook", "/etc"):
        assert service.inside("touch", f"{path}/x", check=False).returncode != 0, path
    service.inside("touch", "/var/lib/faultbook/x", "/tmp/x")


def test_it_is_healthy_and_ready(service: Running) -> None:
    service.inside("healthy")
    parts = ask(service.port, "/readyz")["parts"]
    assert parts["catalog"]["ready"]
    assert not parts["worker"]["ready"]


def test_it_knows_what_was_indexed_at_the_build(service: Running) -> None:
    found = ask(service.port, "/api/match", LINE)["matches"][0]
    assert found["errorMessage"].endswith(": duplicate section {section!r}")
    repos = {item["package"]: item["packageVersion"] for item in ask(service.port, "/api/repos")["repos"]}
    assert repos["iniconfig"] == INDEXED.partition("==")[2]


def test_it_knows_the_curated_records(service: Running) -> None:
    assert ask(service.port, "/api/match", CURATED)["hasMatch"]


def test_the_index_holds_texts_and_places_but_no_code(service: Running) -> None:
    record = ask(service.port, "/api/match", LINE)["matches"][0]["id"]
    assert ask(service.port, f"/api/errors/{record}")["record"]["sourceCode"] is None


def test_nothing_of_the_build_stays_in_it(service: Running) -> None:
    """Neither torch, which this target leaves out, nor certificates, caches and sources."""
    packages = service.inside("pip", "list", "--format=freeze").stdout
    assert "torch==" not in packages
    for path in ("/run/secrets/ca", "/build", "/root/.cache", "/wheels/src"):
        assert service.inside("test", "-e", path, check=False).returncode == 1, path
    assert "PIP_CERT" not in service.inside("env").stdout


def test_doctor_says_what_the_container_has(service: Running) -> None:
    found = json.loads(service.inside("faultbook", "doctor", "--json").stdout)["findings"]
    states = {item["name"]: item["state"] for item in found}
    assert states["catalog"] == states["data"] == states["snapshots"] == "ok"
    assert states["torch"] == "missing"


def test_it_ends_when_told_and_keeps_its_volume(service: Running) -> None:
    began = time.monotonic()
    status, said = service.stop()
    assert status == 0, said
    assert time.monotonic() - began < 20
    assert "iniconfig 2.3.1" in said, "the first start took the image's snapshots in"
    service.start()
    assert ask(service.port, "/api/match", LINE)["hasMatch"]
    _, said = service.stop()
    assert "iniconfig 2.3.1" not in said, "the second found them there"


# --- compose


@pytest.fixture
def cluster(base: str, image: str) -> Iterator[int]:
    """Profile `cluster` without its GPU worker, by podman-compose; the port it is published on."""
    stand_ins = {
        "redis": ("--cmd", '["redis-server"]', "--volume", "/data"),
        "haproxy": (
            *("--entrypoint", '["haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]'),
            *("--user", "haproxy"),
        ),
    }
    for name, options in stand_ins.items():
        with container(base) as made:
            folder = Path(run("buildah", "mount", made).stdout.strip())
            (folder / "data").mkdir(exist_ok=True)
            (folder / "data").chmod(0o1777)
            run("buildah", "config", *options, made)
            run("buildah", "commit", "-q", made, f"{TAG}-{name}")
    port = free_port()
    variables = {
        "COMPOSE_PROFILES": "cluster",
        "FAULTBOOK_IMAGE": TAG,
        "REDIS_IMAGE": f"{TAG}-redis",
        "PROXY_IMAGE": f"{TAG}-haproxy",
        "FAULTBOOK_PUBLISH": f"127.0.0.1:{port}",
    }
    compose = (
        *(Path(sys.executable).with_name("podman-compose"), "-p", Path(TAG).name),
        *("--podman-args", " ".join(PODMAN[1:]), "--podman-run-args", " ".join(LIMITS)),
    )
    try:
        run(*compose, "up", "-d", "--no-build", "cluster", "api", "redis", **variables)
        yield port
    finally:
        run(*compose, "down", "-v", "-t", "20", **variables)
        for name in stand_ins:
            run("buildah", "rmi", "-f", f"{TAG}-{name}")


def test_a_cluster_outlives_one_of_its_replicas(cluster: int) -> None:
    ready(cluster)
    prefix = Path(TAG).name
    names = run(*PODMAN, "ps", "--format", "{{.Names}}").stdout.split()
    assert {f"{prefix}_api_1", f"{prefix}_api_2", f"{prefix}_redis_1", f"{prefix}_cluster_1"} <= set(names)
    assert ask(cluster, "/api/match", LINE)["hasMatch"]
    inside = (*PODMAN, "exec", f"{prefix}_api_2", "faultbook", "doctor", "--json")
    states = {
        item["name"]: item["state"] for item in json.loads(run(*inside, check=False).stdout)["findings"]
    }
    assert states["broker"] == "ok", "a replica reaches Redis"
    kept = run(*PODMAN, "exec", f"{prefix}_redis_1", "redis-cli", "config", "get", "appendonly").stdout
    assert kept.split() == ["appendonly", "yes"]
    run(*PODMAN, "stop", "-t", "20", f"{prefix}_api_1")
    for _ in range(20):
        assert ask(cluster, "/api/match", CURATED)["hasMatch"]
