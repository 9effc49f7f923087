"""The process in upstream's interpreter: started when it is first asked, again after it ended, one call at a
time.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import IO, Any, Literal, get_args

from app.settings import PREFIX

Ending = Literal[
    "returned", "raised", "unlaunched", "crashed", "timed-out", "out-of-memory", "unavailable", "not-run"
]

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent.parent

BOOTSTRAP = """\
import sys
sys.path.insert(0, {folder!r})
from guest.main import main
sys.path.remove({folder!r})
{before}
main()
"""
"""Where upstream's names come first: this project's folder, with its own `kernels`, is on no path there."""

START_LIMIT = 120.0
"""Seconds the process may take to import torch and say who it is."""

ADDRESS_SPACE = 16 << 30
"""Bytes of address space of a process without a GPU: torch's libraries and a compiler map several GiB."""

MOST_ANSWERED = 256 << 20
"""Bytes of one answer; those with every element of what was written are the largest."""

ENDING = 5.0
"""Seconds that a process which was killed may take to be gone."""

UNINTELLIGIBLE = "what it answered is no answer to this question"

SPOKEN = 2000
"""Bytes of what the process last wrote to its standard error that are told where it ended."""


@dataclass(frozen=True, slots=True)
class Host:
    """Who answers.

    device     its GPU; None where it has none, and calls are stated instead of run
    packages   distribution → version, of the modules that may be called
    """

    python: str
    torch: str
    cuda: str | None
    device: str | None
    packages: dict[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a call of upstream's function.

    ending         `unlaunched`: its checks pass and no kernel ran, for there is no GPU; `unavailable`: the
                   interpreter lacks what the call needs
    detail         one sentence, where it neither returned nor raised
    error_class    of what it raised, qualified unless Python's own
    frames         (file, line, function) of the innermost calls, the innermost last
    outputs        form of each returned tensor, and how many elements are zero or no number
    outside        memory that it wrote and must not have, a sentence each
    kept           what it returned and wrote, where the question asked to keep it
    seconds        for which its process was at the call, however that ended; not those of the process's start
    """

    ending: Ending
    detail: str = ""
    error_class: str = ""
    message: str = ""
    frames: tuple[tuple[str, int, str], ...] = ()
    milliseconds: float | None = None
    outputs: tuple[dict[str, Any], ...] = ()
    outside: tuple[str, ...] = ()
    kept: dict[str, Any] = field(default_factory=dict)
    host: Host | None = field(default=None, compare=False)
    seconds: float = field(default=0.0, compare=False)


class Unanswered(Exception):
    """The process ended, or did not answer in time; `ending` says which."""

    def __init__(self, ending: Ending, detail: str) -> None:
        super().__init__(detail)
        self.ending: Ending = ending


class Oracle:
    """Upstream's functions in `python`; threads may share it, calls wait for each other.

    modules    prefixes of the modules that may be called
    limit      seconds that a call may take, the compilation of its kernel included
    memory     bytes that it may take on the GPU
    launches   false: state tensors instead of running kernels, though there is a GPU
    before     statements of the caller's own that the process runs first
    """

    def __init__(
        self,
        python: str,
        modules: Sequence[str],
        *,
        limit: float,
        memory: int,
        launches: bool = True,
        before: str = "",
    ) -> None:
        self._command = [python, "-c", BOOTSTRAP.format(folder=str(PACKAGE), before=before)]
        self._setup = {
            "modules": list(modules),
            "launches": launches,
            "memory": memory,
            "address_space": ADDRESS_SPACE + memory,
        }
        self._launches = launches
        self._limit = limit
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._host: Host | None = None

    def ask(self, job: dict[str, Any]) -> Answer:
        """What upstream says of a call; never raises for what happens there."""
        with self._lock:
            began = None
            try:
                if self._process is None:
                    self._start()
                began = monotonic()
                told = self._exchange(job, self._limit)
                answer = _understood(told, self._host)
                ended = bool(told.get("lost", False))
            except Unanswered as error:
                answer, ended = Answer(error.ending, str(error), host=self._host), True
            seconds = 0.0 if began is None else monotonic() - began
            if ended:
                self._end()
        return replace(answer, seconds=seconds)

    def interrupt(self) -> None:
        """End the process, and with it the call that another thread waits for."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                cwd=tempfile.gettempdir(),
                env=dict(_environment(self._launches)),
            )
        except OSError as error:
            raise Unanswered("unavailable", f"its interpreter cannot be started: {error}") from None
        try:
            told = self._exchange(self._setup, START_LIMIT)
            self._host = Host(**told)
        except Unanswered as error:
            raise Unanswered("unavailable", f"its interpreter cannot serve: {error}") from None
        except TypeError:
            raise Unanswered("unavailable", f"its interpreter cannot serve: {UNINTELLIGIBLE}") from None

    def _exchange(self, message: dict[str, Any], limit: float) -> dict[str, Any]:
        """Send a line, receive a line; raises Unanswered."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        unsent = memoryview(json.dumps(message).encode() + b"\n")
        received = bytearray()
        deadline = monotonic() + limit
        with selectors.DefaultSelector() as selector:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
            selector.register(process.stdout, selectors.EVENT_READ)
            while not received.endswith(b"\n"):
                left = deadline - monotonic()
                ready = {key.fileobj for key, _ in selector.select(left)} if left > 0 else set()
                if not ready:
                    raise Unanswered("timed-out", f"it took longer than {limit:g} s and was ended")
                if process.stdin in ready:
                    unsent = unsent[self._sent(process, unsent) :]
                    if not unsent:
                        selector.unregister(process.stdin)
                if process.stdout in ready:
                    part = os.read(process.stdout.fileno(), 1 << 16)
                    if not part:
                        raise Unanswered("crashed", self._how_it_ended(process))
                    received += part
                if len(received) > MOST_ANSWERED:
                    raise Unanswered(
                        "crashed", f"it answered more than {MOST_ANSWERED:,} bytes and was ended"
                    )
        try:
            answer = json.loads(received)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise Unanswered("crashed", UNINTELLIGIBLE)
        return answer

    def _sent(self, process: subprocess.Popen[bytes], unsent: memoryview) -> int:
        """How many bytes its standard input took."""
        assert process.stdin is not None
        try:
            return os.write(process.stdin.fileno(), unsent[: 1 << 16])
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            raise Unanswered("crashed", self._how_it_ended(process)) from None

    def _how_it_ended(self, process: subprocess.Popen[bytes]) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        status = process.returncode
        ended = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        assert self._errors is not None
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - SPOKEN))
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return f"its process ended with {ended}" + (f": {lines[-1]}" if lines else "")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ENDING)
            for pipe in (process.stdin, process.stdout):  # a process that it started may hold the other ends
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None


def _understood(told: dict[str, Any], host: Host | None) -> Answer:
    """The answer that the process gave; raises Unanswered for one that is none."""
    try:
        ending = told["ending"]
        if ending not in get_args(Ending):
            raise ValueError(ending)
        return Answer(
            ending,
            told.get("detail", ""),
            told.get("class", ""),
            told.get("message", ""),
            tuple((path, line, function) for path, line, function in told.get("frames", ())),
            told.get("milliseconds"),
            tuple(told.get("outputs", ())),
            tuple(told.get("outside", ())),
            {name: told[name] for name in ("returned", "written") if name in told},
            host,
        )
    except (KeyError, TypeError, ValueError):
        raise Unanswered("crashed", UNINTELLIGIBLE) from None


def _environment(launches: bool) -> Iterator[tuple[str, str]]:
    """Ours without our settings, which may hold keys, and without this project on Python's path."""
    for name, value in os.environ.items():
        if name == "PYTHONPATH":
            folders = [folder for folder in value.split(os.pathsep) if folder]
            yield name, os.pathsep.join(each for each in folders if Path(each).resolve() != ROOT)
        elif not name.startswith(PREFIX) and name != "VIRTUAL_ENV":
            yield name, value
    if not launches:
        yield "CUDA_VISIBLE_DEVICES", ""
