"""Upstream's side of `benchmarks.kernels`, in an interpreter that can import it.

That interpreter's own `kernels` distribution must stay visible there, so this repository comes last on its
path, and nothing of ours but `benchmarks` is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.problems import Problem, problems

ROOT = Path(__file__).resolve().parent.parent
BOOTSTRAP = (
    "import sys; sys.path = [*filter(None, sys.path), {root!r}]; "
    "from benchmarks.upstream import serve; serve()"
)


class Upstream:
    """A process that times upstream's functions on request, one problem after another.

    After an error it starts anew: an error on the device stays in its process.
    """

    def __init__(self, python: str, path: str | None) -> None:
        self.python, self.path = python, path
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        given = [self.path, os.environ.get("PYTHONPATH")]
        folders = [folder for each in given if each for folder in each.split(os.pathsep)]
        own = [str(Path(folder).resolve()) for folder in folders if Path(folder).resolve() != ROOT]
        return subprocess.Popen(
            [self.python, "-c", BOOTSTRAP.format(root=str(ROOT))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(own)},
        )

    def time(self, problem: Problem) -> Mapping[str, Any]:
        """The fields of its Timing, or `error`."""
        assert self.process.stdin is not None and self.process.stdout is not None  # noqa: PT018
        try:
            self.process.stdin.write(json.dumps(problem.name) + "\n")
            self.process.stdin.flush()
            answer: Mapping[str, Any] = json.loads(self.process.stdout.readline())
        except (BrokenPipeError, ValueError):
            answer = {"error": f"its process ended, status {self.process.wait()}"}
        if "error" in answer:
            self.close()
            self.process = self._start()
        return answer

    def close(self) -> None:
        """End the process."""
        try:
            self.process.communicate()
        except BrokenPipeError:
            self.process.wait()


def serve() -> None:
    """Answer a line of JSON, the problem's name, with a line of JSON: the timing, or why there is none."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what upstream prints must not come between the answers
    from benchmarks.timing import Clock

    clock = Clock()
    known = {problem.name: problem for problem in problems()}
    for line in sys.stdin:
        problem = known[json.loads(line)]
        try:
            assert problem.upstream is not None
            timing = clock.time(problem, problem.upstream())
        except Exception as error:  # noqa: BLE001 (whatever upstream raises is the answer)
            print(json.dumps({"error": one_line(error)}), file=answers)
        else:
            print(json.dumps({**vars(timing), "version": release()}), file=answers)


def one_line(error: Exception) -> str:
    """The error's class and first line."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def release() -> str:
    """Upstream's version, as far as it says."""
    try:
        return f"sglang {version('sglang')}"
    except PackageNotFoundError:
        return "sglang without package metadata"
