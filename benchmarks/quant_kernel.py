"""Bandwidth of per_token_group_quant on this GPU, beside a device copy and, where importable, upstream's.

    python benchmarks/quant_kernel.py

bfloat16 rows of 7168, groups of 128, fp8 codes; median of triton.testing.do_bench, which flushes the L2 cache
between runs. Bytes are those that must move: input read once, codes and scales written once.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec

import torch
import triton
from triton.testing import do_bench

from kernels.per_token_group_quant.kernel import launch

HIDDEN, GROUP_SIZE = 7168, 128
GROUPS = HIDDEN // GROUP_SIZE
TOKENS = (1, 128, 1024, 8192, 65_536)
COPY_BYTES = 2 << 30  # read and written each: far beyond any cache
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
class Row:
    """One size: microseconds of each kernel; `upstream` None where it is not importable."""

    layout: str
    tokens: int
    bytes: int
    ours: float
    upstream: float | None


def main() -> int:
    if not torch.cuda.is_available():
        print("quant_kernel: no CUDA device, nothing measured")
        return 0
    copy = copy_bandwidth()
    device = torch.cuda.get_device_properties()
    print(
        f"{device.name}, {device.multi_processor_count} multiprocessors, Python {platform.python_version()}"
    )
    print(f"torch {torch.__version__}, triton {triton.__version__}, {upstream_version()}")
    print(f"device copy of 2 GiB: {copy:.0f} GB/s, bytes read and written\n")
    print("| scales | tokens | µs | GB/s | of the copy | upstream µs | upstream GB/s | ours / upstream |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in measure():
        rate = row.bytes / row.ours / 1e3
        cells = [row.layout, str(row.tokens), f"{row.ours:.2f}", f"{rate:.0f}", f"{rate / copy:.3f}"]
        if row.upstream is None:
            cells += ["–", "–", "–"]
        else:
            cells += [
                f"{row.upstream:.2f}",
                f"{row.bytes / row.upstream / 1e3:.0f}",
                f"{row.upstream / row.ours:.3f}",
            ]
        print(f"| {' | '.join(cells)} |")
    return 0


def measure() -> Iterator[Row]:
    """Each layout at each number of tokens, on random inputs."""
    upstream = upstream_kernel()
    for layout in LAYOUTS:
        for tokens in TOKENS:
            values = torch.randn(tokens, HIDDEN, device="cuda").to(torch.bfloat16)
            codes = torch.empty(tokens, HIDDEN, dtype=torch.float8_e4m3fn, device="cuda")
            scales = layout.scales(tokens)

            def run(
                quantize: Quantize,
                values: torch.Tensor = values,
                codes: torch.Tensor = codes,
                scales: torch.Tensor = scales,
                packed: bool = layout.packed,
            ) -> float:
                return microseconds(lambda: quantize(values, codes, scales, GROUP_SIZE, scale_ue8m0=packed))

            moved = values.nbytes + codes.nbytes + scales.numel() * scales.itemsize
            yield Row(layout.name, tokens, moved, run(launch), run(upstream) if upstream else None)


def microseconds(function: Callable[[], object]) -> float:
    """Median time of one call."""
    return float(do_bench(function, warmup=50, rep=300, return_mode="median")) * 1e3


def copy_bandwidth() -> float:
    """GB/s of a device-to-device copy of random data, bytes read plus bytes written."""
    source = torch.randint(256, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / microseconds(lambda: target.copy_(source)) / 1e3


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
