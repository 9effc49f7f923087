"""A run tells of memory written outside, of elements left unwritten, and of NaN that became numbers."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from app.worker.measuring import Measured, measure, swallowed
from app.worker.messages import Outcome
from kernels.per_token_group_quant.signature import VALID
from kernels.registry import operations
from kernels.running import materialise
from kernels.values import seeded

OPERATION = operations()["per_token_group_quant"]

pytestmark = pytest.mark.usefixtures("triton_mode")


def measured(function: Any, broken: int = 0) -> Measured:
    """The valid call, with `function` after the reference in place of the kernel; so many NaN go in."""
    from kernels.per_token_group_quant.op import RUNNERS  # brings triton, whose mode is chosen before

    runner = RUNNERS["per_token_group_quant"]

    def run(**arguments: Any) -> Any:
        runner.reference(arguments)
        function(arguments["output_q"], arguments["output_s"])
        return arguments["output_q"], arguments["output_s"]

    def build() -> dict[str, Any]:
        arguments = materialise(VALID, seeded(OPERATION.fill(VALID), 0), "cpu")
        arguments["input"].view(-1)[:broken] = torch.nan
        return arguments

    return measure(
        OPERATION, replace(runner, function=run), VALID, build, lambda _: nullcontext(), cuda=False
    )


def test_a_run_that_keeps_to_its_outputs_has_nothing_to_tell() -> None:
    found = measured(lambda codes, scales: None)
    assert found.breaches == ()
    assert found.remarks == ()
    assert [output.within for output in found.outputs] == [True, True]


@pytest.mark.parametrize("rows", [1, 30])
def test_rows_written_behind_an_output_are_told(rows: int) -> None:
    def spill(codes: torch.Tensor, scales: torch.Tensor) -> None:
        behind = codes.storage_offset() + codes.numel()
        codes.as_strided((rows, 256), (256, 1), behind).view(torch.uint8).zero_()

    found = measured(spill)
    told = f"{rows * 256:,} bytes outside of output_q were written, the first 1024 behind where it begins"
    assert found.breaches == (told,)
    assert all(output.within for output in found.outputs)


def test_elements_left_as_they_were_are_told() -> None:
    def forget(codes: torch.Tensor, scales: torch.Tensor) -> None:
        scales[2:].view(torch.uint8).fill_(0xA5)

    found = measured(forget)
    assert found.remarks == ("4 elements of output_s were not written",)
    assert not found.outputs[1].within


def test_nan_that_went_into_the_call_is_told() -> None:
    def hide(codes: torch.Tensor, scales: torch.Tensor) -> None:
        codes.view(torch.uint8).zero_()
        scales.zero_()

    [told] = measured(hide, broken=3).remarks
    assert "3 of input" in told


def test_a_breach_is_no_agreement() -> None:
    assert Outcome("returned").agrees
    assert not Outcome("returned", breaches=("4 bytes outside",)).agrees


def test_nan_that_became_zeros_is_named() -> None:
    out = torch.ones(2, 4)
    out[0] = 0
    [told] = swallowed({"q": 1}, {"out": out})
    assert "1 of q" in told
    assert "zeros (4 of out)" in told
    out[0, 0] = float("inf")
    assert swallowed({"q": 1}, {"out": out}) == []
    assert swallowed({}, {"out": torch.zeros(2)}) == []
