"""A difference from upstream is told, whichever part of its word it is in; places of one check are one."""

from __future__ import annotations

import pytest

from app.upstream.comparing import compare
from app.upstream.oracle import Answer
from kernels.dtypes import DType
from kernels.per_token_group_quant.signature import VALID
from kernels.registry import operations
from kernels.spec import TensorSpec

QUANT = operations()["per_token_group_quant"]
WRONG = VALID.replace(output_s=TensorSpec((4, 1), DType.I32))
SAID = "int32-packed scale buffers require scale_ue8m0=True"
CUH = "/opt/site/sglang/kernels/jit/csrc/gemm/per_token_group_quant.cuh"
STRIDED = VALID.with_tensor("input", strides=(264, 1))
STRIDE_SAID = "input token stride must keep rows 32B-aligned for the vectorized loads"


def raised(error_class: str, message: str, *frames: tuple[str, int, str]) -> Answer:
    return Answer("raised", error_class=error_class, message=message, frames=frames)


def test_equal_words_agree() -> None:
    found = compare(QUANT, QUANT.examine(WRONG), raised("ValueError", SAID))
    assert (found.agrees, found.at_check, found.differences) == (True, "packed_scales_without_ue8m0", ())


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (raised("RuntimeError", SAID), "class: upstream raises RuntimeError"),
        (raised("ValueError", SAID + "."), "text: upstream says"),
        (raised("ValueError", "Unsupported output_s dtype torch.int8"), "at unsupported_scale_dtype first"),
        (raised("KeyError", "'x'"), "at none of our checks first"),
    ],
)
def test_each_part_that_differs_is_told(answer: Answer, told: str) -> None:
    found = compare(QUANT, QUANT.examine(WRONG), answer)
    assert found.agrees is False
    assert any(told in difference for difference in found.differences), found.differences


def test_raising_nothing_where_the_checks_refuse_is_a_difference() -> None:
    found = compare(QUANT, QUANT.examine(WRONG), Answer("returned"))
    assert found.agrees is False
    assert "upstream's own raise nothing" in found.differences[0]


def test_raising_where_the_checks_refuse_nothing_is_a_difference() -> None:
    found = compare(QUANT, QUANT.examine(VALID), raised("ValueError", SAID))
    assert found.agrees is False
    assert "the checks predict nothing" in found.differences[0]
    assert found.at_check == "packed_scales_without_ue8m0"


@pytest.mark.parametrize("line", [498, 549])
def test_a_launcher_s_place_is_that_of_the_release_or_the_commit(line: int) -> None:
    found = compare(
        QUANT, QUANT.examine(STRIDED), raised("RuntimeError", f"Failed at {CUH}:{line}: {STRIDE_SAID}")
    )
    assert found.agrees, found


def test_another_line_is_a_difference() -> None:
    found = compare(
        QUANT, QUANT.examine(STRIDED), raised("RuntimeError", f"Failed at {CUH}:496: {STRIDE_SAID}")
    )
    assert found.agrees is False


def test_an_empty_text_is_told_apart_by_its_line() -> None:
    bad = VALID.replace(group_size=96, output_s=TensorSpec((4, 2), DType.F32))
    path = "/opt/site/sglang/kernels/ops/quantization/per_token_group_quant.py"
    examination = QUANT.examine(bad)
    assert examination.raised is not None
    [site] = {line for site in examination.raised.sites for line in site.lines[-1:]}
    assert compare(QUANT, examination, raised("AssertionError", "", (path, site, "_jit_module"))).agrees
    other = compare(QUANT, examination, raised("AssertionError", "", (path, site + 1, "_jit_module")))
    assert other.agrees is False


@pytest.mark.parametrize("ending", ["crashed", "timed-out", "unavailable", "out-of-memory", "not-run"])
def test_the_host_s_troubles_say_nothing_of_the_call(ending: str) -> None:
    assert compare(QUANT, QUANT.examine(WRONG), Answer(ending)).agrees is None  # type: ignore[arg-type]
