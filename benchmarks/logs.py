"""What reading logs costs in the shapes that launchers and container runtimes give them.

    python -m benchmarks.logs [MiB of a log] [ranks of a folder]

Processor time of one process. One line in a thousand is an error of eight ranks, in turn as one line and as a
traceback; the curated records alone. Then a folder of one log a rank.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time

from app.lookup.folder import logs
from app.lookup.service import match_logs
from catalog.store import load_catalog

MIB = 1 << 20
RANKS = 8
ERROR = "RuntimeError: kv_scales must be fp32, got torch.bfloat16"
STACK = (
    "Traceback (most recent call last):",
    '  File "/opt/pkg/decode.py", line 684, in decode',
    "    check(scales)",
    ERROR,
)
AT = "2026-12-02T09:14:05.123456789Z"
SHAPES: dict[str, Callable[[int, str], str]] = {
    "plain": lambda rank, line: line,
    "sglang": lambda rank, line: f"[2026-12-02 09:14:05 TP{rank}] {line}",
    "torchrun": lambda rank, line: f"[rank{rank}]: {line}",
    "Ray": lambda rank, line: f"(Worker pid={7000 + rank}) {line}",
    "kubectl": lambda rank, line: f"[pod/serve-{rank}/main] {AT} {line}",
    "containerd": lambda rank, line: f"{AT} stderr F {line}",
    "docker": lambda rank, line: json.dumps({"log": f"{line}\n", "stream": "stderr", "time": AT}),
}


def lines(shape: Callable[[int, str], str]) -> Iterator[str]:
    """An endless log."""
    number = 0
    while True:
        rank = number % RANKS
        if number % 1000 < RANKS:
            # All ranks fail together, so their lines alternate.
            for line in STACK if number % 2000 < 1000 else (ERROR,):
                yield shape(rank, line)
        else:
            yield shape(
                rank, f"Decode batch. #running-req: {number}, token usage: 0.{number % 60:02}, #queue-req: 0"
            )
        number += 1


def log(shape: Callable[[int, str], str], size: int) -> str:
    """The beginning of such a log."""
    taken: list[str] = []
    for line in lines(shape):
        taken.append(line)
        size -= len(line) + 1
        if size <= 0:
            return "\n".join(taken)
    raise AssertionError("the log has no end")


def spent(call: Callable[[], object], rounds: int = 3) -> float:
    """Seconds of processor time of the fastest of some calls."""
    times = []
    for _ in range(rounds):
        started = process_time()
        call()
        times.append(process_time() - started)
    return min(times)


def main(mebibytes: int = 16, ranks: int = 64) -> None:
    """Print the table."""
    matcher = load_catalog().matcher
    print("| shape | MB/s | of plain |\n| --- | --- | --- |")
    plain = 0.0
    for name, shape in SHAPES.items():
        text = log(shape, mebibytes * MIB)
        speed = len(text) / 1e6 / spent(lambda text=text: matcher.match(text))  # type: ignore[misc]
        plain = plain or speed
        print(f"| {name} | {speed:.0f} | {speed / plain:.2f} |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(ranks):
            path = Path(folder, f"attempt_0/{rank}/stderr.log")
            path.parent.mkdir(parents=True)
            path.write_text(log(SHAPES["plain"], MIB), "utf-8")
        read = Path(folder)
        answer = match_logs(logs(read))
        assert answer["matches"][0]["ranks"] == list(range(ranks))
        print(f"\na folder of {ranks} logs of 1 MiB: {spent(lambda: match_logs(logs(read)), 1):.2f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
