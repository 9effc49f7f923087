"""What an answer costs the service: processor time of one request, as a multiple of a bare route's.

    python -m benchmarks.http [--seconds 2] [--rounds 9]

Two servers in processes of their own, Faultbook and an application with one route that returns a small
dictionary, both as `faultbook serve` runs uvicorn. Rounds alternate between all figures, and each figure is
the median of its rounds' ratios, so that a shared machine weighs on both sides alike.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, repeat
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
TICK = os.sysconf("SC_CLK_TCK")

BARE = """
import uvicorn
from fastapi import FastAPI
app = FastAPI()
@app.get("/bare")
async def bare() -> dict[str, str]:
    return {"status": "alive"}
uvicorn.run(app, host="127.0.0.1", port=PORT, log_config=None, access_log=False, server_header=False)
"""

SPEC = {
    "operation": "per_token_group_quant",
    "arguments": {
        "input": "bfloat16[16,7168]",
        "output_q": "float8_e4m3fn[16,7168]",
        "output_s": "float32[16,56]",
    },
    "level": "checks",
}


class Client:
    """One connection that is kept open, and no more of HTTP than its answers need."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def ask(self, request: bytes) -> tuple[int, bytes, bytes]:
        """(status, head, body) of the answer."""
        self._socket.sendall(request)
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        while len(self._buffer) < length:
            self._more()
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return int(head[9:12]), head, body

    def _more(self) -> None:
        data = self._socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._buffer += data


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """The bytes of one request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Accept: */*"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def diagnosis(tokens: int) -> bytes:
    """The request to diagnose a call that passes; another count of tokens gives all tensors other sizes."""
    arguments = {
        "input": f"bfloat16[{tokens},7168]",
        "output_q": f"float8_e4m3fn[{tokens},7168]",
        "output_s": f"float32[{tokens},56]",
    }
    return request("POST", "/api/diagnose", json.dumps({**SPEC, "arguments": arguments}).encode())


def reseeded(seed: int) -> bytes:
    """The request to diagnose the same tensors with another seed, which level checks does not look at."""
    return request("POST", "/api/diagnose", json.dumps({**SPEC, "seed": seed}).encode())


@contextmanager
def served(command: list[str], port: int, path: str, **environment: str) -> Iterator[int]:
    """A server's process id, once it answers."""
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "FAULTBOOK_DATA": folder, **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            for _ in range(600):
                try:
                    if Client(port).ask(request("GET", path))[0] == 200:
                        break
                except OSError:
                    if process.poll() is not None:
                        raise RuntimeError(log.read_text()) from None
                time.sleep(0.1)
            yield process.pid
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def processor_seconds(process: int) -> float:
    """What a process has used, its own and the kernel's for it, without its children.

    From the scheduler's nanoseconds where the kernel keeps them, else from its clock ticks.
    """
    tasks = list(Path(f"/proc/{process}/task").iterdir())
    try:
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except (OSError, IndexError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK


def cost(process: int, client: Client, asking: Iterator[bytes], status: int, seconds: float) -> float:
    """Processor seconds of one request, over as many as fit into `seconds`."""
    answers = 0
    ended = time.monotonic() + seconds
    before = processor_seconds(process)
    while time.monotonic() < ended:
        for _ in range(20):
            asked = next(asking)
            found = client.ask(asked)[0]
            if found != status:
                raise RuntimeError(f"{asked[:80]!r} was answered with {found}")
            answers += 1
    return (processor_seconds(process) - before) / answers


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one round of one figure")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    ours, bare = free_port(), free_port()
    serve = [sys.executable, "-m", "app.cli", "serve", "--port", str(ours)]
    plain = [sys.executable, "-c", BARE.replace("PORT", str(bare))]
    with (
        served(serve, ours, "/readyz", FAULTBOOK_WORKERS="0") as service,
        served(plain, bare, "/bare") as other,
    ):
        client, reference = Client(ours), Client(bare)
        listed = json.loads(client.ask(request("GET", "/api/errors?limit=1"))[2])
        record = f"/api/errors/{listed['errors'][0]['id']}"
        head = client.ask(request("GET", record))[1]
        etag = next(line[6:].decode() for line in head.split(b"\r\n") if line.lower().startswith(b"etag: "))
        figures: dict[str, tuple[Iterator[bytes], int, float | None]] = {
            "GET a record by id": (repeat(request("GET", record)), 200, 1.3),
            "the same, not modified (304)": (repeat(request("GET", record, If_None_Match=etag)), 304, 1.1),
            "level checks, calls that were asked before": (repeat(diagnosis(16)), 200, 1.5),
            "level checks, each call of another seed": (map(reseeded, count(1)), 200, 1.5),
            "level checks, each call of other sizes": (map(diagnosis, count(17)), 200, 1.5),
            "GET /healthz": (repeat(request("GET", "/healthz")), 200, None),
        }
        baseline = repeat(request("GET", "/bare"))
        rounds: dict[str, list[float]] = {name: [] for name in figures}
        spent: dict[str, list[float]] = {name: [] for name in figures}
        for _ in range(options.rounds):
            for name, (asked, status, _) in figures.items():
                before = cost(other, reference, baseline, 200, options.seconds / 2)
                own = cost(service, client, asked, status, options.seconds)
                after = cost(other, reference, baseline, 200, options.seconds / 2)
                rounds[name].append(own / ((before + after) / 2))
                spent[name].append(own * 1e6)
    print("| request | processor time, µs | of a bare route's | at most |")
    print("| --- | --- | --- | --- |")
    for name, (_, _, most) in figures.items():
        print(
            f"| {name} | {median(spent[name]):.0f} | {median(rounds[name]):.2f} "
            f"({min(rounds[name]):.2f} to {max(rounds[name]):.2f}) | {most or ''} |"
        )


if __name__ == "__main__":
    main()
