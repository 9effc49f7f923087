"""Timing on a CUDA device: what it can do at best, and how long one side of a problem takes.

Runs in upstream's interpreter too, so it imports nothing of this project but the problems.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle, pairwise
from statistics import median
from time import perf_counter
from typing import Any

import torch

from benchmarks.problems import Function, Problem

COPY_BYTES = 2 << 30  # read and written each: far beyond any cache
COPIES = 20
CACHES = 4  # input sets cover this many times the L2 cache, as far as MOST_SETS allows
FEWEST_SETS, MOST_SETS = 2, 32
MEMORY_SHARE = 0.4  # of the free memory, for all sets together
REPLAYS = (10, 100)
REPLAY_SECONDS = 0.1
COLD_CALLS = 60
HEAD_START_COPIES = 12  # about a millisecond each on an H200: the host queues calls meanwhile
POISONS = (0xA5, 0x5A)
MATRIX_SIZE = 8192
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Call = Callable[[], object]


class Unwritten(Exception):
    """A call left poison in an output, or its outputs depend on what they held before."""


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call.

    device   in a captured graph of one call for each input set, so that no launch gap counts
    cold     alone between two events, after the L2 cache was flushed; holds about two microseconds of launch
    host     what queuing it takes the caller
    means    mean magnitude of each output, to compare sides by
    """

    device: float
    cold: float
    host: float
    means: Sequence[float]


class Clock:
    """Times problems on the current device; holds buffers that keep it busy and flush its cache."""

    def __init__(self) -> None:
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        self.cache = cache
        self._matrix_rates: dict[str, float] = {}
        self.source, self.target = torch.zeros(2, COPY_BYTES, dtype=torch.uint8, device="cuda")
        self.flushed = torch.empty(CACHES * cache, dtype=torch.uint8, device="cuda")

    def copy_rate(self) -> float:
        """Bytes read and written a second by a device copy of COPY_BYTES.

        Not in a graph, where a copy is left to the copy engines, which are slower than a kernel.
        """
        events = [torch.cuda.Event(enable_timing=True) for _ in range(COPIES + 1)]
        for event in events:
            self.target.copy_(self.source)
            event.record()
        torch.cuda.synchronize()
        taken = median(start.elapsed_time(end) for start, end in pairwise(events))
        return 2 * COPY_BYTES / (taken * 1e-3)

    def matrix_rate(self, dtype: str) -> float:
        """Operations a second of torch's product of large square matrices in an element type."""
        if dtype not in self._matrix_rates:
            with released():
                a, b = torch.randn(2, MATRIX_SIZE, MATRIX_SIZE, device="cuda").to(getattr(torch, dtype))
                taken = in_graph([lambda: a @ b])
            self._matrix_rates[dtype] = 2 * MATRIX_SIZE**3 / (taken * 1e-6)
        return self._matrix_rates[dtype]

    def launch(self) -> float:
        """Microseconds of an empty kernel in a captured graph: below this nothing gets."""
        return in_graph([lambda: torch.cuda._sleep(0)] * MOST_SETS)

    def time(self, problem: Problem, function: Function) -> Timing:
        """Time one side. Raises Unwritten when it does not write its outputs."""
        with released():
            means = written(problem, function)
            calls = [partial(function, arguments) for arguments in self._sets(problem)]
            for call in calls:
                call()
            device = in_graph(calls)
            cold, host = self._alone(calls)
            return Timing(device, cold, host, means)

    def _sets(self, problem: Problem) -> Iterator[dict[str, Any]]:
        """Arguments from different seeds."""
        before, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
        yield arguments_of(problem, 0)
        each = max(torch.cuda.memory_allocated() - before, 1)
        wanted = min(-(-CACHES * self.cache // problem.moved), MOST_SETS, int(MEMORY_SHARE * free // each))
        for seed in range(1, max(wanted, FEWEST_SETS)):
            yield arguments_of(problem, seed)

    def _alone(self, calls: Sequence[Call]) -> tuple[float, float]:
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(COLD_CALLS)]
        host = []
        for _ in range(HEAD_START_COPIES):
            self.target.copy_(self.source)
        for call, (start, end) in zip(cycle(calls), pairs, strict=False):
            self.flushed.zero_()
            start.record()
            began = perf_counter()
            call()
            host.append(perf_counter() - began)
            end.record()
        torch.cuda.synchronize()
        return median(start.elapsed_time(end) for start, end in pairs) * 1e3, median(host) * 1e6


def in_graph(calls: Sequence[Call]) -> float:
    """Microseconds of one call: the median over replays of a graph that holds them all."""
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()  # what the calls read was written on another stream
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    graph.replay()
    torch.cuda.synchronize()
    first = replayed(graph, 2)[-1]
    times = replayed(graph, int(min(max(REPLAY_SECONDS / (first * 1e-3), REPLAYS[0]), REPLAYS[1])))
    return median(times) / len(calls) * 1e3


def replayed(graph: torch.cuda.CUDAGraph, times: int) -> list[float]:
    """Milliseconds of each replay."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairwise(events)]


def arguments_of(problem: Problem, seed: int, poison: int = POISONS[0]) -> dict[str, Any]:
    """The problem's arguments on the current device, its outputs full of poison bytes."""
    arguments = problem.build(torch.Generator("cuda").manual_seed(seed))
    for name in problem.outputs:
        storage = arguments[name].untyped_storage()
        torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage).fill_(poison)
    return arguments


def written(problem: Problem, function: Function) -> list[float]:
    """Mean magnitudes of the outputs. Raises Unwritten where they depend on the bytes they held before."""
    first, second = (
        outputs(problem, arguments, function(arguments))
        for arguments in (arguments_of(problem, 0, poison) for poison in POISONS)
    )
    for name, output in first.items():
        if not torch.equal(output.view(BITS[output.itemsize]), second[name].view(BITS[output.itemsize])):
            raise Unwritten(f"{problem.name}: {name} depends on what it held before the call")
    return [output.to(torch.float32).abs().mean(dtype=torch.float64).item() for output in first.values()]


def outputs(problem: Problem, arguments: Mapping[str, Any], returned: object) -> dict[str, torch.Tensor]:
    """The tensors that a call wrote."""
    if problem.outputs:
        return {name: arguments[name] for name in problem.outputs}
    tensors = returned if isinstance(returned, (tuple, list)) else (returned,)
    return {str(place): tensor for place, tensor in enumerate(tensors) if isinstance(tensor, torch.Tensor)}


@contextmanager
def released() -> Iterator[None]:
    """Give the memory of a measurement back: another process needs it next."""
    try:
        yield
    finally:
        gc.collect()
        torch.cuda.empty_cache()
