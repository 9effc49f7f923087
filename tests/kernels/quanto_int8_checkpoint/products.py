"""Products for the linear's kernels: operands of odd sizes and strides, and a poisoned output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.quanto_int8_checkpoint import reference
from kernels.quanto_int8_checkpoint.plan import unpacks

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

# |a - b| <= t + t·|b|, as op.py's tolerance; of outputs up to about 14.
ALLOWED = {BF16: 2e-2, FP16: 3e-3, FP32: 1e-5}


@dataclass(frozen=True)
class Product:
    """x [T, K] times codes [N, K]; gaps, in elements, make strided rows."""

    tokens: int
    rows: int
    columns: int
    dtype: torch.dtype = BF16
    scale_dtype: torch.dtype = FP32
    bias: bool = False
    x_gap: int = 0
    codes_gap: int = 0

    def __str__(self) -> str:
        changed = [
            f"{name}={value}".replace("torch.", "")
            for name, value in vars(self).items()
            if name not in ("tokens", "rows", "columns") and value != getattr(Product(1, 1, 1), name)
        ]
        return " ".join([f"{self.tokens}x{self.rows}x{self.columns}", *changed])

    def operands(self, seed: int, device: str = "cpu") -> dict[str, Any]:
        """Arguments of `linear`, drawn on the device; outputs are a few units whatever K is."""
        generator = torch.Generator(device).manual_seed(seed)
        around = torch.full(
            (self.tokens, self.columns + self.x_gap), torch.nan, dtype=self.dtype, device=device
        )
        x = around[:, : self.columns]
        x.copy_(torch.randn(x.shape, generator=generator, device=device))
        codes = torch.randint(
            -128, 128, (self.rows, self.columns + self.codes_gap), generator=generator, device=device
        ).to(torch.int8)[:, : self.columns]
        step = 2 / (73.6 * max(self.columns, 1) ** 0.5)
        scale = (torch.rand(self.rows, 1, generator=generator, device=device) + 0.5) * step
        bias = torch.randn(self.rows, generator=generator, device=device).to(self.dtype)
        return {
            "x": x,
            "codes": codes,
            "scale": scale.to(self.scale_dtype),
            "bias": bias if self.bias else None,
        }

    def check(self, y: Tensor, operands: dict[str, Any]) -> None:
        """Assert that y is the float32 product within the type's tolerance."""
        expected = reference.linear_float32(**operands)
        assert y.dtype is self.dtype
        assert y.shape == expected.shape
        partly_rounded = self.dtype is not FP32 and unpacks(self.tokens, self.dtype.itemsize)
        allowed = ALLOWED[self.dtype] * (2 if partly_rounded else 1)
        torch.testing.assert_close(y.float(), expected, rtol=allowed, atol=allowed)


PRODUCTS = [
    Product(1, 1, 1),
    Product(1, 3, 2, bias=True),
    Product(1, 65, 127, FP16),
    Product(1, 130, 1000, FP32, bias=True, codes_gap=3),
    Product(3, 64, 128, BF16, BF16),
    Product(3, 7, 33, FP16, FP16, bias=True, x_gap=5, codes_gap=1),
    Product(3, 70, 257, FP32, x_gap=1),
    Product(127, 33, 96, bias=True),
    Product(127, 16, 65, FP32, bias=True, codes_gap=31),
    Product(16, 96, 300, FP16, x_gap=20),
    Product(0, 5, 8),
    Product(5, 0, 8),
]
