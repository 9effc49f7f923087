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
from kernels.values import Arange, Listed, Randint, Randn, Values, bounds

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


OWN = TensorSpec((4, 256), DType.BF16, values=Randn(seed=1))
LARGE = OWN.with_shape(MOST_WRITTEN + 1)


def test_what_is_not_drawn_or_too_much_and_told_by_its_description_stays() -> None:
    left = (
        replace(OWN, values=Arange()),
        replace(OWN, values=None),
        replace(OWN.with_shape(0, 4), values=OWN.values),
        replace(LARGE, values=OWN.values),
        replace(LARGE, values=Randn(std=1e39, seed=1), dtype=DType.F8_E4M3FN),
        replace(LARGE, values=Randint(0, 9, seed=1)),
        replace(LARGE, values=Randint(-(2**31), 2**31, seed=1), dtype=DType.I32),
    )
    assert [drawn(VALID.replace(input=spec)) for spec in left] == [{}] * len(left)
    assert list(drawn(VALID.replace(input=OWN))) == ["input"]


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (DType.I32, Randn(std=1e6)),
        (DType.I64, Randn(mean=-7.0, std=100.0)),
        (DType.U16, Randn(mean=50.0, std=3.0)),
        (DType.BOOL, Randn()),
        (DType.I8, Randint(0, 300)),
        (DType.I32, Randint(0, 2**40)),
        (DType.BF16, Randn(std=1e39)),
        (DType.F16, Randn(mean=65_515.0)),
        (DType.F32, Randn(mean=float("nan"))),
    ],
    ids=str,
)
@pytest.mark.parametrize("strides", [(1,), (0,), (3,)], ids=["dense", "one element", "gaps"])
def test_of_much_the_extremes_are_told(dtype: DType, values: Values, strides: tuple[int, ...]) -> None:
    spec = replace(LARGE, dtype=dtype, values=values, strides=strides)
    call = seeded_call(VALID.replace(input=spec, output_q=None, output_s=None), 5)
    built = materialise(call, {}, "cpu")["input"]
    wide = built.double()
    expected = torch.stack((wide.min(), wide.max())).tolist()
    assert torch.tensor(drawn(call)["input"], dtype=torch.float64).tolist() == pytest.approx(
        expected, nan_ok=True
    )
    told = written_out(call, drawn(call)).input.values  # type: ignore[attr-defined]
    assert bounds(told, spec.shape) == pytest.approx(tuple(expected), nan_ok=True)


@pytest.mark.parametrize("values", [Randn(std=1e6, seed=1), Randint(-(2**63), 2**63, seed=1)], ids=["n", "i"])
def test_slots_of_many_tokens_are_known_to_be_outside_before_a_launch(values: Values) -> None:
    decode = operations()["inkling_attn_prologue_decode"]
    tokens = MOST_WRITTEN + 1
    call = decode.fit(
        {
            "qkvr": TensorSpec((tokens, 512), DType.BF16),
            "loc": TensorSpec((tokens,), DType.I64, values=values),
        }
    )
    told = decode.examine(written_out(call, drawn(call)))
    assert [outcome.check.id() for outcome in told.failed()] == ["loc_out_of_range"]


def test_elements_that_share_memory_are_those_that_a_run_has() -> None:
    spec = replace(OWN, strides=(0, 1))
    call = VALID.replace(input=spec, output_q=None, output_s=None)
    built = materialise(call, {}, "cpu")["input"]
    assert drawn(call)["input"] == tuple(built.float().flatten().tolist())
