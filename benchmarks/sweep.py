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

THOUSANDS = {"from": 1, "to": 10_000}
HUNDRED = {"from": 1, "to": 100}
WIDTHS = {"from": 16, "to": 1600, "step": 16}

SWEEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "group sizes": ("per_token_group_quant", {"group_size": THOUSANDS}),
    "tokens, outputs allocated": ("per_token_group_quant", {"input.shape.0": THOUSANDS}),
    "group size × width, outputs allocated": (
        "per_token_group_quant",
        {"group_size": HUNDRED, "input.shape.1": WIDTHS},
    ),
    "both strides of output_s": (
        "per_token_group_quant",
        {"output_s.strides.0": {"from": 0, "to": 99}, "output_s.strides.1": {"from": 0, "to": 99}},
    ),
    "heads × width of q": ("sparse_attn_v4_paged_decode", {"q.shape.1": HUNDRED, "q.shape.2": WIDTHS}),
    "tokens of q": ("sparse_attn_v4_paged_decode", {"q.shape.0": THOUSANDS}),
    "slots of the pool": ("sparse_attn_v4_paged_decode", {"unified_kv.shape.0": THOUSANDS}),
    "page size × slots of k_buf": (
        "inkling_attn_prologue_decode",
        {"page_size": HUNDRED, "k_buf.shape.0": HUNDRED},
    ),
    "tokens of decode": ("inkling_attn_prologue_decode", {"qkvr.shape.0": THOUSANDS}),
    "drafted tokens × tokens": (
        "inkling_attn_prologue_verify",
        {"draft_token_num": HUNDRED, "qkvr.shape.0": HUNDRED},
    ),
    "width of k and v": ("inkling_attn_prologue_extend", {"dkv": THOUSANDS}),
    "tokens of q, attention": ("flash_attn_fwd", {"q.shape.1": THOUSANDS}),
    "tokens of x": ("quanto_int8_checkpoint", {"x.shape.0": THOUSANDS}),
    "ranks": ("comfy_checkpoint", {"tp_size": THOUSANDS}),
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
