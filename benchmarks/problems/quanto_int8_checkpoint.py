"""The qint8 linear, beside what upstream does in torch: unpack the weight, scale it in place, multiply."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.problems import Arguments, Function, Problem, by_name

ROWS, COLUMNS = 4096, 4096
SIZES = [(torch.bfloat16, tokens) for tokens in (1, 16, 128, 1024, 8192)] + [
    (torch.float16, 16),
    (torch.float32, 16),
    (torch.float32, 256),
]


def build(generator: torch.Generator, *, tokens: int, dtype: torch.dtype) -> dict[str, Any]:
    """Normal activations, codes over their whole range, bfloat16 scales that make outputs of a few units."""
    device = generator.device
    scale = (torch.rand(ROWS, 1, generator=generator, device=device) + 0.5) * 2 / (73.6 * COLUMNS**0.5)
    return {
        "x": torch.randn(tokens, COLUMNS, generator=generator, device=device, dtype=dtype),
        "codes": torch.randint(-127, 128, (ROWS, COLUMNS), generator=generator, device=device).to(torch.int8),
        "scale": scale.to(torch.bfloat16),
    }


def ours() -> Function:
    """Our kernels, without the file in front of them."""
    from kernels.quanto_int8_checkpoint.launch import linear

    return by_name(linear)


def upstream() -> Function:
    """Upstream's arithmetic; its module imports more than a host with this benchmark has."""

    def call(arguments: Arguments) -> object:
        x, codes, scale = arguments["x"], arguments["codes"], arguments["scale"]
        weight = codes.to(x.dtype)
        weight.mul_(scale.to(x.dtype))
        return torch.nn.functional.linear(x, weight)

    return call


def _all() -> Iterator[Problem]:
    for dtype, tokens in SIZES:
        name = str(dtype).removeprefix("torch.")
        moved = dtype.itemsize * tokens * (ROWS + COLUMNS) + ROWS * (COLUMNS + 2)
        yield Problem(
            operation="quanto_int8_checkpoint",
            size=f"{name}, N=K={COLUMNS}, T={tokens}",
            build=partial(build, tokens=tokens, dtype=dtype),
            ours=ours,
            upstream=upstream,
            moved=moved,
            flops=2 * tokens * ROWS * COLUMNS,
            rate=name,
            upstream_package="torch",
        )


PROBLEMS = tuple(_all())
