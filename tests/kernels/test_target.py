"""Architectures: what their names say, and which of a call's facts they are."""

from __future__ import annotations

import pickle

import pytest

from kernels.comfy_checkpoint import signature as comfy
from kernels.dtypes import DType
from kernels.flash_attn_fwd import signature as attention
from kernels.quanto_int8_checkpoint import signature as quanto
from kernels.registry import operations
from kernels.target import GENERATIONS, GPUS, Target

KNOWN = [
    # name, capability, E4M3 type, compiled
    ("sm70", 70, DType.F8_E4M3FN, False),
    ("sm87", 87, DType.F8_E4M3FN, False),
    ("sm89", 89, DType.F8_E4M3FN, True),
    ("sm90a", 90, DType.F8_E4M3FN, True),
    ("sm100", 100, DType.F8_E4M3FN, True),
    ("sm100f", 100, DType.F8_E4M3FN, True),
    ("sm120", 120, DType.F8_E4M3FN, True),
    ("gfx940", None, DType.F8_E4M3FNUZ, True),
    ("gfx942", None, DType.F8_E4M3FNUZ, True),
    ("gfx950", None, DType.F8_E4M3FN, True),
    ("gfx1250", None, DType.F8_E4M3FN, True),
]


@pytest.mark.parametrize(("name", "capability", "e4m3", "compiled"), KNOWN)
def test_a_name_tells(name: str, capability: int | None, e4m3: DType, compiled: bool) -> None:
    target = Target.parse(name)
    assert (target.capability, target.e4m3, target.compiles_e4m3) == (capability, e4m3, compiled)
    assert str(target) == name


@pytest.mark.parametrize(
    "text", ["", "sm", "sm9", "sm1000", "sm90x", "h1000", "gfx", "nvidia", "gfx94g", "9", "90", "sm90" * 99]
)
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="architecture"):
        Target.parse(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("H100", "sm90"),
        ("NVIDIA H100", "sm90"),
        ("SM_90", "sm90"),
        ("9.0", "sm90"),
        ("12.0", "sm120"),
        ("sm90 ", "sm90"),
        ("hopper", "sm90"),
        ("NVIDIA GeForce RTX 5090", "sm120"),
        ("AMD Instinct MI300X", "gfx942"),
        ("sm_100a", "sm100a"),
    ],
)
def test_a_gpu_is_known_by_the_names_that_people_write(text: str, name: str) -> None:
    assert str(Target.parse(text)) == name


def test_every_known_gpu_is_of_an_architecture() -> None:
    for name, architecture in {**GPUS, **GENERATIONS}.items():
        assert str(Target.parse(name)) == architecture


def test_a_capability_is_an_architecture_and_suffixes_name_the_same_gpus() -> None:
    hopper = Target.of_capability("9.0")
    assert hopper == Target("sm90")
    assert hopper.serves(Target("sm90a"))
    assert not hopper.serves(Target("sm100"))
    assert not hopper.serves(Target("gfx942"))
    assert Target("gfx942").serves(Target("gfx942"))


@pytest.mark.parametrize("name", list(operations()))
def test_a_target_is_a_fact_of_a_call_and_no_argument(name: str) -> None:
    operation = operations()[name]
    aimed = operation.valid.replace(target=Target("sm90"))
    assert "target" not in [parameter.name for parameter in aimed.arguments()]
    assert aimed != operation.valid
    assert operation.valid.edits_to(aimed) == ()
    assert pickle.loads(pickle.dumps(aimed)) == aimed  # noqa: S301 (our own bytes)
    assert operation.fit({"target": Target("sm90")}).target == Target("sm90")


def test_calls_with_a_capability_of_their_own_take_the_targets_where_none_is_stated() -> None:
    file = comfy.example({"format": comfy.NVFP4}, comfy.nvfp4(128, 64), target=Target("sm90"))
    inspection = operations()["comfy_checkpoint"]
    assert (
        inspection.examine(file).raised.text == "Comfy NVFP4 matmul requires NVIDIA compute capability 10.0+"
    )  # type: ignore[union-attr]
    assert inspection.examine(file.replace(capability=10.0)).raised is None
    assert inspection.examine(file.replace(target=Target("sm100"))).raised is None
    forward = operations()["flash_attn_fwd"]
    raised = forward.examine(attention.FULL.replace(target=Target("sm90"))).raised
    assert raised is not None
    assert raised.text == "FP8 is only supported on SM100 (compute capability 10.x) for FA4 CuTe."
    assert forward.examine(attention.FULL.replace(target=Target("sm90"), _arch=100)).raised is None
    assert forward.examine(attention.PLAIN.replace(target=Target("sm120"))).raised is not None
    assert quanto.VALID.replace(target=Target("sm70")).facts()["target"] == Target("sm70")
