"""Elements written out are those that a run is built of."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from app.worker.messages import written_out
from app.worker.process import seeded_call
from kernels.drawing import MOST_WRITTEN, drawn
from kernels.dtypes import DType
from kernels.registry import operations
from kernels.running import materialise
from kernels.spec import TensorSpec
from kernels.values import Arange, Listed, Randint, Randn, Values

VALID = operations()["per_token_group_quant"].valid
TYPES = [dtype for dtype in DType if dtype.in_torch and dtype not in (DType.C64, DType.C128)]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("values", [Randn(std=3.0), Randint(0, 100), Randn(std=1e39)], ids=["n", "i", "inf"])
def test_a_call_written_out_is_built_of_the_same_bytes(dtype: DType, values: Values) -> None:
    if dtype.kind.value in ("int", "bool") and isinstance(values, Randn) and values.std > 1e6:
        return  # what a whole number becomes of such a float is the processor's own affair
    if dtype is DType.U64 and isinstance(values, Randn):
        return  # negative draws wrap around, and torch reads no list of numbers beyond 63 bits
    spec = TensorSpec((5, 7), dtype, (9, 1), 3, values=values)
    call = seeded_call(VALID.replace(input=spec, output_q=None, output_s=None), 5)
    elements = drawn(call)
    assert list(elements) == ["input"]
    written = written_out(call, elements)
    assert isinstance(written.input.values, Listed)  # type: ignore[attr-defined]
    assert (written.input.strides, written.input.offset) == ((9, 1), 3)  # type: ignore[attr-defined]
    first, second = (materialise(each, {}, "cpu")["input"] for each in (call, written))
    assert torch.equal(first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8))


def test_what_is_not_drawn_shares_memory_or_is_too_much_stays() -> None:
    own = TensorSpec((4, 256), DType.BF16, values=Randn(seed=1))
    left = (
        replace(own, values=Arange()),
        replace(own, values=None),
        replace(own, strides=(0, 1)),
        replace(own.with_shape(MOST_WRITTEN + 1), values=own.values),
        replace(own.with_shape(0, 4), values=own.values),
    )
    assert [drawn(VALID.replace(input=spec)) for spec in left] == [{}] * len(left)
    assert list(drawn(VALID.replace(input=own))) == ["input"]
