"""Time of every kernel on this GPU, beside what the device allows and what upstream takes.

    python -m benchmarks.kernels [--operation NAME]… [--size TEXT] [--upstream-python PATH]
                                 [--upstream-path FOLDER]

The floor is the larger of two: the bytes that must move over the bandwidth of a device copy, and the
operations over the rate of a large matrix product, both measured in this run. With --upstream-python (an
interpreter that can import sglang, its own or with FOLDER on its path) upstream's function gets the same
tensors in that process, problem by problem in turn with ours. Times are medians in µs: `µs` in a captured
graph of one call for each input set, `cold` alone with a flushed cache, `host` for the caller that queues it.

How to add an operation: benchmarks/problems/__init__.py.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.problems import Function, Problem, problems
from benchmarks.upstream import Upstream, one_line

if TYPE_CHECKING:
    from benchmarks.timing import Clock

Figures = Mapping[str, Any]

NONE = "–"
AGREEMENT = 0.02  # of the mean magnitudes of outputs; tests hold them to much more
COLUMNS = ("operation", "size", "µs", "cold", "host", "floor", "µs / floor")
UPSTREAM = ("upstream µs", "cold", "host", "ours / upstream", "cold")


def main() -> int:
    """Print the table; exit status 1 when a side failed or the sides disagree."""
    options = parsed(sys.argv[1:])
    if not torch.cuda.is_available():
        print("kernels: no CUDA device, nothing measured")
        return 0
    from benchmarks.timing import Clock

    chosen = [
        problem
        for problem in problems()
        if (not options.operation or problem.operation in options.operation) and options.size in problem.size
    ]
    clock = Clock()
    name, copied, empty = torch.cuda.get_device_name(), clock.copy_rate(), clock.launch()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, triton {version('triton')}"
    print(f"{name}, {versions}; copy {copied / 1e9:.0f} GB/s read and written, empty kernel {empty:.2f} µs\n")
    print(row([*COLUMNS, *UPSTREAM]))
    print(row(["---"] * len([*COLUMNS, *UPSTREAM])))
    rates = dict.fromkeys(problem.rate for problem in chosen if problem.flops)
    notes = {f"{rate} matrix rate: {clock.matrix_rate(rate) / 1e12:.0f} TFLOP/s": None for rate in rates}
    failed = False
    process = Upstream(options.upstream_python, options.upstream_path) if options.upstream_python else None
    with closing(process) if process else nullcontext():
        for problem in chosen:
            ours = timed(problem.ours, problem, clock)
            theirs = timed_by_upstream(problem, clock, process)
            print(
                row([problem.operation, problem.size, *cells(problem, clock, copied, ours, theirs)]),
                flush=True,
            )
            for note, bad in remarks(problem, ours, theirs):
                notes[note] = None
                failed |= bad
    print("", *(f"* {note}" for note in notes), sep="\n")
    return 1 if failed else 0


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__.split("\n")[0])
    parser.add_argument("--operation", action="append", choices=sorted({p.operation for p in problems()}))
    parser.add_argument("--size", default="", help="only sizes that contain this text")
    parser.add_argument("--upstream-python", help="interpreter that can import sglang")
    parser.add_argument("--upstream-path", help="folder to put on its path")
    return parser.parse_args(arguments)


def timed(function: Callable[[], Function], problem: Problem, clock: Clock) -> Figures:
    """Fields of a Timing, or `error`: what the function raised, on the first line."""
    try:
        return vars(clock.time(problem, function()))
    except Exception as error:  # noqa: BLE001 (the other rows are wanted all the same)
        return {"error": one_line(error)}


def timed_by_upstream(problem: Problem, clock: Clock, process: Upstream | None) -> Figures | None:
    """The same of upstream's function; None where it is not asked."""
    if problem.upstream is None:
        return None
    if problem.upstream_package == "torch":
        return timed(problem.upstream, problem, clock)
    return process.time(problem) if process else None


def cells(
    problem: Problem, clock: Clock, copied: float, ours: Figures, theirs: Figures | None
) -> Iterator[str]:
    """Figures of one row; dashes for a side that failed."""
    floor = problem.moved / copied * 1e6
    if problem.flops:
        floor = max(floor, problem.flops / clock.matrix_rate(problem.rate) * 1e6)
    yield from figures(ours)
    yield f"{floor:.2f}"
    yield NONE if "error" in ours else f"{ours['device'] / floor:.2f}"
    yield from figures(theirs)
    for name in ("device", "cold"):
        known = theirs is not None and name in theirs and name in ours
        yield f"{ours[name] / theirs[name]:.3f}" if known and theirs else NONE


def figures(side: Figures | None) -> Iterator[str]:
    """Its three times."""
    if side is None or "error" in side:
        yield from (NONE, NONE, NONE)
    else:
        yield from (f"{side['device']:.2f}", f"{side['cold']:.2f}", f"{side['host']:.0f}")


def remarks(problem: Problem, ours: Figures, theirs: Figures | None) -> Iterator[tuple[str, bool]]:
    """What to say below the table, and whether it is a failure."""
    sides = {"ours": ours, "upstream's": theirs or {}}
    failures = {name: side["error"] for name, side in sides.items() if "error" in side}
    for name, error in failures.items():
        yield f"{name}, {problem.name}: {error}", True
    if theirs is None or failures:
        return
    if "version" in theirs:
        yield f"upstream: {theirs['version']}", False
    for place, (mine, other) in enumerate(zip(ours["means"], theirs["means"], strict=True)):
        if not abs(mine - other) <= AGREEMENT * abs(other):
            yield f"{problem.name}: output {place} has mean magnitude {mine:g}, upstream's {other:g}", True


def row(texts: Sequence[str]) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(texts)} |"


if __name__ == "__main__":
    sys.exit(main())
