"""Do the reproduction scripts reproduce? Each check's example as the script that the page shows, run by
upstream's interpreter; what it raises is compared with what the check says.

    python -m benchmarks.reproductions --python UPSTREAM_PYTHON [--launchers FOLDER] [--launch]

Without --launch, or a GPU, scripts run on stated tensors (see app.upstream.guest) and kernels are not
launched. With it, those of our own checks are left out: what they show may end the process. Exit status 1
when a script does not do what its check says.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from app.upstream.comparing import compare
from app.upstream.oracle import Oracle
from benchmarks.agreement import LIMIT, MEMORY, MODULES, opened
from kernels.call import Call
from kernels.checking import Origin
from kernels.registry import Operation, operations
from kernels.rendering import reproduction
from kernels.target import Target

SCRIPTS = """\
import guest.main as main_of

class Scripted(main_of.Guest):
    def _function(self, module, name):
        def run(script):
            exec(compile(script, "reproduction.py", "exec"), {"__name__": "__main__"})
        return run

main_of.Guest = Scripted
"""
"""Makes upstream's process run scripts instead of calls: this benchmark's own, never a request's."""


def cases(operation: Operation, *, ours: bool) -> Iterator[tuple[str, Call]]:
    """(name, call) of the valid call and of each check's example; `ours`: of our own checks too."""
    yield "valid", operation.valid
    for check in operation.checks:
        example = check.example()
        if example is not None and (ours or check.origin() is Origin.UPSTREAM):
            yield check.id(), example


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", required=True)
    parser.add_argument("--launchers", default="")
    parser.add_argument("--launch", action="store_true")
    parser.add_argument("operations", nargs="*")
    args = parser.parse_args(arguments)
    oracle = Oracle(
        args.python,
        MODULES,
        limit=LIMIT,
        memory=MEMORY,
        launches=args.launch,
        before=f"{SCRIPTS}\n{opened(args.launchers)}",
    )
    failed = 0
    print("| operation | scripts | do what their check says | differ | unanswered |")
    print("| --- | --- | --- | --- | --- |")
    for name in args.operations or [name for name, each in operations().items() if not each.needs]:
        seen = list(_run(operations()[name], oracle, ours=not args.launch))
        wrong = [each for each in seen if each[1] is False]
        silent = [each for each in seen if each[1] is None]
        failed += len(wrong)
        right = len(seen) - len(wrong) - len(silent)
        print(f"| {name} | {len(seen)} | {right} | {len(wrong)} | {len(silent)} |", flush=True)
        for case, agrees, what in [*wrong, *silent]:
            told = "differs" if agrees is False else "unanswered"
            print(f"  {name} {case}: {told}: {what}", file=sys.stderr)
    oracle.close()
    return 1 if failed else 0


def _run(operation: Operation, oracle: Oracle, *, ours: bool) -> Iterator[tuple[str, bool | None, str]]:
    for name, example in cases(operation, ours=ours):
        call = example if example.target is not None else example.replace(target=Target("sm90"))
        job: dict[str, Any] = {"module": "", "function": "", "kwargs": {}, "written": [], "target": [9, 0]}
        job["states"] = True  # tensors that the script makes
        answer = oracle.ask({**job, "args": [{"value": reproduction(operation, call)}]})
        found = compare(operation, operation.examine(call), answer)
        yield name, found.agrees, "; ".join(found.differences) or f"{answer.ending}: {answer.detail}"


if __name__ == "__main__":
    sys.exit(main())
