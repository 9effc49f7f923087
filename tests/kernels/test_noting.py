"""Calls that note what is read of them: every way of reading sizes, and nothing that is not read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import pytest

from kernels.dtypes import DType
from kernels.noting import LENGTH, WHOLE, Noting, Path, key_of, path
from kernels.per_token_group_quant.signature import QuantCall
from kernels.spec import TensorSpec

SIZES = (4, 256)
MOVING = {("input", "shape"), ("input", "dtype"), ("group_size", "")}


def noted(read: Callable[[Any], object]) -> set[tuple[str, str, Any]]:
    reads: dict[Path, None] = {}
    values = {"input": TensorSpec(SIZES, DType.BF16), "group_size": 128}
    call = Noting(QuantCall, MOVING, reads).watched(values, {"input"})
    reads.clear()
    read(call)
    return {(item.name, item.attribute, item.index) for item in reads}


@pytest.mark.parametrize(
    "read",
    [
        lambda shape: [*shape],
        lambda shape: tuple(shape),
        lambda shape: prod(shape),
        lambda shape: max(shape),
        lambda shape: shape == SIZES,
        lambda shape: SIZES == shape,  # noqa: SIM300 (what is tested)
        lambda shape: shape != (1, 2),
        lambda shape: shape in [SIZES, (1, 2)],
        lambda shape: 4 in shape,
        lambda shape: shape + (1,),  # noqa: RUF005 (what is tested)
        lambda shape: (1,) + shape,  # noqa: RUF005 (what is tested)
        lambda shape: hash(shape),
        lambda shape: {shape: 1},
        lambda shape: str(shape),
        lambda shape: f"{shape}",
        lambda shape: list(reversed(shape)),
        lambda shape: list(zip(shape, shape, strict=True)),
        lambda shape: shape < (5, 5),
        lambda shape: sorted(shape),
        lambda shape: shape.index(4),
        lambda shape: shape.count(4),
        lambda shape: set(shape),
    ],
)
def test_reading_all_sizes_is_noted(read: Callable[[Any], object]) -> None:
    assert ("input", "shape", WHOLE) in noted(lambda call: read(call.input.shape))


def test_reading_one_size_notes_that_one() -> None:
    assert noted(lambda call: call.input.shape[-1]) == {("input", "shape", -1)}
    assert noted(lambda call: call.input.shape[:-1]) == {("input", "shape", (None, -1, None))}
    assert noted(lambda call: call.input.ndim) == {("input", "shape", LENGTH)}
    assert noted(lambda call: bool(call.input.shape)) == {("input", "shape", LENGTH)}
    assert noted(lambda call: call.hidden) == {("input", "shape", -1), ("input", "shape", LENGTH)}


def test_what_is_fixed_is_not_noted() -> None:
    assert noted(lambda call: (call.input.offset, call.input.device, call.input.strides[0])) == set()
    assert noted(lambda call: call.group_size) == {("group_size", "", WHOLE)}


def test_a_key_tells_apart_what_a_check_may_tell_apart() -> None:
    values = [1, 1.0, True, "1", None, (1, 2), (1.0, 2), DType.BF16, DType.F16]
    assert len({key_of(value) for value in values}) == len(values)
    first, equal = TensorSpec(SIZES, DType.BF16), TensorSpec(SIZES, DType.BF16)
    assert path("x", "shape", -1).within(first) == path("x", "shape", -1).within(equal) == 256
    assert path("x", "shape", 7).within(first) != path("x", "shape", 1).within(first)
    assert path("x").within(first) == path("x").within(replace(first, offset=8))
    assert path("x").within(None) != path("x").within(first)
