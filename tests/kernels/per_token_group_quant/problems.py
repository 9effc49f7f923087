"""Problems for the reference and the kernel: inputs, and outputs inside larger buffers full of poison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

FP8, INT8 = torch.float8_e4m3fn, torch.int8
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

POISON = 0xA5  # as float32 -2.87e-16, as e4m3 -0.203: neither value nor zero


@dataclass(frozen=True)
class Problem:
    """One call. `counts`, valid rows of each expert, make it masked; gaps, in elements, make strided rows."""

    rows: int
    width: int
    dtype: torch.dtype = BF16
    output: torch.dtype = FP8
    group_size: int = 128
    ue8m0: bool = False
    column_major: bool = False
    silu: bool = False
    mode: str = "legacy"
    counts: tuple[int, ...] | None = None
    count_dtype: torch.dtype = torch.int32
    input_gap: int = 0
    code_gap: int = 0
    scale_gap: int = 0

    @property
    def groups(self) -> int:
        return self.width // self.group_size

    @property
    def scales(self) -> int:
        """Elements of output_s a row."""
        return -(-self.groups // 4) if self.ue8m0 else self.groups

    @property
    def options(self) -> dict[str, Any]:
        return {
            "scale_ue8m0": self.ue8m0,
            "fuse_silu_and_mul": self.silu,
            "silu_and_mul_mode": self.mode,
        }

    def __str__(self) -> str:
        changed = [
            f"{name}={getattr(value, 'name', value)}".replace("torch.", "")
            for name, value in vars(self).items()
            if name not in ("rows", "width") and value != getattr(Problem(1, 1), name)
        ]
        return " ".join([f"{self.rows}x{self.width}", *changed])


@dataclass(frozen=True)
class Buffers:
    """Everything a call touches: views into buffers whose other bytes must stay POISON."""

    input: Tensor
    output_q: Tensor
    output_s: Tensor
    masked_m: Tensor | None
    q_buffer: Tensor
    s_buffer: Tensor

    def written(self) -> Tensor:
        """Which rows a correct call writes."""
        shape = self.output_q.shape[:-1]
        if self.masked_m is None:
            return torch.ones(shape, dtype=torch.bool, device=self.input.device)
        return torch.arange(shape[-1], device=self.input.device) < self.masked_m.unsqueeze(-1)

    def codes(self) -> Tensor:
        """Bytes of output_q."""
        return self.output_q.view(torch.uint8)

    def outside(self) -> tuple[Tensor, Tensor]:
        """Copies of both buffers, the views' elements set to 0: what is left nobody may touch."""
        copies = []
        for buffer, view in ((self.q_buffer, self.codes()), (self.s_buffer, self.output_s)):
            copy = buffer.clone()
            same = copy.view(view.dtype).as_strided(view.shape, view.stride(), view.storage_offset())
            same.zero_()
            copies.append(copy)
        return copies[0], copies[1]


def build(problem: Problem, values: Tensor) -> Buffers:
    """Poisoned outputs and strided input for `values`, […, K·H], on their device."""
    leading = (len(problem.counts),) if problem.counts is not None else ()
    device = values.device
    width = values.shape[-1]
    around = torch.full(
        (*leading, problem.rows, width + problem.input_gap), torch.nan, dtype=problem.dtype, device=device
    )
    given = around[..., :width]
    given.copy_(values)

    def poisoned(size: int) -> Tensor:
        return torch.full((size,), POISON, dtype=torch.uint8, device=device)

    experts = leading[0] if leading else 1
    row = problem.width + problem.code_gap
    q_buffer = poisoned(experts * problem.rows * row + 16)
    strides = (problem.rows * row, row, 1)[-len(leading) - 2 :]
    shape = (*leading, problem.rows, problem.width)
    codes = q_buffer.as_strided(shape, strides, 0).view(problem.output)

    if problem.column_major:
        group_stride = -(-problem.rows // 4) * 4 + problem.scale_gap
        span = group_stride * max(1, problem.scales)
        scale_strides = (span, 1, group_stride)
    else:
        row_stride = max(1, problem.scales) + problem.scale_gap
        span = problem.rows * row_stride
        scale_strides = (span, row_stride, 1)
    s_buffer = poisoned(4 * (experts * span + 4))
    scales = s_buffer.view(torch.int32 if problem.ue8m0 else torch.float32).as_strided(
        (*leading, problem.rows, problem.scales), scale_strides[-len(leading) - 2 :], 0
    )
    counts = (
        torch.tensor(problem.counts, dtype=problem.count_dtype, device=device)
        if problem.counts is not None
        else None
    )
    return Buffers(given, codes, scales, counts, q_buffer, s_buffer)


def random_values(problem: Problem, seed: int, device: str = "cpu") -> Tensor:
    """Normal values whose groups differ in magnitude by powers of two, as activations with outliers do."""
    generator = torch.Generator(device).manual_seed(seed)
    leading = (len(problem.counts),) if problem.counts is not None else ()
    shape = (*leading, problem.rows, problem.width * (2 if problem.silu else 1))
    values = torch.randn(shape, generator=generator, device=device) * 3
    powers = torch.randint(-4, 5, (*shape[:-1], 1), generator=generator, device=device)
    return (values * 2.0**powers).to(problem.dtype)


Quantize = Callable[..., None]


def run(function: Quantize, problem: Problem, values: Tensor) -> Buffers:
    """The buffers after a call of the reference or the kernel's launcher."""
    buffers = build(problem, values)
    function(
        buffers.input,
        buffers.output_q,
        buffers.output_s,
        problem.group_size,
        masked_m=buffers.masked_m,
        **problem.options,
    )
    return buffers


@dataclass(frozen=True)
class Tolerance:
    """Largest share of codes and scales that may differ, and by how much each.

    A code may be off by `steps` neighbours, a float32 scale by `scale_error` of itself, an exponent by one.
    """

    codes: float = 0.0
    steps: int = 1
    scales: float = 0.0
    scale_error: float = 0.0


EXACT = Tolerance()


def compare(actual: Buffers, expected: Buffers, tolerance: Tolerance) -> None:
    """Assert that the kernel wrote what the reference wrote, and that nothing else changed."""
    for got, want in zip(actual.outside(), expected.outside(), strict=True):
        assert torch.equal(got, want), "bytes outside the outputs changed"
    written = expected.written()
    skipped = ~written
    for got, want in ((actual.codes(), expected.codes()), (actual.output_s, expected.output_s)):
        assert torch.equal(got[skipped].view(torch.uint8), want[skipped].view(torch.uint8)), (
            "a masked row changed"
        )

    if written.any():
        _compare_codes(actual, expected, written, tolerance)
        _compare_scales(actual.output_s[written], expected.output_s[written], tolerance)


def _compare_codes(actual: Buffers, expected: Buffers, written: Tensor, tolerance: Tolerance) -> None:
    is_fp8 = expected.output_q.dtype is FP8
    got, want = (ordered(buffers.codes()[written], is_fp8=is_fp8) for buffers in (actual, expected))
    steps = (got - want).abs()
    if steps.numel() == 0:
        return
    allowed = tolerance.steps if tolerance.codes else 0
    assert int(steps.max()) <= allowed, f"a code is off by {int(steps.max())} steps"
    share = (steps != 0).float().mean().item()
    assert share <= tolerance.codes, f"{share:.3%} of the codes differ"


def _compare_scales(got: Tensor, want: Tensor, tolerance: Tolerance) -> None:
    if got.numel() == 0:
        return
    packed = not want.is_floating_point()
    if packed:
        got, want = (scales.contiguous().view(torch.uint8).int() for scales in (got, want))
    error = torch.where(got == want, 0, (got - want).abs())  # equal infinities differ by NaN
    share = (error != 0).float().mean().item()
    assert share <= tolerance.scales, f"{share:.3%} of the scales differ"
    allowed = 1 if packed else tolerance.scale_error * want.abs()
    assert bool(((error == 0) | (error <= allowed)).all()), f"a scale is off by {error.max().item()}"


def ordered(codes: Tensor, *, is_fp8: bool) -> Tensor:
    """Codes as integers in the order of their values: neighbours differ by 1."""
    if not is_fp8:
        return codes.view(torch.int8).to(torch.int32)
    magnitude = (codes & 0x7F).to(torch.int32)
    return torch.where(codes >= 0x80, -magnitude, magnitude)


def golden_input(dtype: torch.dtype, device: str = "cpu") -> Tensor:
    """[5, 768] exact in every input type: (((131t + 37j) mod 257) - 128) / 16 · 2^(j div 128 - 3)."""
    t = torch.arange(5, device=device)[:, None]
    j = torch.arange(768, device=device)[None, :]
    return ((((131 * t + 37 * j) % 257) - 128) / 16 * 2.0 ** (j // 128 - 3)).to(dtype)


VALID = [
    Problem(4, 256),
    Problem(5, 768, ue8m0=True, column_major=True),
    Problem(17, 640, FP16, ue8m0=True),
    Problem(3, 512, FP32, column_major=True),
    Problem(9, 1024, output=INT8, group_size=256),
    Problem(6, 256, silu=True),
    Problem(16, 512, ue8m0=True, column_major=True, counts=(5, 0, 16)),
    Problem(4, 256, input_gap=256),
    Problem(0, 256),
    Problem(2, 64, group_size=16, ue8m0=True),
]
"""The small valid configurations V1 to V10."""

ODD = [
    Problem(1, 128),
    Problem(1, 128, ue8m0=True, column_major=True),
    Problem(3, 80, FP32, group_size=16, code_gap=16),
    Problem(3, 160, FP16, group_size=32, ue8m0=True, column_major=True, scale_gap=3),
    Problem(127, 320, group_size=64, column_major=True, scale_gap=1),
    Problem(127, 320, group_size=64, ue8m0=True, scale_gap=3, code_gap=64, input_gap=16),
    Problem(7, 768, FP32, ue8m0=True, group_size=256),
    Problem(5, 640, FP16, output=INT8, column_major=True, code_gap=32),
    Problem(3, 256, FP32, output=INT8),
    Problem(3, 0),
]

MASKED = [
    Problem(5, 640, counts=(5, 0, 2), count_dtype=torch.int64),
    Problem(7, 256, FP16, counts=(3, 7), column_major=True, scale_gap=2, code_gap=16),
    Problem(3, 640, FP32, ue8m0=True, counts=(1, 3, 0), scale_gap=1),
    Problem(9, 256, output=INT8, counts=(0, 9), input_gap=32),
    Problem(8, 512, counts=()),
]

SILU = [
    Problem(5, 640, FP16, silu=True, ue8m0=True),
    Problem(7, 256, silu=True, output=INT8, column_major=True),
    Problem(7, 384, silu=True, mode="dense"),
    Problem(6, 512, silu=True, counts=(2, 6), ue8m0=True, column_major=True, input_gap=64),
]


def larger(problem: Problem, rows: int, groups: int) -> Problem:
    """The same layout and types at another size; counts keep their share of the rows."""
    counts = problem.counts
    if counts is not None:
        counts = tuple(count * rows // problem.rows for count in counts)
    return replace(problem, rows=rows, width=groups * problem.group_size, counts=counts)
