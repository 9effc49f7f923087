"""What the fix search spends on calls that are wrong in three ways at once.

    python -m benchmarks.fixes

The calls are made of the examples of three checks each, drawn at random; those in which fewer than three
checks of error severity fail are left out.
"""

from __future__ import annotations

import time
from statistics import median

from app.diagnose.fixes import search
from app.diagnose.service import MAX_TRIED
from benchmarks.faults import several
from kernels.registry import operations

FAULTS = 3
CALLS = 100


def main() -> None:
    """One line an operation."""
    print("| operation | calls | examinations: median | most | repairs run: median | edits | ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for operation in operations().values():
        spent, runs, edits, taken = [], [], [], []
        for call in several(operation, FAULTS, CALLS, seed=3):
            examination = operation.examine(call)
            started = time.process_time()
            found = search(operation, call, examination)
            taken.append((time.process_time() - started) * 1e3)
            spent.append(found.evaluations)
            runs.append(min(MAX_TRIED, len(found.repairs)))
            edits += [len(found.repairs[0].edits)] if found.repairs else []
        if spent:
            print(
                f"| {operation.name} | {len(spent)} | {median(spent):g} | {max(spent)} | {median(runs):g} | "
                f"{median(edits):g} | {median(taken):.1f} |"
            )


if __name__ == "__main__":
    main()
