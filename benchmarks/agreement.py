"""Do the checks say what upstream says? Random calls, examined here and given to upstream's own function.

    python -m benchmarks.agreement --python UPSTREAM_PYTHON [--count 10000] [--launchers FOLDER] [--launch]

UPSTREAM_PYTHON is an interpreter that can import sglang. Compared are the exception's class, its text and the
check that speaks first; without --launch, or a GPU, upstream's checks run on tensors that are stated, and no
kernel is launched. With it, calls that neither upstream nor we refuse run on the GPU. FOLDER: see
benchmarks.launchers. Exit status 1 when anything disagrees.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

from app.upstream.comparing import compare, launches_safely, named
from app.upstream.forms import CAPABILITY, job
from app.upstream.oracle import Answer, Oracle
from benchmarks.calls import calls
from kernels.call import Call, arguments_json
from kernels.examining import Examination
from kernels.filed import NotAllKnown
from kernels.registry import Operation, operations
from kernels.target import Target

MODULES = ("sglang", "safetensors")
LIMIT = 120.0
MEMORY = 8 << 30
SHOWN = 3
"""Calls told of each kind of disagreement."""


@dataclass(frozen=True)
class Plan:
    """One process's share: `count` answered calls of an operation, drawn with `seed`; fewer where `seconds`
    are over.
    """

    operation: str
    count: int
    seed: int
    python: str
    launchers: str
    launch: bool
    seconds: float


@dataclass
class Tally:
    """What was seen of one operation.

    raised        calls that upstream refused
    checks        our checks that said what upstream raised → how often
    disagreed     what differs → how often; `examples` tells some of the calls
    unanswered    why upstream could not be asked → how often; such calls count for nothing else
    """

    calls: int = 0
    agreed: int = 0
    raised: int = 0
    launched: int = 0
    checks: Counter[str] = field(default_factory=Counter)
    disagreed: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    unanswered: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, other: Tally) -> None:
        """Take in what another process saw."""
        self.calls += other.calls
        self.agreed += other.agreed
        self.raised += other.raised
        self.launched += other.launched
        self.checks += other.checks
        self.disagreed += other.disagreed
        self.unanswered += other.unanswered
        self.seconds += other.seconds
        for kind, examples in other.examples.items():
            self.examples[kind] = (self.examples.get(kind, []) + examples)[:SHOWN]


def measure(plan: Plan) -> Tally:
    """Draw, ask and compare until `count` calls were answered, or ten times as many were not."""
    operation = operations()[plan.operation]
    stated, launched = _oracles(plan)
    tally = Tally()
    started = perf_counter()
    try:
        for call in islice(calls(operation, plan.seed), 10 * plan.count):
            call = call.replace(target=Target(f"sm{CAPABILITY}"))
            examination = operation.examine(call)
            runs = launched is not None and launches_safely(examination)
            oracle = launched if runs and launched is not None else stated
            try:
                question = job(operation, call)
            except NotAllKnown as error:
                tally.unanswered[str(error)] += 1
                continue
            _count(tally, operation, call, examination, oracle.ask(question), runs)
            if tally.calls == plan.count or perf_counter() - started > plan.seconds:
                break
    finally:
        for each in (stated, launched):
            if each is not None:
                each.close()
    tally.seconds = perf_counter() - started
    return tally


def _oracles(plan: Plan) -> tuple[Oracle, Oracle | None]:
    before = opened(plan.launchers)

    def made(*, launches: bool) -> Oracle:
        return Oracle(plan.python, MODULES, limit=LIMIT, memory=MEMORY, launches=launches, before=before)

    return made(launches=False), made(launches=True) if plan.launch else None


def opened(launchers: str) -> str:
    """What upstream's process runs first, so that it finds compiled launchers in a folder if there is one."""
    if not launchers:
        return ""
    source = str(Path(__file__).resolve().with_name("launchers.py"))
    folder = str(Path(launchers).resolve())  # that process works elsewhere
    return (
        f"import pathlib; space = {{'__name__': 'launchers'}}; "
        f"exec(pathlib.Path({source!r}).read_text('utf-8'), space); "
        f"space['prepare']({folder!r})"
    )


def _count(
    tally: Tally, operation: Operation, call: Call, examination: Examination, answer: Answer, runs: bool
) -> None:
    found = compare(operation, examination, answer)
    if answer.error_class.endswith("SafetensorError") and operation.claims is not None:
        tally.unanswered["the library opens no such file"] += 1
        return
    if found.agrees is None:
        tally.unanswered[f"{answer.ending}: {answer.detail[:120]}"] += 1
        if answer.ending == "crashed":
            _keep(tally, f"crashed: {answer.detail[:80]}", operation, call, [answer.detail])
        return
    tally.calls += 1
    tally.agreed += found.agrees
    tally.raised += answer.ending == "raised"
    tally.launched += runs and answer.ending == "returned"
    if found.at_check:
        tally.checks[found.at_check] += 1
    if not found.agrees:
        predicted = named(examination.raised) if examination.raised is not None else "nothing"
        kind = f"{predicted} | upstream: {answer.ending} {answer.error_class} {found.at_check or ''}".strip()
        tally.disagreed[kind] += 1
        _keep(tally, kind, operation, call, list(found.differences))


def _keep(tally: Tally, kind: str, operation: Operation, call: Call, told: list[str]) -> None:
    """Keep the first calls of a kind, and what makes them differ from the valid one."""
    examples = tally.examples.setdefault(kind, [])
    if len(examples) < SHOWN:
        edits = [
            [edit.argument, edit.attribute, str(edit.before)[:200], str(edit.after)[:200]]
            for edit in operation.valid.edits_to(call)
        ]
        examples.append({"differences": told, "arguments": arguments_json(call), "edits": edits})


def shares(plan: Plan, jobs: int) -> Iterator[Plan]:
    """The plan cut into one share a process, each with a seed of its own."""
    for index in range(jobs):
        count = plan.count // jobs + (index < plan.count % jobs)
        if count:
            yield replace(plan, count=count, seed=plan.seed * 1000 + index)


def table(tallies: dict[str, Tally]) -> Iterator[str]:
    """The result in Markdown."""
    yield "| operation | calls | refused upstream | by checks | launched | disagree | unanswered | ms each |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for name, seen in tallies.items():
        each = 1e3 * seen.seconds / max(1, seen.calls)
        yield (
            f"| {name} | {seen.calls:,} | {seen.raised:,} | {len(seen.checks)} | {seen.launched:,} "
            f"| {seen.disagreed.total():,} | {seen.unanswered.total():,} | {each:.1f} |"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", required=True)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--launchers", default="")
    parser.add_argument("--launch", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="an operation at most")
    parser.add_argument("--report", type=Path)
    parser.add_argument("operations", nargs="*")
    args = parser.parse_args(arguments)
    names = args.operations or [name for name, each in operations().items() if not each.needs]
    tallies: dict[str, Tally] = {}
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        for name in names:
            plan = Plan(name, args.count, args.seed, args.python, args.launchers, args.launch, args.seconds)
            tallies[name] = Tally()
            for tally in pool.map(measure, shares(plan, args.jobs)):
                tallies[name].add(tally)
            told = (f"{count} x {kind}" for kind, count in tallies[name].disagreed.most_common(12))
            print("\n".join([name, *told]), file=sys.stderr, flush=True)
    print("\n".join(table(tallies)))
    for name, seen in tallies.items():
        for why, count in seen.unanswered.most_common(6):
            print(f"{name}: not answered {count} times: {why}")
    if args.report:
        args.report.write_text(json.dumps({name: vars(seen) for name, seen in tallies.items()}, default=str))
    return 1 if any(seen.disagreed for seen in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
