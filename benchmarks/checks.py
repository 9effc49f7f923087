"""What checking costs: a diagnosis at level checks in process, and the guard in front of a kernel.

    python -m benchmarks.checks

The guard is timed on valid live tensors, on a signature it has passed before and on one that it sees for
the first time.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from app.diagnose.questions import parse_question
from app.diagnose.service import Diagnoser
from app.settings import Settings
from app.worker.pool import WorkerPool
from catalog.store import load_catalog
from kernels.call import arguments_json
from kernels.registry import operations

REPEATS = 7
"""Rounds; each figure is the median of them."""


def microseconds(function: Callable[[], Any], calls: int) -> float:
    """Median time of one call, µs."""
    function()
    rounds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        for _ in range(calls):
            function()
        rounds.append((time.perf_counter() - started) / calls * 1e6)
    return median(rounds)


def diagnoses() -> None:
    """Level checks from the request's bytes to the answer's, in milliseconds."""
    settings = Settings(workers=0)
    catalog = load_catalog()
    diagnoser = Diagnoser(settings, WorkerPool(settings), catalog.record_id_of, catalog.dataset_version)
    loop = asyncio.new_event_loop()
    print("| operation | call | level checks, ms | examination alone, ms |")
    print("| --- | --- | --- | --- |")
    for operation in operations().values():
        failing = next(check for check in operation.checks if check.example() is not None)
        for title, call in (("valid", operation.valid), (failing.id(), failing.example())):
            assert call is not None
            body = json.dumps(
                {"operation": operation.name, "arguments": arguments_json(call), "level": "checks"}
            ).encode()

            def whole(body: bytes = body) -> None:
                answer = loop.run_until_complete(diagnoser.diagnose(parse_question(body)))
                answer.model_dump_json(by_alias=True)

            def examined(operation: Any = operation, call: Any = call) -> None:
                operation.examine(call)

            whole_ms, examined_ms = (microseconds(function, 100) / 1e3 for function in (whole, examined))
            print(f"| {operation.name} | {title} | {whole_ms:.2f} | {examined_ms:.3f} |")
    loop.close()


def guards() -> None:
    """The guard of per_token_group_quant on live tensors, µs; the aim is 5 + 2 a tensor."""
    from kernels import interpreter

    interpreter.prepare()
    from kernels.live import Guard, stated_devices
    from kernels.running import materialise

    operation = operations()["per_token_group_quant"]
    arguments = materialise(operation.valid, operation.fill(operation.valid), "cpu")
    tensors = [name for name, _ in operation.valid.tensors()]
    guard = Guard(operation.call, operation.stages)
    with stated_devices({id(arguments[name]): "cuda:0" for name in tensors}):
        known = microseconds(lambda: guard(arguments), 2000)
        new = microseconds(lambda: Guard(operation.call, operation.stages)(arguments), 200)
    print(f"\n| guard of per_token_group_quant, {len(tensors)} tensors | µs |")
    print("| --- | --- |")
    print(f"| signature passed before | {known:.1f} (aim {5 + 2 * len(tensors)}) |")
    print(f"| signature seen first | {new:.1f} |")


if __name__ == "__main__":
    diagnoses()
    guards()
