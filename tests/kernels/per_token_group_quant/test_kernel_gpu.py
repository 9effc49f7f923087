"""The compiled kernel on the card: against the reference, measured facts, and upstream's own kernel."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType

import pytest
import torch

from kernels.per_token_group_quant import reference
from tests.kernels.per_token_group_quant.problems import (
    BF16,
    EXACT,
    FP8,
    FP16,
    FP32,
    INT8,
    MASKED,
    ODD,
    SILU,
    VALID,
    Buffers,
    Problem,
    Tolerance,
    build,
    compare,
    golden_input,
    larger,
    random_values,
    run,
)

pytestmark = pytest.mark.gpu

SMALL = [*VALID, *ODD, *MASKED, *SILU]
FEW_ELEMENTS = 100_000


@pytest.fixture(scope="module")
def kernel(compiled: None) -> ModuleType:
    from kernels.per_token_group_quant import kernel

    return kernel


def fresh_seed() -> int:
    """Another input every run; a failing one is in the report, as a local of the test."""
    return secrets.randbelow(2**31)


def tolerance(problem: Problem) -> Tolerance:
    """Scales and UE8M0 codes are exact; the approximate quotient moves some codes of float32 scales by one.

    SiLU's fast exponential may move the product's rounding, and with it a scale by one unit of the input's
    type, or an exponent by one, which shifts that group's codes by an octave of eight. The shares hold for
    many elements; of few, one group may be all that differs.
    """
    few = problem.rows * problem.width < FEW_ELEMENTS
    if problem.silu:
        share = 0.1 if few else 0.01
        return Tolerance(codes=share, steps=8, scales=share, scale_error=2.0**-7)
    if problem.ue8m0:
        return EXACT
    if few:
        return Tolerance(codes=0.02)
    return Tolerance(codes=0.005 if problem.output is INT8 else 0.003)


@pytest.mark.parametrize("problem", SMALL, ids=str)
def test_writes_what_the_reference_writes(kernel: ModuleType, problem: Problem) -> None:
    seed = fresh_seed()
    values = random_values(problem, seed, "cuda")
    compare(run(kernel.launch, problem, values), run(reference.quantize, problem, values), tolerance(problem))


@pytest.mark.parametrize("rows", [257, 1024])
@pytest.mark.parametrize("problem", [p for p in SMALL if p.rows and p.width], ids=str)
def test_larger_problems(kernel: ModuleType, problem: Problem, rows: int) -> None:
    seed = fresh_seed()
    problem = larger(problem, rows, groups=21 if rows % 2 else 56)
    values = random_values(problem, seed, "cuda")
    compare(run(kernel.launch, problem, values), run(reference.quantize, problem, values), tolerance(problem))


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize("column_major", [False, True])
def test_golden_digests(kernel: ModuleType, dtype: torch.dtype, column_major: bool) -> None:
    values = golden_input(dtype, "cuda")
    problem = Problem(5, 768, dtype, ue8m0=True, column_major=column_major)
    packed = run(kernel.launch, problem, values)
    assert packed.output_s[0].tolist() == [0x7A797877, 0x00007C7B]
    assert digest(packed.output_q) == "0dae8bbb3a4623b23b28c5fd6269a104fd32b5f780ae6868d0ca52d9ebf3a34b"
    scales = packed.output_s.clone(memory_format=torch.contiguous_format)
    assert digest(scales) == "f0536a34a9b898ec3ab6d1c1b388cf4849f232030f447d6f9c9285f019fc8589"
    plain = run(kernel.launch, replace(problem, ue8m0=False), values)
    scales = plain.output_s.clone(memory_format=torch.contiguous_format)
    assert digest(scales) == "83ee48cded1ce6b42e8ff1351fb6aee3e05b12a9f6c5634e158f5e35da9bc24d"


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize(("output", "ue8m0"), [(FP8, False), (FP8, True), (INT8, False)])
def test_non_finite_and_extreme_groups(
    kernel: ModuleType, dtype: torch.dtype, output: torch.dtype, ue8m0: bool
) -> None:
    largest = torch.finfo(dtype).max
    groups = torch.ones(10, 16, device="cuda")
    groups[:, 1], groups[:, 2] = -2.0, 0.0
    special = (torch.nan, -torch.nan, torch.inf, -torch.inf, largest, -largest, 2.0**-14, 2.0**-7)
    for row, x in enumerate(special):
        groups[row, 3] = x
    groups[6, [0, 1, 4]] = 0.0  # small enough to overflow float16's multiplier
    groups[8] = torch.nan
    groups[9] = 0.0
    problem = Problem(1, 160, dtype, output, group_size=16, ue8m0=ue8m0)
    values = groups.reshape(1, 160).to(dtype)
    compare(run(kernel.launch, problem, values), run(reference.quantize, problem, values), EXACT)


def test_every_bfloat16_value(kernel: ModuleType) -> None:
    values = torch.arange(1 << 16, device="cuda").to(torch.int16).view(BF16).reshape(256, 256)
    problem = Problem(256, 256, group_size=16, ue8m0=True)
    compare(run(kernel.launch, problem, values), run(reference.quantize, problem, values), EXACT)
    problem = replace(problem, ue8m0=False)
    expected = run(reference.quantize, problem, values)
    compare(run(kernel.launch, problem, values), expected, Tolerance(codes=0.003))


@pytest.mark.parametrize("counts", [(9, 2), (-1, 2)])
def test_a_wrong_count_stays_inside_its_expert(kernel: ModuleType, counts: tuple[int, ...]) -> None:
    problem = Problem(4, 128, ue8m0=True, counts=counts)
    values = random_values(problem, fresh_seed(), "cuda")
    compare(run(kernel.launch, problem, values), run(reference.quantize, problem, values), EXACT)


def test_offsets_beyond_32_bits(kernel: ModuleType) -> None:
    """2.2e9 elements: rows near the end lie past 2^31 elements in input and codes."""
    problem = Problem(300_000, 7168, ue8m0=True, column_major=True)
    if torch.cuda.mem_get_info()[0] < 16 << 30:
        pytest.skip("needs 16 GiB of device memory")
    tail = random_values(replace(problem, rows=64), fresh_seed(), "cuda")
    values = torch.empty(problem.rows, problem.width, dtype=BF16, device="cuda").fill_(1.0)
    values[-64:] = tail
    codes = torch.empty(problem.rows, problem.width, dtype=FP8, device="cuda")
    scales = torch.empty_strided((problem.rows, 14), (1, problem.rows), dtype=torch.int32, device="cuda")
    kernel.launch(values, codes, scales, 128, scale_ue8m0=True)
    expected = run(reference.quantize, replace(problem, rows=64), tail)
    assert torch.equal(codes[-64:].view(torch.uint8), expected.codes())
    assert torch.equal(scales[-64:], expected.output_s)


def test_captured_in_a_graph(kernel: ModuleType) -> None:
    problem = Problem(38, 2048, ue8m0=True, column_major=True)
    first, second = (random_values(problem, fresh_seed(), "cuda") for _ in range(2))
    buffers = build(problem, first)
    launch = partial(kernel.launch, buffers.input, buffers.output_q, buffers.output_s, 128, scale_ue8m0=True)
    launch()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    buffers.input.copy_(second)
    graph.replay()
    compare(buffers, run(reference.quantize, problem, second), EXACT)


UPSTREAM = [
    Problem(333, 7168),
    Problem(333, 7168, ue8m0=True, column_major=True),
    Problem(257, 640, FP16, ue8m0=True),
    Problem(257, 640, FP32, column_major=True),
    Problem(257, 4096, output=INT8),
    Problem(257, 4096, silu=True),
    Problem(257, 4096, FP16, silu=True, ue8m0=True),
    Problem(257, 4096, silu=True, mode="dense"),
    Problem(128, 2048, silu=True, ue8m0=True, column_major=True, counts=(5, 0, 128)),
]


@pytest.mark.parametrize("problem", UPSTREAM, ids=str)
def test_equals_upstream_bit_for_bit(kernel: ModuleType, problem: Problem) -> None:
    """Runs where upstream's kernel is importable; its approximate division and exponential are Triton's."""
    module = pytest.importorskip("sglang.kernels.ops.quantization.per_token_group_quant")
    quantize: Callable[..., object] = module.per_token_group_quant
    values = random_values(problem, fresh_seed(), "cuda")
    expected: Buffers = run(quantize, problem, values)
    compare(run(kernel.launch, problem, values), expected, EXACT)
