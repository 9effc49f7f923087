"""One run of an operation: its function under watch, and what it wrote beside the reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from app.worker.messages import Output
from kernels.call import Call
from kernels.guarding import Allocating, Watch, unwritten
from kernels.registry import Operation
from kernels.running import Arguments, Runner, compare

MOST_LOOKED_THROUGH = 1 << 26
"""Elements of a tensor beyond which it is not searched for numbers that are none."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run gave.

    breaches   memory that it wrote and must not have, a sentence each
    remarks    what else is to be told of its numbers, a sentence each
    """

    milliseconds: float
    outputs: tuple[Output, ...]
    breaches: tuple[str, ...]
    remarks: tuple[str, ...]


def measure(
    operation: Operation,
    runner: Runner,
    call: Call,
    build: Callable[[], Arguments],
    emulated: Callable[[Arguments], AbstractContextManager[None]],
    *,
    cuda: bool,
) -> Measured:
    """Run the function on fresh arguments of `build`, then the reference on equal ones; raises what they do.

    What the function allocates is watched too: on a GPU in a first call, which also compiles the kernel, so
    that the measured one is as fast as any.
    """
    breaches: list[str] = []

    def watched(arguments: Arguments, *, allocations: bool) -> tuple[Any, float]:
        with ExitStack() as stack:
            stack.enter_context(emulated(arguments))
            allocating = stack.enter_context(Allocating()) if allocations else None
            watch = Watch(arguments, operation.outputs)
            _synchronise(cuda)
            started = time.perf_counter()
            returned = runner.function(**arguments)
            _synchronise(cuda)
            milliseconds = (time.perf_counter() - started) * 1e3
        found = list(watch.breaches())
        if allocating is not None:
            names = {each.data_ptr(): name for name, each in runner.outputs(arguments, returned).items()}
            found += allocating.breaches(names)
        breaches.extend(str(breach) for breach in found if str(breach) not in breaches)
        return returned, milliseconds

    if cuda and runner.implementation == "triton":
        watched(build(), allocations=True)
    arguments = build()
    returned, milliseconds = watched(arguments, allocations=not cuda)
    written = runner.outputs(arguments, returned)
    fresh = build()
    bad = {
        name: count
        for name, each in fresh.items()
        if name not in operation.outputs and (count := _not_finite(each))
    }
    with emulated(fresh):
        expected = runner.reference(fresh)
    remarks = [f"{count:,} elements of {name} were not written" for name, count in _missed(written, expected)]
    remarks += swallowed(bad, written)
    outputs = tuple(_output(runner, call, name, tensor, expected[name]) for name, tensor in written.items())
    return Measured(milliseconds, outputs, tuple(breaches), tuple(remarks))


def swallowed(bad: Mapping[str, int], written: Mapping[str, torch.Tensor]) -> list[str]:
    """A sentence where infinities or NaN went in, so many by argument, and none came out: they were turned
    into numbers.
    """
    if not bad or any(_not_finite(tensor) for tensor in written.values()):
        return []
    zeros = {name: count for name, each in written.items() if (count := _zeros(each))}
    went_in = ", ".join(f"{count:,} of {name}" for name, count in bad.items())
    came_out = ", ".join(f"{count:,} of {name}" for name, count in zeros.items())
    return [
        f"elements that are infinite or NaN went in ({went_in}) and none came out"
        + (f": they may be among the zeros ({came_out})" if came_out else "")
    ]


def _missed(
    written: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
) -> list[tuple[str, int]]:
    counted = [(name, unwritten(tensor, expected[name])) for name, tensor in written.items()]
    return [(name, count) for name, count in counted if count]


def _not_finite(value: Any) -> int:
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return 0
    if value.numel() > MOST_LOOKED_THROUGH or value.dtype is torch.float8_e8m0fnu:
        return 0
    return int((~value.to(torch.float32).isfinite()).sum())


def _zeros(tensor: torch.Tensor) -> int:
    if not tensor.dtype.is_floating_point or tensor.dtype is torch.float8_e8m0fnu:
        return 0
    return int((tensor.to(torch.float32) == 0).sum())


def _output(runner: Runner, call: Call, name: str, tensor: torch.Tensor, expected: torch.Tensor) -> Output:
    tolerance = runner.tolerance(name, call)
    found = compare(name, tensor, expected, tolerance)
    return Output(
        name,
        tuple(tensor.shape),
        str(tensor.dtype).removeprefix("torch."),
        found.max_abs_error,
        found.max_rel_error,
        found.mismatches,
        found.elements,
        found.within,
        tolerance.atol,
        tolerance.rtol,
        tolerance.share,
    )


def _synchronise(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()
