"""The linear's kernels in Triton's corrected interpreter against the float32 product."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.quanto_int8_checkpoint import reference
from kernels.quanto_int8_checkpoint.plan import UNPACKED, choose_plan, unpacks
from tests.kernels.quanto_int8_checkpoint.products import BF16, FP16, FP32, PRODUCTS, Product

SHARED = 232_448
"""Bytes of shared memory a program on sm90."""


@pytest.fixture(scope="module")
def launch(interpreted: None) -> ModuleType:
    from kernels.quanto_int8_checkpoint import launch

    return launch


@pytest.mark.parametrize("product", PRODUCTS, ids=str)
def test_it_is_the_float32_product(launch: ModuleType, product: Product) -> None:
    operands = product.operands(seed=11)
    product.check(launch.linear(**operands), operands)


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
def test_every_code_times_one_is_exact(launch: ModuleType, tokens: int, dtype: torch.dtype) -> None:
    codes = torch.arange(-128, 128).to(torch.int8).unsqueeze(1)
    y = launch.linear(torch.ones(tokens, 1, dtype=dtype), codes, torch.ones(256, 1))
    assert y.tolist() == [list(range(-128, 128))] * tokens


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_float32_activation_keeps_its_24_bits(launch: ModuleType, tokens: int) -> None:
    x = torch.tensor([[1 + 2.0**-23, -(2.0**-126), 3.4e38, 0.0]]).repeat(tokens, 1)
    y = launch.linear(x, torch.eye(4).to(torch.int8), torch.ones(4, 1))
    assert y.tolist() == x.tolist()


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize("tokens", [1, 3])
def test_infinite_and_undefined_activations_stay_so(
    launch: ModuleType, tokens: int, dtype: torch.dtype
) -> None:
    x = torch.ones(tokens, 3, dtype=dtype)
    x[:, 1] = torch.inf
    codes = torch.tensor([[1, 2, 3], [1, -2, 3], [0, 0, 0]], dtype=torch.int8)
    y = launch.linear(x, codes, torch.ones(3, 1))
    assert y.tolist()[0][:2] == [torch.inf, -torch.inf]
    assert y[:, 2].isnan().all()


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_large_scale_overflows_no_product_in_float16(launch: ModuleType, tokens: int) -> None:
    """Upstream's weight does, 127 · 516 > 65504; here the scale multiplies the float32 sum."""
    codes = torch.tensor([[127, 127]], dtype=torch.int8)
    x = torch.tensor([[1.0, -1.0]], dtype=FP16).repeat(tokens, 1)
    assert launch.linear(x, codes, torch.tensor([[516.0]])).tolist() == [[0.0]] * tokens


def test_leading_dimensions_and_a_strided_last_one(launch: ModuleType) -> None:
    operands = Product(6, 5, 8, FP32).operands(seed=3)
    x = operands.pop("x")
    expected = reference.linear_float32(x, **operands)
    spread = torch.stack([x, x], dim=-1)[..., 0].reshape(2, 3, 8)
    assert launch.linear(spread, **operands).shape == (2, 3, 5)
    torch.testing.assert_close(launch.linear(spread, **operands).reshape(6, 5), expected)
    torch.testing.assert_close(launch.linear(x[0], **operands), expected[0])


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
def test_the_unpacked_weight_is_upstreams_and_so_is_the_product(
    launch: ModuleType, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(launch, "choose_plan", lambda *_, **__: UNPACKED)
    operands = Product(5, 33, 47, dtype, bias=True, codes_gap=2).operands(seed=5)
    assert torch.equal(launch.linear(**operands), reference.linear(**operands))


def test_the_operands_are_left_as_they_are(launch: ModuleType) -> None:
    operands = Product(3, 17, 40, bias=True).operands(seed=9)
    before = {name: tensor.clone() for name, tensor in operands.items()}
    launch.linear(**operands)
    assert all(torch.equal(before[name], tensor) for name, tensor in operands.items())


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tokens=st.integers(1, 20),
    rows=st.integers(1, 70),
    columns=st.integers(1, 300),
    dtype=st.sampled_from([BF16, FP16, FP32]),
    scale_dtype=st.sampled_from([BF16, FP16, FP32]),
    bias=st.booleans(),
    gaps=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    seed=st.integers(0, 2**31),
)
def test_any_shape_and_type(
    launch: ModuleType,
    tokens: int,
    rows: int,
    columns: int,
    dtype: torch.dtype,
    scale_dtype: torch.dtype,
    bias: bool,
    gaps: tuple[int, int],
    seed: int,
) -> None:
    product = Product(tokens, rows, columns, dtype, scale_dtype, bias, *gaps)
    operands = product.operands(seed)
    product.check(launch.linear(**operands), operands)


def test_plans_cover_every_size_and_fill_the_device(launch: ModuleType) -> None:
    for tokens in (0, 1, 2, 3, 16, 17, 127, 512, 513, 8192):
        for rows in (0, 1, 63, 1024, 4096, 28_672):
            for columns in (0, 1, 500, 4096, 14_336):
                for itemsize in (2, 4):
                    plan = choose_plan(tokens, rows, columns, itemsize, SHARED)
                    if plan is UNPACKED:
                        assert unpacks(tokens, itemsize)
                        continue
                    assert 1 <= plan.splits <= 8
                    assert plan.stages >= 1
                    for size in (plan.rows, plan.columns, plan.tokens or 1):
                        assert size & (size - 1) == 0


def test_a_split_more_adds_the_same_sums(launch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    product = Product(3, 20, 200, FP16, bias=True)
    operands = product.operands(seed=2)
    plan = choose_plan(3, 20, 200, 2, SHARED, interpreted=True)
    for splits in (1, 4, 7):
        chosen = replace(plan, columns=32, splits=splits)
        monkeypatch.setattr(launch, "choose_plan", lambda *_, chosen=chosen, **__: chosen)
        product.check(launch.linear(**operands), operands)
