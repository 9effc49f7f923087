"""Many clients at once: does every answer come, and does the service's memory stay as it is.

    python -m benchmarks.load [--seconds 60] [--connections 16]

Each connection mixes look-ups of short and long texts, records by id, records that it knows already (304),
searches, and diagnoses at level checks of calls of its own, while another one keeps a worker running. Memory
is the resident set of the serving process alone. The first third warms caches up to their limits.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

from benchmarks.http import Client, free_port, request, served

RUNS_TO_KEEP = {"operation": "per_token_group_quant", "level": "run"}
LINES = [
    "ValueError: int32-packed scale buffers require scale_ue8m0=True",
    "RuntimeError: kv_scales must be fp32, got torch.float16",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "nothing that anybody knows about 4711",
]


@dataclass
class Seen:
    """What the clients saw, by kind of request: times in seconds, and what went wrong."""

    times: dict[str, list[float]] = field(default_factory=dict)
    wrong: Counter[str] = field(default_factory=Counter)


def questions(records: list[str], number: int) -> Iterator[tuple[str, bytes, tuple[int, ...]]]:
    """(kind, request, statuses that are right), for ever, another sequence for each connection."""
    step = 0
    while True:
        step += 1
        turn = number * 1_000_003 + step
        record = f"/api/errors/{records[turn % len(records)]}"
        line = LINES[turn % len(LINES)]
        yield "record", request("GET", record), (200,)
        yield "not modified", request("GET", record, If_None_Match="*"), (304,)
        yield "match", request("POST", "/api/match", json.dumps({"text": line}).encode()), (200,)
        yield "search", request("GET", f"/api/search?q=scale+buffers+{turn % 97}"), (200,)
        call = {
            "operation": "per_token_group_quant",
            "arguments": {"input": f"bfloat16[{turn % 4096 + 1},7168]"},
        }
        body = json.dumps({**call, "level": "checks"}).encode()
        yield "checks", request("POST", "/api/diagnose", body), (200,)
        if step % 50 == 0:
            log = "\n".join(f"[rank {rank}] step {rank}: fine" for rank in range(2000)) + "\n" + line
            yield "long log", request("POST", "/api/match", json.dumps({"text": log}).encode()), (200,)


def runs() -> Iterator[tuple[str, bytes, tuple[int, ...]]]:
    """Runs, each with a seed of its own, so that none is answered from the store."""
    seed = 0
    while True:
        seed += 1
        body = json.dumps({**RUNS_TO_KEEP, "arguments": {}, "seed": seed}).encode()
        yield "run", request("POST", "/api/diagnose", body), (200,)


def connection(
    port: int, asked: Iterator[tuple[str, bytes, tuple[int, ...]]], until: float, seen: Seen
) -> None:
    """Ask one question after another until the time is over."""
    client = Client(port)
    for kind, sent, right in asked:
        began = time.monotonic()
        if began > until:
            return
        try:
            status = client.ask(sent)[0]
        except OSError as error:
            seen.wrong[f"{kind}: {type(error).__name__}"] += 1
            client = Client(port)
            continue
        seen.times.setdefault(kind, []).append(time.monotonic() - began)
        if status not in right:
            seen.wrong[f"{kind}: {status}"] += 1


def resident(process: int) -> int:
    """Bytes of a process that are in memory."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


def main() -> int:
    """Exit status 1 where an answer was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--connections", type=int, default=16)
    options = parser.parse_args()
    port = free_port()
    command = [sys.executable, "-m", "app.cli", "serve", "--port", str(port)]
    with served(command, port, "/readyz", FAULTBOOK_DEVICE="cpu") as service:
        listed = json.loads(Client(port).ask(request("GET", "/api/errors?limit=100"))[2])
        records = [found["id"] for found in listed["errors"]]
        Client(port).ask(next(runs())[1])  # the worker has started
        began = time.monotonic()
        until = began + options.seconds
        seen = [Seen() for _ in range(options.connections + 1)]
        sequences = [*(questions(records, number) for number in range(options.connections)), runs()]
        threads = [
            threading.Thread(target=connection, args=(port, sequence, until, one))
            for sequence, one in zip(sequences, seen, strict=True)
        ]
        for thread in threads:
            thread.start()
        memory = []
        while any(thread.is_alive() for thread in threads):
            memory.append((time.monotonic() - began, resident(service)))
            time.sleep(0.5)
    times: dict[str, list[float]] = {}
    wrong: Counter[str] = Counter()
    for one in seen:
        wrong.update(one.wrong)
        for kind, found in one.times.items():
            times.setdefault(kind, []).extend(found)
    print("| request | answers | median, ms | p99, ms |")
    print("| --- | --- | --- | --- |")
    for kind, found in times.items():
        cuts = quantiles(found, n=100) if len(found) > 1 else found * 99
        print(f"| {kind} | {len(found):,} | {cuts[49] * 1e3:.1f} | {cuts[98] * 1e3:.1f} |")
    warm = [size for moment, size in memory if moment > options.seconds / 3]
    middle = len(warm) // 2
    first, second = max(warm[:middle]), max(warm[middle:])
    mib = 1 << 20
    print(
        f"\nWrong or missing answers: {sum(wrong.values())} {dict(wrong) or ''}. Resident memory: "
        f"{memory[0][1] / mib:.0f} MiB at the start, at most {first / mib:.0f} in the second third, "
        f"{second / mib:.0f} in the last ({(second / first - 1) * 100:+.1f} %)."
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
