"""The kernel in Triton's corrected interpreter against the reference: the same bytes, no others touched."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
    Problem,
    Tolerance,
    compare,
    golden_input,
    random_values,
    run,
)

# Both divide exactly on the CPU, so all is equal, except that numpy's exp and torch's differ in the last bit:
# that may move a 16-bit rounding by one unit (2^-8 of bfloat16), a scale with it, and a code by one.
ROUNDED_SILU = Tolerance(codes=0.01, scales=0.05, scale_error=2.0**-7)


@pytest.fixture(scope="module")
def kernel(interpreted: None) -> ModuleType:
    from kernels.per_token_group_quant import kernel

    return kernel


@pytest.mark.parametrize("problem", [*VALID, *ODD, *MASKED, *SILU], ids=str)
def test_writes_what_the_reference_writes(kernel: ModuleType, problem: Problem) -> None:
    values = random_values(problem, seed=11)
    actual, expected = run(kernel.launch, problem, values), run(reference.quantize, problem, values)
    compare(actual, expected, ROUNDED_SILU if problem.silu else EXACT)


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize(("output", "ue8m0"), [(FP8, False), (FP8, True), (INT8, False)])
def test_non_finite_and_extreme_groups(
    kernel: ModuleType, dtype: torch.dtype, output: torch.dtype, ue8m0: bool
) -> None:
    largest = torch.finfo(dtype).max
    groups = torch.ones(9, 16)
    groups[:, 1], groups[:, 2] = -2.0, 0.0
    for row, x in enumerate((torch.nan, -torch.nan, torch.inf, -torch.inf, largest, -largest, 2.0**-14)):
        groups[row, 3] = x
    groups[6, :3] = 0.0  # small enough to overflow float16's multiplier
    groups[7] = torch.nan
    groups[8] = 0.0
    problem = Problem(1, 144, dtype, output, group_size=16, ue8m0=ue8m0)
    values = groups.reshape(1, 144).to(dtype)
    compare(run(kernel.launch, problem, values), run(reference.quantize, problem, values), EXACT)


def test_every_bfloat16_value_is_quantised_as_the_reference_does(kernel: ModuleType) -> None:
    values = torch.arange(1 << 16).to(torch.int16).view(BF16).reshape(256, 256)
    for ue8m0 in (False, True):
        problem = Problem(256, 256, group_size=16, ue8m0=ue8m0)
        compare(run(kernel.launch, problem, values), run(reference.quantize, problem, values), EXACT)


def test_golden_scales(kernel: ModuleType) -> None:
    problem = Problem(5, 768, ue8m0=True)
    assert run(kernel.launch, problem, golden_input(BF16)).output_s[0].tolist() == [0x7A797877, 0x00007C7B]


@pytest.mark.parametrize("counts", [(9, 2), (-1, 2)])
def test_a_wrong_count_stays_inside_its_expert(kernel: ModuleType, counts: tuple[int, ...]) -> None:
    problem = Problem(4, 128, counts=counts)
    values = random_values(problem, seed=5)
    compare(run(kernel.launch, problem, values), run(reference.quantize, problem, values), EXACT)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 9),
    groups=st.integers(1, 9),
    group_size=st.sampled_from([16, 32, 64]),
    dtype=st.sampled_from([BF16, FP16, FP32]),
    layout=st.tuples(st.booleans(), st.booleans(), st.integers(0, 3)),
    counts=st.one_of(st.none(), st.lists(st.integers(0, 9), min_size=1, max_size=3)),
    seed=st.integers(0, 2**31),
)
def test_any_shape_and_layout(
    kernel: ModuleType,
    rows: int,
    groups: int,
    group_size: int,
    dtype: torch.dtype,
    layout: tuple[bool, bool, int],
    counts: list[int] | None,
    seed: int,
) -> None:
    ue8m0, column_major, gap = layout
    problem = Problem(
        rows,
        groups * group_size,
        dtype,
        group_size=group_size,
        ue8m0=ue8m0,
        column_major=column_major,
        scale_gap=gap,
        code_gap=16 * gap,
        counts=None if counts is None else tuple(min(count, rows) for count in counts),
    )
    values = random_values(problem, seed)
    compare(run(kernel.launch, problem, values), run(reference.quantize, problem, values), EXACT)


def test_the_tile_covers_the_row_with_few_idle_lanes(kernel: ModuleType) -> None:
    for groups in range(1, 300):
        for group_size in (16, 32, 64, 128, 256):
            for packed in (False, True):
                tile = kernel.choose_tile(4096, groups, group_size, packed=packed)
                elements = tile.rows * tile.groups * group_size
                assert elements == tile.warps * 512
                assert elements <= 2048
                assert not packed or tile.groups % 4 == 0
                assert tile.groups * group_size >= 128
                covered = -(-groups // tile.groups) * tile.groups
                assert covered - groups < max(4 if packed else 1, 128 // group_size)
