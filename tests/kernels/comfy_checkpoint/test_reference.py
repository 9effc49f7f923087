"""Formats' arithmetic: golden numbers, layouts of bytes, errors of quantization, what misreading costs."""

from __future__ import annotations

import pytest
import torch

from kernels.comfy_checkpoint import reference
from kernels.comfy_checkpoint.layers import Layer
from tests.kernels.comfy_checkpoint.files import FOUR, NVFP4, W4A4, one


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def nvfp4_layer() -> Layer:
    marker = {"format": "nvfp4", "full_precision_matrix_mult": True}
    [layer] = one(marker, NVFP4).layers
    return layer


def test_golden_nvfp4() -> None:
    """Codes 1 and 2 are 0.5 and 1; even columns alone enter, doubled: 32 · (2 · 0.5·2 … ) = 32."""
    tensors = {
        "weight": torch.full((128, 32), 0x21, dtype=torch.uint8),
        "weight_scale": torch.ones(128, 4).to(torch.float8_e4m3fn),
        "weight_scale_2": torch.tensor(0.5),
        "pre_quant_scale": torch.full((64,), 2.0),
    }
    x = torch.zeros(1, 64)
    x[:, ::2] = 1
    for found in (
        reference.output(nvfp4_layer(), tensors, x),
        reference.output_float32(nvfp4_layer(), tensors, x),
    ):
        assert torch.equal(found, torch.full((1, 128), 32.0))


def test_golden_fp8() -> None:
    [layer] = one({"format": "float8_e4m3fn"}, {}).layers
    tensors = {
        "weight": torch.tensor([[2.0, -4.0]]).to(torch.float8_e4m3fn),
        "weight_scale": torch.tensor([0.5]),
    }
    assert reference.output(layer, tensors, torch.tensor([[3.0, 1.0]])).item() == 1.0


def test_nibbles_of_nvfp4_are_high_first_and_the_others_low_first() -> None:
    data = torch.tensor([[0x21, 0xF0]], dtype=torch.uint8)
    assert reference.unpacked(data, high_first=True).tolist() == [[2, 1, 15, 0]]
    assert reference.unpacked(data, high_first=False).tolist() == [[1, 2, 0, 15]]
    for high_first in (True, False):
        codes = torch.arange(16).reshape(2, 8)
        packed = reference.packed(codes, high_first=high_first)
        assert torch.equal(reference.unpacked(packed, high_first=high_first), codes.to(torch.uint8))


@pytest.mark.parametrize(("rows", "blocks"), [(128, 4), (256, 8), (384, 12), (100, 4), (130, 5)])
def test_tiles_hold_every_scale_once(rows: int, blocks: int) -> None:
    places = reference.swizzled_places(rows, blocks).flatten()
    assert places.unique().numel() == rows * blocks
    scales = torch.randint(1, 120, (rows, blocks), dtype=torch.uint8).view(torch.float8_e4m3fn)
    stored = reference.swizzled(scales)
    assert stored.shape == (-(-rows // 128) * 128, -(-blocks // 4) * 4)
    back = reference.unswizzled(stored, rows, blocks)
    assert torch.equal(back.view(torch.uint8), scales.view(torch.uint8))


def test_places_in_a_tile() -> None:
    """Row 33, block 2 is in the second quarter of a tile: 1 · 16 + 1 · 4 + 2; row 128 begins the next one."""
    places = reference.swizzled_places(256, 8)
    assert places[33, 2] == 22
    assert places[0, 4] == 512
    assert places[128, 0] == 1024


def test_scales_in_too_small_a_shape_read_zeros() -> None:
    """N = 100, K = 64: of 400 scales 84 stand where the shape has no room."""
    read = reference.unswizzled(torch.ones(100, 4).to(torch.float8_e4m3fn), 100, 4)
    assert int((read.float() == 0).sum()) == 84


def test_nvfp4_keeps_nine_tenths_and_a_wrong_reading_does_not() -> None:
    weight = normal(256, 256)
    codes, scales, one_scale = reference.quantized_nvfp4(weight)
    assert (codes.shape, scales.shape) == ((256, 128), (256, 16))
    assert relative(reference.nvfp4_weight(codes, scales, one_scale), weight) == pytest.approx(
        0.095, abs=0.01
    )
    swapped = reference.packed(reference.unpacked(codes, high_first=True), high_first=False)
    assert relative(reference.nvfp4_weight(swapped, scales, one_scale), weight) == pytest.approx(1.4, abs=0.1)
    row_major = reference.unswizzled(scales, 256, 16)
    assert relative(reference.nvfp4_weight(codes, row_major, one_scale), weight) == pytest.approx(
        0.3, abs=0.1
    )


def test_a_block_of_zeros_stays_zero() -> None:
    weight = normal(128, 64)
    weight[3, 16:32] = 0
    codes, scales, one_scale = reference.quantized_nvfp4(weight)
    assert not reference.nvfp4_weight(codes, scales, one_scale)[3, 16:32].any()


@pytest.mark.parametrize("size", [4, 16, 64, 256])
def test_rotations_are_orthogonal_symmetric_and_sum_to_one(size: int) -> None:
    matrix = reference.hadamard(size, torch.float64)
    assert torch.equal(matrix, matrix.T)
    assert torch.allclose(matrix @ matrix, torch.eye(size, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(matrix.sum(1), torch.ones(size, dtype=torch.float64), atol=1e-12)
    x = normal(3, 512)
    assert torch.allclose(reference.rotated(reference.rotated(x, size), size), x, atol=1e-5)


def test_rotating_both_sides_changes_no_product() -> None:
    x, weight = normal(5, 512), normal(8, 512, seed=1)
    product = reference.rotated(x, 256) @ reference.rotated(weight, 256).T
    assert torch.allclose(product, x @ weight.T, atol=1e-4)


def test_int8_rows() -> None:
    codes, scale = reference.quantized_rows(torch.tensor([[127.0, -63.5, 0.5, 1.5], [0.0, 0.0, 0.0, 0.0]]))
    assert codes.tolist() == [[127, -64, 0, 2], [0, 0, 0, 0]]
    assert scale.flatten().tolist() == [1.0, 1.0]


@pytest.mark.parametrize("size", [16, 64, 256])
def test_rotated_int8_linear_is_off_by_about_one_percent(size: int) -> None:
    x, weight = normal(32, 512), normal(64, 512, seed=1)
    codes, scale = reference.quantized_rows(reference.rotated(weight, size))
    found = reference.int8_linear(x, codes, scale, size)
    assert relative(found, x @ weight.T) == pytest.approx(0.012, abs=0.004)


def test_w4a8_levels_are_rounded_to_int8_before_the_rows_scale() -> None:
    codes = torch.tensor([[0x0F, 0x79]], dtype=torch.uint8).view(torch.int8)
    rel, channel = torch.tensor([[20.0, 8.1]]).to(torch.float8_e4m3fn), torch.tensor([0.5])
    found = reference.w4a8_weight(codes, rel, channel, 2)
    assert found.tolist() == [[63.5, -63.5, 4.0, -4.0]]  # ±127 is the limit; 8.1 is stored as 8
    book = torch.linspace(-1, 1, 16)
    corrected = reference.w4a8_weight(codes, rel, channel, 2, book, torch.tensor([[1.0], [2.0]]))
    assert corrected.tolist() == [[11.0, -9.0, 3.0, 1.5]]


def test_w4a4_nibbles_are_signed() -> None:
    codes = torch.tensor([[0x1F, 0x87]], dtype=torch.uint8).view(torch.int8)
    assert reference.w4a4_weight(codes, torch.tensor([2.0])).tolist() == [[-2.0, 2.0, 14.0, -16.0]]


def test_w4a4_keeps_four_fifths() -> None:
    weight, x = normal(64, 512, seed=1), normal(16, 512)
    turned, scale = reference.quantized_rows(reference.rotated(weight, 256), reference.INT4_LIMIT)
    tensors = {
        "weight": reference.packed(turned & 15, high_first=False).view(torch.int8),
        "weight_scale": scale.flatten(),
    }
    [layer] = one(FOUR, W4A4).layers
    assert relative(reference.output(layer, tensors, x), x @ weight.T) < 0.18


def test_mxfp8_exponents() -> None:
    codes = torch.ones(128, 64).to(torch.float8_e4m3fn)
    exponents = torch.full((128, 2), 127, dtype=torch.uint8)
    exponents[0, 1] = 128
    exponents[1, 0] = 255
    stored = reference.swizzled(exponents)
    weight = reference.mxfp8_weight(codes, stored)
    assert weight[0, 32:].unique().tolist() == [2.0]
    assert weight[1, :32].isnan().all()
    assert weight[2:].unique().tolist() == [1.0]


def test_tables_of_one_scale_multiply_in_float32_and_others_in_the_outputs_type() -> None:
    codes = torch.tensor([[101, -7]], dtype=torch.int8)
    scale = 0.0123
    rows = torch.tensor([0])
    whole = reference.looked_up(codes, torch.tensor(scale), rows)
    by_row = reference.looked_up(codes, torch.tensor([[scale]]), rows)
    assert torch.equal(whole, (codes.float() * scale).to(torch.bfloat16))
    assert torch.equal(by_row, codes.to(torch.bfloat16) * torch.tensor(scale).to(torch.bfloat16))
