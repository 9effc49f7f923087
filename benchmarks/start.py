"""How long the service takes from start to its first answers, and how much memory it holds.

python -m benchmarks.start
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any

ROUNDS = 5
LIMIT = 120.0


def main() -> None:
    """Print medians over the rounds."""
    rounds = [once() for _ in range(ROUNDS)]
    print("| from start to | median, s |")
    print("| --- | --- |")
    for name in ("ready", "worker", "run"):
        print(f"| {TITLES[name]} | {median(found[name] for found in rounds):.2f} |")
    print(f"\nService process alone: {median(found['memory'] for found in rounds):.0f} MB resident.")


TITLES = {
    "ready": "/readyz answers 200 (aim 1.5)",
    "worker": "the worker is warm",
    "run": "a first diagnosis at level run is answered",
}


def once() -> dict[str, float]:
    """One start on a free port, timed until each stage."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "FAULTBOOK_PORT": str(port)}
    started = time.perf_counter()
    server = subprocess.Popen(
        [Path(sys.executable).with_name("faultbook"), "serve"], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        found = {"ready": _until(port, started, lambda state: True)}
        found["memory"] = _resident(server.pid)
        found["worker"] = _until(port, started, lambda state: state["parts"]["worker"]["ready"])
        body = json.dumps({"operation": "per_token_group_quant", "level": "run"}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/diagnose", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=LIMIT) as answer:
            assert json.load(answer)["verdict"] == "passed"
        found["run"] = time.perf_counter() - started
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(LIMIT)
    return found


def _until(port: int, started: float, reached: Any) -> float:
    while time.perf_counter() - started < LIMIT:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
                if reached(json.load(answer)):
                    return time.perf_counter() - started
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.02)
    raise TimeoutError(f"not reached in {LIMIT:g} s")


def _resident(pid: int) -> float:
    """Resident memory of a process, MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    main()
