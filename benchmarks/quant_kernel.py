"""Bandwidth of per_token_group_quant on this GPU, beside a device copy and, where importable, upstream's.

    python benchmarks/quant_kernel.py

bfloat16 rows of 7168, groups of 128, fp8 codes. Device time is the median between two events around one
call, with the L2 cache flushed before it and the device kept busy while the host queues, so that it holds no
launch gap. Host time is what one call takes the caller. Bytes are those that must move: input read once,
codes and scales written once.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from statistics import median
from time import perf_counter

import torch
import triton

from kernels.per_token_group_quant.kernel import launch

HIDDEN, GROUP_SIZE = 7168, 128
GROUPS = HIDDEN // GROUP_SIZE
TOKENS = (1, 128, 1024, 8192, 65_536)
COPY_BYTES = 2 << 30  # read and written each: far beyond any cache
FLUSH_BYTES = 256 << 20
REPEATS = 100
HEAD_START_COPIES = 20  # about a millisecond each on an H200: the host queues all repeats meanwhile
UPSTREAM = "sglang.kernels.ops.quantization.per_token_group_quant"

Quantize = Callable[..., object]


@dataclass(frozen=True)
class Layout:
    """Kind of scales: `words` elements of `dtype` a row."""

    name: str
    dtype: torch.dtype
    words: int
    column_major: bool

    def scales(self, tokens: int) -> torch.Tensor:
        strides = (1, -(-tokens // 4) * 4) if self.column_major else (self.words, 1)
        return torch.empty_strided((tokens, self.words), strides, dtype=self.dtype, device="cuda")

    @property
    def packed(self) -> bool:
        return self.dtype is torch.int32


LAYOUTS = (
    Layout("float32, row-major", torch.float32, GROUPS, column_major=False),
    Layout("UE8M0, column-major", torch.int32, -(-GROUPS // 4), column_major=True),
)


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call: on the device, and for the host that queues it."""

    device: float
    host: float


def main() -> int:
    if not torch.cuda.is_available():
        print("quant_kernel: no CUDA device, nothing measured")
        return 0
    source = torch.randint(256, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
    clock = Clock(source)
    copied = clock.time(lambda: clock.target.copy_(source)).device
    copy = 2 * COPY_BYTES / copied / 1e3
    name = torch.cuda.get_device_name()
    print(
        f"{name}, Python {platform.python_version()}, torch {torch.__version__}, triton {triton.__version__}"
    )
    print(f"{upstream_version()}; device copy of 2 GiB: {copy:.0f} GB/s, bytes read and written\n")
    print("| scales | tokens | µs | GB/s | of the copy | host µs | upstream µs | host µs | upstream / ours |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for layout, tokens, moved, ours, upstreams in measure(clock):
        rate = moved / ours.device / 1e3
        cells = [f"{ours.device:.2f}", f"{rate:.0f}", f"{rate / copy:.3f}", f"{ours.host:.0f}"]
        if upstreams is not None:
            ratio = upstreams.device / ours.device
            cells += [f"{upstreams.device:.2f}", f"{upstreams.host:.0f}", f"{ratio:.3f}"]
        else:
            cells += ["–", "–", "–"]
        print("|", " | ".join([layout.name, str(tokens), *cells]), "|")
    return 0


def measure(clock: Clock) -> Iterator[tuple[Layout, int, int, Timing, Timing | None]]:
    """Layout, tokens, bytes that must move, our timing, upstream's: each size on random input."""
    upstream = upstream_kernel()
    for layout in LAYOUTS:
        for tokens in TOKENS:
            values = torch.randn(tokens, HIDDEN, device="cuda").to(torch.bfloat16)
            codes = torch.empty(tokens, HIDDEN, dtype=torch.float8_e4m3fn, device="cuda")
            scales = layout.scales(tokens)
            ours, upstreams = (
                clock.time(partial(quantize, values, codes, scales, GROUP_SIZE, scale_ue8m0=layout.packed))
                if quantize
                else None
                for quantize in (launch, upstream)
            )
            assert ours is not None
            moved = values.nbytes + codes.nbytes + scales.numel() * scales.itemsize
            yield layout, tokens, moved, ours, upstreams


class Clock:
    """Times calls on the device; holds the buffers that keep it busy and flush its cache."""

    def __init__(self, source: torch.Tensor) -> None:
        self.source = source
        self.target = torch.empty_like(source)
        self.flushed = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def time(self, function: Callable[[], object]) -> Timing:
        """Medians over REPEATS calls, after some that compile and warm up."""
        for _ in range(5):
            function()
        torch.cuda.synchronize()
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPEATS)]
        host = []
        for _ in range(HEAD_START_COPIES):
            self.target.copy_(self.source)
        for start, end in pairs:
            self.flushed.zero_()
            start.record()
            began = perf_counter()
            function()
            host.append(perf_counter() - began)
            end.record()
        torch.cuda.synchronize()
        device = median(start.elapsed_time(end) for start, end in pairs)
        return Timing(device * 1e3, median(host) * 1e6)


def upstream_kernel() -> Quantize | None:
    """Upstream's function, if its package is on the path."""
    if find_spec("sglang") is None:
        return None
    from importlib import import_module

    function: Quantize = import_module(UPSTREAM).per_token_group_quant
    return function


def upstream_version() -> str:
    if find_spec("sglang") is None:
        return "upstream not importable"
    try:
        return f"sglang {version('sglang')}"
    except ModuleNotFoundError:
        return "sglang without package metadata"


if __name__ == "__main__":
    sys.exit(main())
