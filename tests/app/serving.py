"""A service as it is started, in a process of its own: for tests that kill it, and its workers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HAZARDS = Path(__file__).parent / "worker/more"
"""On PYTHONPATH it adds the operation `hazard`, which ends its process in every way."""

STARTED = 300.0


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(folder: Path, **settings: str) -> dict[str, str]:
    """The environment of a process that finds our sources, the hazards and these settings."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("FAULTBOOK_")}
    return {
        **outer,
        "PYTHONPATH": os.pathsep.join([str(HAZARDS), str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "FAULTBOOK_DATA": str(folder / "data"),
        **{f"FAULTBOOK_{name.upper()}": value for name, value in settings.items()},
    }


class Process:
    """`faultbook COMMAND…`, with its output in a file."""

    def __init__(self, folder: Path, *command: str, **settings: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.command = command
        self.settings = settings
        self.log = folder / "log"
        self.start()

    def start(self) -> None:
        """Start it, as before."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "app.cli", *self.command],
                cwd=ROOT,
                env=environment(self.folder, **self.settings),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self) -> None:
        """End it without a word, as a power cut would."""
        self.process.kill()
        self.process.wait(30)

    def stop(self) -> None:
        """End it as an operator does."""
        self.process.terminate()
        assert self.process.wait(60) == 0, self.log.read_text()

    def end(self) -> None:
        """End it in whatever state it is."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)

    def descendants(self) -> list[int]:
        """Ids of the processes below it, parents before children."""
        found, todo = [], [self.process.pid]
        while todo:
            children = _children(todo.pop(0))
            found += children
            todo += children
        return found

    def leaves(self) -> list[int]:
        """Ids of the processes below those that it has started itself: the fork server's workers."""
        direct = _children(self.process.pid)
        return [pid for pid in self.descendants() if pid not in direct]


class Service(Process):
    """`faultbook serve` and a client of it."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.port = free_port()
        super().__init__(folder, "serve", "--port", str(self.port), **settings)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            headers = {"Content-Type": "application/json", **headers}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            if answer.headers.get_content_type() == "text/event-stream":
                return answer.status, text
            found = json.loads(text) if text else None
            return answer.status, {**found, "location": answer.headers["location"]} if found else found
        finally:
            connection.close()

    def answers(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """The same of a service that may be down just now: asked again until it answers, for a minute."""
        deadline = time.monotonic() + STARTED
        while True:
            try:
                status, found = self.ask(method, path, body, **headers)
                if status != 503:
                    return status, found
            except (OSError, HTTPException) as error:
                status, found = 0, error
            assert time.monotonic() < deadline, (status, found, self.log.read_text()[-3000:])
            time.sleep(0.1)

    def until_ready(self) -> None:
        """Wait until it has a worker."""
        deadline = time.monotonic() + STARTED
        while not self.answers("GET", "/readyz")[1]["parts"]["worker"]["ready"]:
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.1)

    def steps(self, job: str) -> list[tuple[str, dict[str, Any]]]:
        """The events of a job that has ended: their kinds and data."""
        status, text = self.answers("GET", f"/api/diagnoses/{job}/events")
        assert status == 200
        found = []
        for block in filter(None, text.split("\n\n")):
            fields = dict(line.split(": ", 1) for line in block.splitlines())
            found.append((fields["event"], json.loads(fields["data"])))
        return found


def _children(pid: int) -> list[int]:
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(child) for text in lists for child in text.split()]


def killed(pid: int) -> None:
    """Kill a process that may be gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
