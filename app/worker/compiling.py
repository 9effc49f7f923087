"""What a call's kernels need of a GPU that no worker is: compiled for it in a process of its own.

A worker on a CPU interprets kernels, and a process that interprets them compiles none. The compiler needs no
device; it refuses what an architecture lacks with the words that a user of that GPU would see.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import sys
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from kernels.call import Call
from kernels.registry import Operation, folder_of, operations

MAX_KEPT = 256
"""Answers that are kept: a compilation depends on nothing but the call and the versions installed."""

MAX_TEXT = 2000
"""Characters of a compiler's refusal, from its end: the reason stands there."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """One kernel for one architecture.

    kind          cubin or hsaco; None where the compiler refuses
    refusal       the compiler's words
    shared_bytes  shared memory of a program
    shared_limit  what a program may have there
    """

    kernel: str
    target: str
    kind: str | None
    refusal: str | None
    shared_bytes: int | None
    shared_limit: int


class Uncompiled(RuntimeError):
    """Nothing was compiled; the message says why."""


class Compiler:
    """Compiles calls for architectures, one at a time."""

    def __init__(self, limit: float) -> None:
        """`limit`: seconds that one call's kernels may take."""
        self._limit = limit
        self._busy = asyncio.Semaphore(1)
        self._known: OrderedDict[Hashable, list[Compilation]] = OrderedDict()

    async def compiled(self, operation: Operation, call: Call) -> list[Compilation]:
        """The call's kernels for its target; raises Uncompiled."""
        if not compiles(operation):
            raise Uncompiled(f"{operation.name} has no kernel of ours to compile")
        key = (operation.name, call)
        async with self._busy:
            if key not in self._known:
                self._known[key] = await self._ask(operation, call)
                if len(self._known) > MAX_KEPT:
                    self._known.popitem(last=False)
        return self._known[key]

    async def _ask(self, operation: Operation, call: Call) -> list[Compilation]:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __spec__.name,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=os.environ | {"TRITON_INTERPRET": "0"},
        )
        try:
            async with asyncio.timeout(self._limit):
                said, _ = await child.communicate(pickle.dumps((operation.name, call)))
        except TimeoutError:
            raise Uncompiled(f"compiling took longer than {self._limit:g} s and was ended") from None
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        try:
            answer: dict[str, Any] = json.loads(said)
        except ValueError:
            raise Uncompiled(f"the compiler's process ended with status {child.returncode}") from None
        if "failure" in answer:
            raise Uncompiled(answer["failure"])
        return [Compilation(**each) for each in answer["compiled"]]


def compiles(operation: Operation) -> bool:
    """Whether the operation's folder says what its calls compile."""
    return find_spec(f"kernels.{folder_of(operation)}.compiling") is not None


def compile_call(operation: Operation, call: Call) -> list[Compilation]:
    """Compile a call's kernels for its target, in this process; raises Uncompiled."""
    from kernels.offline import SHARED_MEMORY, NotCompilable, compile_for, offline_name

    name = None if call.target is None else offline_name(call.target)
    if name is None:
        known = ", ".join(SHARED_MEMORY)
        raise Uncompiled(f"kernels are compiled here for {known}, not for {call.target}")
    module = import_module(f"kernels.{folder_of(operation)}.compiling")
    try:
        variants = list(module.variants(call, name))
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        raise Uncompiled(f"no kernel is chosen for such a call: {error}") from error
    found = []
    for kernel, variant in variants:
        limit = SHARED_MEMORY[name]
        try:
            made = compile_for(name, variant)
        except NotCompilable as error:
            found.append(Compilation(kernel, name, None, str(error)[-MAX_TEXT:], None, limit))
        else:
            found.append(Compilation(kernel, name, made.kind, None, made.shared_bytes, limit))
    return found


def main() -> None:
    """Answer the one request on standard input, which our own process wrote, on standard output."""
    name, call = pickle.load(sys.stdin.buffer)  # noqa: S301 (from our parent's pipe)
    out, sys.stdout = sys.stdout, sys.stderr  # compilers print
    try:
        answer: dict[str, Any] = {
            "compiled": [asdict(each) for each in compile_call(operations()[name], call)]
        }
    except Uncompiled as error:
        answer = {"failure": str(error)}
    json.dump(answer, out)


if __name__ == "__main__":
    main()
