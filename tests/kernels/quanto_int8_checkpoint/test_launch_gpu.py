"""The linear's compiled kernels on the card: against the float32 product, on fresh inputs and odd sizes."""

from __future__ import annotations

import secrets
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from kernels.quanto_int8_checkpoint import reference
from kernels.quanto_int8_checkpoint.plan import TILES, Plan, choose_plan, unpacks
from tests.kernels.quanto_int8_checkpoint.products import BF16, FP16, FP32, PRODUCTS, Product

pytestmark = pytest.mark.gpu

POISON = 0xA5
AROUND = 4096
"""Poison bytes on either side of an output."""

LARGER = [
    Product(1, 4096, 4096, bias=True),
    Product(1, 1000, 3333, FP16),
    Product(1, 640, 2048, FP32, BF16, bias=True),
    Product(3, 4096, 4096),
    Product(3, 333, 1111, FP16, bias=True, codes_gap=1),
    Product(8, 2048, 14_336, bias=True),
    Product(63, 1024, 3072, FP16, FP16, bias=True, x_gap=8),
    Product(127, 777, 1024, bias=True),
    Product(40, 600, 4096, FP16, x_gap=8),
    Product(65, 200, 1111, bias=True),
    Product(127, 1024, 1000, FP32, x_gap=3),
    Product(4, 1024, 1000, FP32, x_gap=3),
    Product(300, 1536, 4096, FP16),
    Product(700, 1030, 1024, bias=True),
    Product(1027, 512, 2050, FP16),
    Product(600, 512, 768, FP32, bias=True),
]

SHARED = 232_448
"""Bytes of shared memory a program on sm90."""


@pytest.fixture(scope="module")
def launch(compiled: None) -> ModuleType:
    from kernels.quanto_int8_checkpoint import launch

    return launch


def fresh_seed() -> int:
    """Another input every run; a failing one is in the report, as a local of the test."""
    return secrets.randbelow(2**31)


@pytest.mark.parametrize("product", [*PRODUCTS, *LARGER], ids=str)
def test_it_is_the_float32_product(launch: ModuleType, product: Product) -> None:
    seed = fresh_seed()
    operands = product.operands(seed, "cuda")
    product.check(launch.linear(**operands), operands)


@pytest.mark.parametrize("product", [*PRODUCTS, *LARGER], ids=str)
def test_every_element_is_written_and_nothing_else(
    launch: ModuleType, monkeypatch: pytest.MonkeyPatch, product: Product
) -> None:
    """Every buffer that a launch allocates comes poisoned, in the middle of poison that must stay."""
    seed = fresh_seed()
    operands = product.operands(seed, "cuda")
    allocated = []
    shipped = torch.empty

    def empty(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        count = torch.Size(shape).numel() * dtype.itemsize
        buffer = shipped(count + 2 * AROUND, dtype=torch.uint8, device=device).fill_(POISON)
        allocated.append(buffer)
        return buffer[AROUND : AROUND + count].view(dtype).view(shape)

    before = {name: value.clone() for name, value in operands.items() if value is not None}
    monkeypatch.setattr(torch, "empty", empty)
    y = launch.linear(**operands)
    monkeypatch.undo()
    product.check(y, operands)
    assert allocated
    for buffer in allocated:
        assert (buffer[:AROUND] == POISON).all()
        assert (buffer[-AROUND:] == POISON).all()
    assert all(torch.equal(value, operands[name]) for name, value in before.items())


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
def test_many_tokens_give_upstreams_bits(launch: ModuleType, dtype: torch.dtype) -> None:
    operands = Product(2048, 1024, 1024, dtype, bias=True).operands(fresh_seed(), "cuda")
    assert unpacks(2048, dtype.itemsize)
    assert torch.equal(launch.linear(**operands), reference.linear(**operands))


def test_equal_inputs_give_equal_bits(launch: ModuleType) -> None:
    operands = Product(16, 1024, 8192).operands(fresh_seed(), "cuda")
    assert choose_plan(16, 1024, 8192, 2, SHARED).splits > 1
    first = launch.linear(**operands)
    assert all(torch.equal(first, launch.linear(**operands)) for _ in range(20))


@pytest.mark.parametrize(
    "plan",
    [
        *TILES,
        *(replace(tile, splits=4) for tile in TILES),
        Plan(128, 128, 64, warps=8, stages=4),
        Plan(8, 0, 512, warps=2),
    ],
    ids=str,
)
def test_every_plan_computes_it_every_time(
    launch: ModuleType, monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    """Larger tiles take asynchronous instructions, whose mistakes would come and go."""
    monkeypatch.setattr(launch, "choose_plan", lambda *_, **__: plan)
    product = Product(100, 1000, 4096, bias=True)
    operands = product.operands(fresh_seed(), "cuda")
    first = launch.linear(**operands)
    product.check(first, operands)
    assert all(torch.equal(first, launch.linear(**operands)) for _ in range(50))


@pytest.mark.parametrize("tokens", [1, 16, 1024])
def test_captured_in_a_graph(launch: ModuleType, tokens: int) -> None:
    product = Product(tokens, 512, 2048)
    operands, others = (product.operands(fresh_seed(), "cuda") for _ in range(2))
    launch.linear(**operands)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = launch.linear(**operands)
    for name in ("x", "codes", "scale"):
        operands[name].copy_(others[name])
    graph.replay()
    product.check(y, operands)


@pytest.mark.parametrize("tokens", [1, 20])
def test_offsets_beyond_32_bits(launch: ModuleType, tokens: int) -> None:
    """2.3e9 codes: the last rows lie past 2^31 elements."""
    if torch.cuda.mem_get_info()[0] < 16 << 30:
        pytest.skip("needs 16 GiB of device memory")
    rows, columns = 70_000, 32_768
    product = Product(tokens, 64, columns)
    operands = product.operands(fresh_seed(), "cuda")
    codes = torch.empty(rows, columns, dtype=torch.int8, device="cuda").fill_(1)
    codes[-64:] = operands["codes"]
    scale = torch.zeros(rows, 1, device="cuda")
    scale[-64:] = operands["scale"]
    y = launch.linear(operands["x"], codes, scale)
    product.check(y[:, -64:].contiguous(), operands)
    assert not y[:, :-64].any()
