"""What the fix search spends on calls that are wrong in three ways at once, and how many repairs are run.

    python -m benchmarks.fixes [--runs 20] [OPERATION …]

The calls are made of the examples of three checks each, drawn at random, those of a file of one example and
random changes; those in which fewer than three checks of error severity fail are left out. Of each
operation's, so many are then answered at level run, on the GPU where there is one, and the runs of repairs
counted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from itertools import islice
from statistics import median
from typing import Any

from app.diagnose.answers import storage
from app.diagnose.fixes import search
from app.diagnose.service import Diagnoser, Question
from app.settings import Settings
from app.worker.pool import WorkerPool
from benchmarks.faults import several
from catalog.store import load_catalog
from kernels.call import Call
from kernels.registry import Operation, operations

FAULTS = 3
CALLS = 100


async def main(arguments: Sequence[str] | None = None) -> None:
    """One line an operation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=0, help="calls of each operation answered at level run")
    parser.add_argument("operations", nargs="*")
    args = parser.parse_args(arguments)
    settings = Settings(workers=1 if args.runs else 0)
    pool = WorkerPool(settings)
    pool.start()
    catalog = load_catalog()
    diagnoser = Diagnoser(settings, pool, catalog.record_id_of, catalog.dataset_version)
    print("| operation | calls | examinations: median | most | edits | ms | answered | runs: median | most |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    try:
        for name in args.operations or operations():
            operation = operations()[name]
            calls = list(several(operation, FAULTS, CALLS, seed=3))
            if calls:
                spent = _searched(operation, calls)
                small = (call for call in calls if storage(call) <= settings.max_tensor_bytes)
                runs = [await repairs_run(diagnoser, operation, call) for call in islice(small, args.runs)]
                told = f"{len(runs)} | {median(runs):g} | {max(runs)}" if runs else "0 | – | –"
                print(f"| {operation.name} | {len(calls)} | {spent} | {told} |", flush=True)
    finally:
        await pool.stop()


def _searched(operation: Operation, calls: Sequence[Call]) -> str:
    """Examinations, edits of the first repair, and processor time."""
    spent, edits, taken = [], [], []
    for call in calls:
        examination = operation.examine(call)
        started = time.process_time()
        found = search(call, examination, operation.examine)
        taken.append((time.process_time() - started) * 1e3)
        spent.append(found.evaluations)
        edits += [len(found.repairs[0].edits)] if found.repairs else []
    fewest = f"{median(edits):g}" if edits else "–"
    return f"{median(spent):g} | {max(spent)} | {fewest} | {median(taken):.1f}"


async def repairs_run(diagnoser: Diagnoser, operation: Operation, call: Call) -> int:
    """How many repairs the worker ran for one answer at level run."""
    runs = 0

    async def report(kind: str, _: dict[str, Any]) -> None:
        nonlocal runs
        runs += kind == "fix"

    await diagnoser.diagnose(Question(operation, call, "run", "auto", 0, ()), report)
    return runs


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
