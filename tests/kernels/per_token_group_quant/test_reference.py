"""The reference against facts measured on hardware: golden digests, non-finite values, bytes that stay."""

from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.per_token_group_quant import reference
from tests.kernels.per_token_group_quant.problems import (
    BF16,
    FP8,
    FP16,
    FP32,
    INT8,
    MASKED,
    ODD,
    POISON,
    SILU,
    VALID,
    Buffers,
    Problem,
    build,
    golden_input,
    random_values,
    run,
)

GOLDEN = Problem(5, 768, ue8m0=True)


def quantized(values: Tensor, **changes: object) -> Buffers:
    """One row or more of `values`, one group a row unless told otherwise."""
    settings_ = {"group_size": values.shape[-1]} | changes
    problem = Problem(values.shape[0], values.shape[1], values.dtype, **settings_)  # type: ignore[arg-type]
    return run(reference.quantize, problem, values)


def digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
def test_golden_digests(dtype: torch.dtype) -> None:
    values = golden_input(dtype)
    packed = quantized(values, group_size=128, ue8m0=True)
    assert packed.output_s[0].tolist() == [0x7A797877, 0x00007C7B]
    assert bytes(packed.codes()[0, :8].tolist()).hex(" ") == "f8 f3 ee e0 62 6e 74 f8"
    assert digest(packed.codes()) == "0dae8bbb3a4623b23b28c5fd6269a104fd32b5f780ae6868d0ca52d9ebf3a34b"
    assert digest(packed.output_s) == "f0536a34a9b898ec3ab6d1c1b388cf4849f232030f447d6f9c9285f019fc8589"
    plain = quantized(values, group_size=128)
    assert digest(plain.output_s) == "83ee48cded1ce6b42e8ff1351fb6aee3e05b12a9f6c5634e158f5e35da9bc24d"


@pytest.mark.parametrize(
    ("amax", "exponent"),
    [(448, 127), (449, 128), (447, 127), (1, 119), (3.5, 120), (3, 120), (7, 121), (0, 85)],
)
def test_exponent_is_the_power_of_two_at_or_above_the_scale(amax: float, exponent: int) -> None:
    values = torch.zeros(1, 16)
    values[0, 3] = -amax
    assert reference.unpack_ue8m0(quantized(values, ue8m0=True).output_s, 1).item() == exponent


# A group of 1, -2, 0, x and ones: codes of the first four, and the scale.
NON_FINITE = [
    (float("nan"), False, (0x76, 0xFE, 0x00, 0x7E), 2 / 448),
    (float("nan"), True, (0x70, 0xF8, 0x00, 0x7E), 120),
    (float("inf"), False, (0x00, 0x80, 0x00, 0x7E), float("inf")),
    (float("-inf"), False, (0x00, 0x80, 0x00, 0x7E), float("inf")),
    (float("inf"), True, (0xFE, 0x7E, 0x7E, 0xFE), 255),
    (float("-inf"), True, (0xFE, 0x7E, 0x7E, 0x7E), 255),
]


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize(("x", "ue8m0", "codes", "scale"), NON_FINITE)
def test_non_finite_values(
    dtype: torch.dtype, x: float, ue8m0: bool, codes: tuple[int, ...], scale: float
) -> None:
    values = torch.ones(1, 16, dtype=dtype)
    values[0, 1:4] = torch.tensor([-2.0, 0.0, x])
    result = quantized(values, ue8m0=ue8m0)
    assert tuple(result.codes()[0, :4].tolist()) == codes
    assert result.output_s.item() == pytest.approx(scale, rel=1e-7)


def test_int8_of_nan_is_the_lowest_code_and_other_values_truncate() -> None:
    values = torch.tensor([[torch.nan, 10.0, -10.0, 9.99, -9.99, *[0.0] * 11]])
    result = quantized(values, output=INT8)
    multiplier = torch.tensor(127.0) / torch.tensor(10.0)
    expected = [-128, *(int(v * multiplier) for v in values[0, 1:5])]
    assert result.output_q[0, :5].tolist() == expected
    assert expected[3] == 126  # 9.99 · 12.7 = 126.87: rounding would give 127


def test_release_0_5_23_keeps_nan_of_bfloat16_alone() -> None:
    for dtype, code in ((BF16, 0x7F), (FP16, 0x7E), (FP32, 0x7E)):
        values = torch.ones(1, 16, dtype=dtype)
        values[0, 1] = -torch.nan
        buffers = build(Problem(1, 16, dtype, group_size=16), values)
        reference.quantize(buffers.input, buffers.output_q, buffers.output_s, 16, keep_bf16_nan=True)
        assert buffers.codes()[0, 1].item() == code


@pytest.mark.parametrize(("amax", "zero"), [(3e38, True), (8e37, False)])
def test_codes_vanish_where_the_approximate_division_does(amax: float, zero: bool) -> None:
    result = quantized(torch.full((1, 16), amax))
    assert result.output_s.isfinite().all()
    assert bool((result.codes() == 0).all()) is zero


@pytest.mark.parametrize(("value", "broken"), [(448 * 2.0**-16, True), (0.00684357, False), (0.0, True)])
def test_small_float16_groups_overflow_the_multiplier(value: float, broken: bool) -> None:
    values = torch.zeros(1, 16, dtype=FP16)
    values[0, 0] = value
    codes = quantized(values, ue8m0=True).codes()
    assert bool((codes == 0x7E).all()) is broken
    assert int(quantized(values.float(), ue8m0=True).codes()[0, 1]) == 0


@pytest.mark.parametrize("problem", [*VALID, *ODD, *MASKED, *SILU], ids=str)
def test_writes_every_valid_row_and_nothing_else(problem: Problem) -> None:
    values = random_values(problem, seed=1)
    untouched = build(problem, values)
    result = run(reference.quantize, problem, values)
    for before, after in zip(untouched.outside(), result.outside(), strict=True):
        assert torch.equal(before, after)
    written = result.written()
    assert bool((result.codes()[~written] == POISON).all())
    assert bool((result.output_s[~written].view(torch.uint8) == POISON).all())

    if problem.silu:
        values = reference.silu_and_mul(values, problem.mode)
    restored = reference.dequantize(result.output_q, result.output_s, problem.group_size)[written]
    wanted = values.float()[written]
    unit = reference.dequantize(torch.ones_like(result.output_q), result.output_s, problem.group_size)[
        written
    ]
    # Three mantissa bits round within 1/16 of the value, or half a subnormal step; int8 truncates within one.
    bound = unit if problem.output is INT8 else torch.maximum(wanted.abs() / 16, unit * 2.0**-10)
    assert bool(((wanted - restored).abs() <= bound * (1 + 1e-5)).all())
    if problem.ue8m0 and problem.groups % 4:
        pads = result.output_s[written].contiguous().view(torch.uint8)[..., problem.groups :]
        assert bool((pads == 0).all())


def test_rows_past_the_valid_ones_stay() -> None:
    problem = Problem(5, 256, ue8m0=True)
    buffers = build(problem, random_values(problem, seed=2))
    reference.quantize(
        buffers.input, buffers.output_q, buffers.output_s, 128, scale_ue8m0=True, num_valid_rows=2
    )
    assert bool((buffers.codes()[2:] == POISON).all())
    assert bool((buffers.output_s[2:].view(torch.uint8) == POISON).all())
    assert not bool((buffers.codes()[:2] == POISON).all())


def test_only_the_low_word_of_a_64_bit_count_is_read() -> None:
    problem = Problem(4, 128, counts=(2,), count_dtype=torch.int64)
    values = random_values(problem, seed=3)
    expected = run(reference.quantize, problem, values)
    buffers = build(problem, values)
    count = torch.tensor([(7 << 32) + 2])
    reference.quantize(buffers.input, buffers.output_q, buffers.output_s, 128, masked_m=count)
    assert torch.equal(buffers.q_buffer, expected.q_buffer)


def test_dense_silu_rounds_once() -> None:
    problem = Problem(16, 512, silu=True)
    values = random_values(problem, seed=4)
    gate, up = values.double().chunk(2, dim=-1)
    exact = (gate * torch.sigmoid(gate) * up).to(BF16)
    dense = reference.silu_and_mul(values, "dense")
    legacy = reference.silu_and_mul(values, "legacy")
    assert (dense != exact).float().mean() < 0.005  # ties that float32 decides differently
    assert 0.05 < (legacy != exact).float().mean() < 0.5


def e4m3_values() -> Tensor:
    """All finite values, in ascending order, as float64; computed from the format's definition."""
    byte = torch.arange(0x7F)
    exponent, mantissa = byte >> 3, (byte & 7).double()
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7).double()
    return torch.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=64))
def test_codes_are_the_nearest_value_ties_to_even(products: list[float]) -> None:
    table = e4m3_values()
    ties = (table[:-1] + table[1:]) / 2
    given_values = torch.cat([torch.tensor(products), ties.float(), -ties.float(), table.float()])
    codes = reference._encode_e4m3(given_values, keep_nan=False)
    magnitude = given_values.double().abs().clamp(max=448)
    distance = (magnitude.unsqueeze(-1) - table).abs()
    nearest = distance == distance.amin(-1, keepdim=True)
    even = nearest & (torch.arange(0x7F) % 2 == 0)
    index = torch.where(nearest.sum(-1) > 1, even.int().argmax(-1), nearest.int().argmax(-1))
    expected = index + 128 * torch.signbit(given_values)
    assert codes.tolist() == expected.tolist()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 255), min_size=1, max_size=9))
def test_packing_and_unpacking_are_inverse(exponents: list[int]) -> None:
    words = reference.pack_ue8m0(torch.tensor([exponents], dtype=torch.int32))
    unsigned = [word & 0xFFFFFFFF for word in words[0].tolist()]
    assert [(unsigned[g // 4] >> 8 * (g % 4)) & 0xFF for g in range(len(exponents))] == exponents
    assert reference.unpack_ue8m0(words, len(exponents))[0].tolist() == exponents


def test_exponent_bytes_as_floats() -> None:
    powers = reference.ue8m0_to_float(torch.arange(256, dtype=torch.int32).to(torch.uint8))
    assert powers[:255].double().tolist() == [2.0 ** (byte - 127) for byte in range(255)]
    assert bool(powers[255].isnan())


def test_results_are_float8_and_int32() -> None:
    result = run(reference.quantize, GOLDEN, golden_input(BF16))
    assert (result.output_q.dtype, result.output_s.dtype) == (FP8, torch.int32)
