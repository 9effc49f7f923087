"""Tensors built as described, and outputs compared as their tolerance says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.dtypes import DType
from kernels.guarding import POISON
from kernels.live import spec_of, torch_dtype
from kernels.running import Tolerance, build_tensor, compare
from kernels.spec import BASE_ALIGNMENT, TensorSpec
from kernels.values import Arange, Full, Listed, Ones, Randint, Randn, Zeros, seeded

FP8 = torch.float8_e4m3fn


@given(
    shape=st.lists(st.integers(0, 4), max_size=3).map(tuple),
    offset=st.integers(0, 40),
    dtype=st.sampled_from([DType.BF16, DType.F8_E4M3FN, DType.I32, DType.I64, DType.F8_E8M0, DType.BOOL]),
)
def test_a_tensor_is_built_where_its_description_says(
    shape: tuple[int, ...], offset: int, dtype: DType
) -> None:
    spec = TensorSpec(shape, dtype, offset=offset, device="cpu")
    live = build_tensor(spec, None, "cpu")
    seen = offset % (BASE_ALIGNMENT // dtype.itemsize) if live.numel() else 0
    assert spec_of(live) == TensorSpec(shape, dtype, offset=seen, device="cpu")
    assert live.storage_offset() >= offset
    assert live.view(torch.uint8).flatten().eq(POISON).all() if shape and live.numel() else True


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (Zeros(), [0, 0, 0, 0]),
        (Ones(), [1, 1, 1, 1]),
        (Full(3), [3, 3, 3, 3]),
        (Arange(2, 5), [2, 7, 12, 17]),
        (Listed(((1, 2), (3, 4))), [1, 2, 3, 4]),
        (Listed((7, 8)), [7, 8, 7, 8]),
    ],
)
@pytest.mark.parametrize("dtype", [DType.I32, DType.F32, DType.BF16, DType.F8_E4M3FN, DType.U8])
def test_described_values_are_written_in_row_major_order(
    values: Full, expected: list[int], dtype: DType
) -> None:
    spec = TensorSpec((2, 2), dtype, (1, 2))
    written = build_tensor(spec, values, "cpu").float().flatten().tolist()
    wanted = torch.tensor(expected, dtype=torch.float32).to(torch_dtype(dtype)).float().tolist()
    assert written == wanted


def test_drawn_values_depend_on_the_seed_and_on_the_place_alone() -> None:
    first, second = seeded({"a": Randn(), "b": Randn(), "c": Randint(0, 9, seed=5)}, 3).values(), None
    assert second is None
    assert [getattr(generator, "seed", None) for generator in first] == [3, 4, 5]
    spec = TensorSpec((64,), DType.F32)
    draws = [build_tensor(spec, Randn(seed=seed), "cpu") for seed in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_values_beyond_fp8_are_clamped_before_the_cast() -> None:
    built = build_tensor(TensorSpec((3,), DType.F8_E4M3FN), Listed((1e6, -1e6, 448)), "cpu")
    assert built.float().tolist() == [448.0, -448.0, 448.0]


@pytest.mark.parametrize(
    "values",
    [
        Full(10**400),
        Full(-(10**400)),
        Arange(10**30, 10**20),
        Listed((10**400, 1)),
        Randint(-(10**30), 10**30),
    ],
)
@pytest.mark.parametrize("dtype", [DType.I32, DType.F32, DType.F16])
def test_numbers_beyond_torchs_are_held_as_well_as_the_type_can(values: Full, dtype: DType) -> None:
    assert build_tensor(TensorSpec((2,), dtype), values, "cpu").shape == (2,)


def test_an_exact_output_allows_no_difference_and_equal_nans_agree() -> None:
    nan = float("nan")
    a = torch.tensor([1.0, nan, float("inf")])
    assert compare("y", a, a.clone(), Tolerance()).within
    column = torch.ones(8).as_strided((1, 1), (7, 4))
    assert compare("y", column, column.clone(), Tolerance()).within
    assert not compare("y", a, torch.tensor([1.0, nan, 2.0]), Tolerance()).within
    assert not compare("y", a, torch.tensor([1.0, 0.0, float("inf")]), Tolerance(atol=1e9)).within


def test_a_share_of_codes_may_differ_by_a_step_and_none_by_more() -> None:
    codes = torch.arange(100, dtype=torch.uint8).repeat(100).view(FP8)
    expected = codes.view(torch.uint8).clone()
    expected[:20] += 1
    one_step = compare("q", codes, expected.view(FP8), Tolerance(share=0.003, step=1))
    assert one_step.within
    assert one_step.mismatches == 20
    expected[20:200] += 1
    assert not compare("q", codes, expected.view(FP8), Tolerance(share=0.003, step=1)).within
    expected = codes.view(torch.uint8).clone()
    expected[0] += 2
    assert not compare("q", codes, expected.view(FP8), Tolerance(share=0.003, step=1)).within


def test_codes_on_either_side_of_zero_are_neighbours() -> None:
    tiny, zero = torch.tensor([0x81, 0x01], dtype=torch.uint8), torch.tensor([0x80, 0x00], dtype=torch.uint8)
    assert compare("q", tiny.view(FP8), zero.view(FP8), Tolerance(share=1.0, step=1)).within


def test_few_elements_may_vary_more_than_many() -> None:
    for elements, mismatches, within in ((1000, 9, True), (1000, 20, False), (1_000_000, 4000, False)):
        actual = torch.zeros(elements, dtype=torch.int8)
        expected = actual.clone()
        expected[:mismatches] = 1
        assert compare("q", actual, expected, Tolerance(share=0.003, step=1)).within is within


def test_relative_and_absolute_errors_are_the_largest() -> None:
    found = compare("y", torch.tensor([1.0, 10.0]), torch.tensor([1.5, 11.0]), Tolerance(atol=2))
    assert (found.max_abs_error, round(found.max_rel_error, 4), found.within) == (1.0, 0.3333, True)
