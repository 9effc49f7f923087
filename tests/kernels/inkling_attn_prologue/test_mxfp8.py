"""MXFP8 bytes: golden blocks, the integer rule, and where a pool keeps its scales."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.inkling_attn_prologue.mxfp8 import quantize, scale_index, store_scales
from tests.kernels.inkling_attn_prologue import plain

BF16 = torch.bfloat16
NAN, INF = math.nan, math.inf


def head(*elements: float) -> torch.Tensor:
    """A head of 128 that starts with these elements; the rest are zero."""
    values = torch.zeros(1, 128, dtype=BF16)
    values[0, : len(elements)] = torch.tensor(elements)
    return values


def encoded(values: torch.Tensor) -> tuple[list[int], list[int]]:
    codes, scales = quantize(values)
    return codes.view(torch.uint8).flatten().tolist(), scales.flatten().tolist()


@pytest.mark.parametrize(
    ("amax", "byte"), [(0, 19), (448, 127), (1, 119), (3, 120), (4, 121), (449, 127), (450, 128), (1e-38, 19)]
)
def test_scale_bytes(amax: float, byte: int) -> None:
    _, scales = encoded(head(-amax))
    assert scales == [byte, 19, 19, 19]


def test_the_ramp() -> None:
    codes, scales = encoded(head(*((i - 16) / 4 for i in range(32))))
    assert scales[0] == 121
    assert bytes(codes[:32]).hex(" ") == (
        "f8 f7 f6 f5 f4 f3 f2 f1 f0 ee ec ea e8 e4 e0 d8 00 58 60 64 68 6a 6c 6e 70 71 72 73 74 75 76 77"
    )


def test_a_zero_block_has_zero_codes() -> None:
    codes, scales = encoded(head())
    assert (set(codes), set(scales)) == ({0}, {19})


def test_infinity_saturates_and_nan_is_skipped() -> None:
    codes, scales = encoded(head(INF, -INF, 0.0, 1.0, NAN))
    assert scales[0] == 254
    assert codes[:5] == [0x7E, 0xFE, 0, 0, 0xFE]
    codes, scales = encoded(head(NAN, 1.0))
    assert scales[0] == 119
    assert codes[:2] == [0xFE, 0x78]
    codes, scales = encoded(torch.full((1, 128), NAN, dtype=BF16))
    assert (set(codes), set(scales)) == ({0xFE}, {19})


def test_the_rule_is_the_logarithm_for_every_positive_bfloat16() -> None:
    every = torch.arange(1, 0x7F80, dtype=torch.int16).view(BF16)
    values = torch.zeros(len(every), 128, dtype=BF16)
    values[:, 40] = every
    _, scales = quantize(values)
    quotient = every.float().clamp_min(1e-30) / 448
    logarithm = (torch.log2(quotient.double()).ceil() + 127).clamp(0, 254)
    assert torch.equal(scales[:, 0, 1].double(), logarithm)


def test_codes_and_bytes_equal_the_definition() -> None:
    values = torch.randn(7, 256, generator=torch.Generator().manual_seed(0)).to(BF16)
    values[3] *= 1e-3
    values[4, :32] = 0
    codes, scales = quantize(values)
    for row in range(7):
        expected_codes, expected_scales = plain.mxfp8(values[row])
        assert torch.equal(codes[row].view(torch.uint8), expected_codes)
        assert scales[row].flatten().tolist() == expected_scales


@pytest.mark.parametrize(
    ("slot", "of_head", "block", "page", "heads", "byte"),
    [(131, 1, 2, 128, 2, 1586), (383, 0, 3, 128, 2, 2559), (5, 1, 0, 128, 2, 592), (70, 0, 1, 64, 1, 305)],
)
def test_scale_addresses(slot: int, of_head: int, block: int, page: int, heads: int, byte: int) -> None:
    assert plain.scale_address(slot, of_head, block, page, heads) == byte
    buffer = torch.zeros(slot // page + 1, heads, 32, page // 32, 4, dtype=torch.uint8)
    scales = torch.zeros(1, heads, 4, dtype=torch.uint8)
    scales[0, of_head, block] = 77
    store_scales(buffer, torch.tensor([slot]), scales, page)
    assert buffer.flatten().nonzero().tolist() == [[byte]]


@pytest.mark.parametrize(("page", "heads"), [(128, 1), (128, 2), (64, 3), (32, 1), (96, 2)])
def test_every_byte_of_the_buffer_belongs_to_one_scale(page: int, heads: int) -> None:
    pages = 2
    slots = torch.arange(page * pages)
    buffer = torch.empty(pages, heads, 32, page // 32, 4, dtype=torch.int32)
    index, row, column = (part.unsqueeze(-1) for part in scale_index(slots, page))
    number = torch.arange(page * pages * heads * 4, dtype=torch.int32).view(-1, heads, 4)
    buffer.fill_(-1)
    buffer[index, torch.arange(heads), row, column] = number
    assert buffer.flatten().sort().values.tolist() == list(range(buffer.numel()))
    for slot in range(0, page * pages, 37):
        for of_head in range(heads):
            address = plain.scale_address(slot, of_head, 3, page, heads)
            assert buffer.flatten()[address] == number[slot, of_head, 3]


def test_a_slot_outside_the_pages_is_refused() -> None:
    buffer = torch.zeros(2, 1, 32, 4, 4, dtype=torch.uint8)
    with pytest.raises(IndexError):
        store_scales(buffer, torch.tensor([256]), torch.zeros(1, 1, 4, dtype=torch.uint8), 128)
