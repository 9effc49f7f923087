"""What a sweep of 10,000 points takes in one process, beside examining each point alone.

    python -m benchmarks.sweep

From the request's bytes to the answer's, processor time. The last column is the time of ten million turns of
an empty loop, taken at the same time: it tells how fast the host is just now.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

from app.sweep.service import sweep
from kernels.call import arguments_json
from kernels.registry import Operation, operations

ALONE = 200
"""Points that are examined alone to tell what all would take."""

SWEEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "group sizes": ("per_token_group_quant", {"group_size": {"from": 1, "to": 10_000}}),
    "group size × width, outputs allocated": (
        "per_token_group_quant",
        {"group_size": {"from": 1, "to": 100}, "input.shape.1": {"from": 16, "to": 1600, "step": 16}},
    ),
    "both strides of output_s": (
        "per_token_group_quant",
        {
            "output_s.strides.0": {"from": 0, "to": 99},
            "output_s.strides.1": {"from": 0, "to": 99},
        },
    ),
    "heads × width of q": (
        "sparse_attn_v4_paged_decode",
        {"q.shape.1": {"from": 1, "to": 100}, "q.shape.2": {"from": 16, "to": 1600, "step": 16}},
    ),
    "page size × slots of k_buf": (
        "inkling_attn_prologue_decode",
        {"page_size": {"from": 1, "to": 100}, "k_buf.shape.0": {"from": 1, "to": 100}},
    ),
}


def seconds(function: Callable[[], Any]) -> float:
    """Processor time of one call, s."""
    started = time.process_time()
    function()
    return time.process_time() - started


def _answer(body: bytes) -> str:
    return sweep(body).model_dump_json(by_alias=True)


def _alone(operation: Operation) -> None:
    for _ in range(ALONE):
        operation.examine(operation.valid)


def _count(numbers: dict[str, int]) -> int:
    return len(range(numbers["from"], numbers["to"] + 1, numbers.get("step", 1)))


def main() -> None:
    """One line a sweep."""
    print("| operation | varied | points | together, s | alone, s | ratio | loop, s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for title, (name, vary) in SWEEPS.items():
        operation = operations()[name]
        arguments = {} if "allocated" in title else arguments_json(operation.valid)
        body = json.dumps({"operation": name, "arguments": arguments, "vary": vary}).encode()
        together = seconds(partial(_answer, body))
        points = prod(_count(values) for values in vary.values())
        alone = seconds(partial(_alone, operation)) / ALONE * points
        loop = seconds(lambda: [None for _ in range(10_000_000)])
        print(
            f"| {name} | {title} | {points:,} | {together:.2f} | {alone:.2f} | "
            f"{alone / together:.1f} | {loop:.2f} |"
        )


if __name__ == "__main__":
    main()
