"""A tensor as Python holds what the worker would have built."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from kernels.dtypes import DType
from kernels.expressions import tensor
from kernels.running import build_tensor
from kernels.spec import TensorSpec
from kernels.values import Arange, Full, Listed, Ones, Randint, Randn, Text, Values, Zeros, seeded

VALUES: tuple[Values, ...] = (
    Zeros(),
    Ones(),
    Full(3),
    Full(127),
    Full(70_000.0),
    Full(-1),
    Full(300),
    Full(1e39),
    Full(2**31),
    Full(True),
    Full(float("inf")),
    Arange(),
    Arange(3, 40),
    Arange(-200.0, 100.5),
    Listed((1, 2.5, 3)),
    Listed((1, (2, 70_000.0))),
    Listed((1e39, -1e39, 0)),
    Listed(()),
    Text('{"a": 1}'),
    Text("\ud800"),
    Text("ééééé"),
)
LAYOUTS = (
    TensorSpec((4, 6), DType.F32),
    TensorSpec((), DType.F32),
    TensorSpec((3,), DType.F32),
    TensorSpec((0, 3), DType.F32),
    TensorSpec((4, 6), DType.F32, (1, 4)),
    TensorSpec((4, 6), DType.F32, (8, 1), 2),
    TensorSpec((4, 6), DType.F32, (6, 1), 5),
    TensorSpec((4, 6), DType.F32, (0, 1)),
    TensorSpec((4, 6), DType.F32, (1, 0)),
    TensorSpec((4, 6), DType.F32, (1, 1), 3),
    TensorSpec((4, 6), DType.F32, (0, 0), 1),
)
DTYPES = tuple(dtype for dtype in DType if dtype.in_torch)


def undefined(values: Values, dtype: DType) -> bool:
    """Whether the conversion is one that C++ leaves open: infinite or huge numbers as whole ones."""
    huge = (Full(1e39), Full(float("inf")), Listed((1e39, -1e39, 0)))
    negative = dtype.torch_name.startswith("uint") and values == Arange(-200.0, 100.5)
    return (values in huge and dtype.torch_name.startswith(("int", "uint"))) or negative


def test_equal_numbers_of_other_types_are_written_as_they_are() -> None:
    """Expressions are kept, and 1, 1.0 and True are equal as keys."""
    spec = TensorSpec((3,), DType.F32)
    written = {tensor(spec, Full(number)) for number in (1, 1.0, True)}
    assert len(written) == 3
    assert tensor(spec, Full(-0.0)) != tensor(spec, Full(0.0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.filterwarnings("error")
def test_a_tensor_s_expression_holds_what_the_worker_builds(dtype: DType) -> None:
    for spec, values in product(LAYOUTS, VALUES):
        if undefined(values, dtype):
            continue
        described = TensorSpec(spec.shape, dtype, spec.strides, spec.offset, "cpu", values)
        text = tensor(described)
        made = eval(text, {"torch": torch})  # noqa: S307 (our own expression)
        built = build_tensor(described, values, "cpu")
        assert (made.dtype, made.shape) == (built.dtype, built.shape), text
        if described.numel:
            assert made.stride() == built.stride(), text
            assert made.storage_offset() == spec.offset, text
            held, wanted = (each.reshape(-1).clone().view(torch.uint8) for each in (made, built))
            assert held.equal(wanted), (text, made, built)


@pytest.mark.parametrize(
    "values",
    [
        Randint(-(10**30), 10**30),
        Randint(2**63, 2**64),
        Randint(5, 6),
        Randn(mean=1e308, std=10**400),
        Randn(mean=-(10**400), std=0),
    ],
)
@pytest.mark.parametrize("dtype", [DType.I64, DType.I32, DType.F8_E4M3FN, DType.BF16], ids=str)
def test_what_is_drawn_between_any_bounds_can_be(values: Values, dtype: DType) -> None:
    described = TensorSpec((8,), dtype, device="cpu", values=values)
    made = eval(tensor(described), {"torch": torch})  # noqa: S307 (our own expression)
    built = build_tensor(described, seeded({"x": values}, 0)["x"], "cpu")
    assert made.dtype is built.dtype
    if values == Randint(5, 6):
        assert made.tolist() == built.tolist()
