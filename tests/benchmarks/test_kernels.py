"""The benchmark of the kernels: its problems are well-formed, and each side of one is what it says."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import kernels as command
from benchmarks.problems import Problem, problems
from benchmarks.upstream import Upstream
from kernels.registry import operations

ROOT = Path(__file__).parents[2]
SMALL = 4 << 20


def test_every_problem_is_named_once_and_belongs_to_an_operation() -> None:
    found = list(problems())
    names = [problem.name for problem in found]
    assert len(set(names)) == len(names)
    assert {problem.operation for problem in found} <= set(operations())


def test_every_module_of_problems_is_named_after_an_operations_folder() -> None:
    modules = {path.stem for path in (ROOT / "benchmarks" / "problems").glob("[!_]*.py")}
    folders = {path.parent.name for path in (ROOT / "kernels").glob("*/kernel.py")}
    assert modules <= folders


@pytest.mark.parametrize("problem", [p for p in problems() if p.moved < SMALL], ids=lambda p: p.name)
def test_the_same_seed_builds_the_same_tensors(problem: Problem) -> None:
    first, second = (problem.build(torch.Generator().manual_seed(7)) for _ in range(2))
    assert set(problem.outputs) <= set(first)
    for name, value in first.items():
        if isinstance(value, torch.Tensor) and name not in problem.outputs:
            assert torch.equal(value, second[name]), name


def test_an_interpreter_without_torch_is_reported(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    interpreter.chmod(0o755)
    upstream = Upstream(str(interpreter), None)
    try:
        answer = upstream.time(next(iter(problems())))
    finally:
        upstream.close()
    assert answer == {"error": "its process ended, status 1"}


def test_options_choose_problems() -> None:
    options = command.parsed(["--operation", "per_token_group_quant", "--size", "T=1024"])
    assert options.operation == ["per_token_group_quant"]
    assert options.size == "T=1024"
    with pytest.raises(SystemExit):
        command.parsed(["--operation", "unknown"])


@pytest.mark.gpu
def test_a_side_that_writes_nothing_is_found(compiled: None) -> None:
    from benchmarks import timing

    problem = next(iter(problems()))
    with pytest.raises(timing.Unwritten):
        timing.written(problem, lambda _: None)
    means = timing.written(problem, problem.ours())
    assert all(mean > 0 for mean in means)


@pytest.mark.gpu
def test_a_problem_is_timed(compiled: None) -> None:
    from benchmarks.timing import Clock

    problem = replace(next(iter(problems())), upstream=None)
    clock = Clock()
    timing = clock.time(problem, problem.ours())
    assert 0 < clock.launch() < timing.device < 1000
