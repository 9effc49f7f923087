"""The operation on real files: every format written, read back and run; refusals of live files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kernels.checkpoint import Checkpoint, Header
from kernels.comfy_checkpoint.checks import OPERATIONS
from kernels.comfy_checkpoint.op import RUNNERS, comfy_checkpoint
from kernels.comfy_checkpoint.signature import VALID, ComfyCall
from kernels.dtypes import DType
from kernels.running import compare
from kernels.spec import TensorSpec
from kernels.values import Text, seeded
from tests.kernels.comfy_checkpoint.files import (
    ASYMMETRIC,
    FOUR,
    FP8,
    INT8,
    NVFP4,
    ROTATED,
    TABLE,
    W4A4,
    W4A8,
    P,
    mx,
    nv,
    one,
    raw,
)

[OPERATION] = OPERATIONS
RUNNER = RUNNERS["comfy_checkpoint"]

RUNS: dict[str, tuple[ComfyCall, tuple[int, ...]]] = {
    "valid": (VALID, (1, 128)),
    "nvfp4": (nv(pre_quant_scale=Header("BF16", (64,))).replace(x=TensorSpec((3, 64), DType.BF16)), (3, 128)),
    "fp8": (one({"format": "float8_e4m3fn"}, FP8).replace(x=TensorSpec((2, 64), DType.F16)), (2, 8)),
    "int8": (one(ROTATED, INT8).replace(x=TensorSpec((2, 5, 256), DType.BF16)), (2, 5, 2)),
    "table": (one(TABLE, INT8).replace(x=TensorSpec((3,), DType.I64)), (3, 256)),
    "w4a8": (one(ASYMMETRIC, W4A8).replace(x=TensorSpec((4, 256), DType.F32)), (4, 2)),
    "w4a8 with all": (
        one(
            ASYMMETRIC, W4A8, weight_codebook=Header("F32", (16,)), weight_correction=Header("F32", (16, 2))
        ).replace(x=TensorSpec((4, 256), DType.F16)),
        (4, 2),
    ),
    "w4a4": (one(FOUR, W4A4).replace(x=TensorSpec((4, 256), DType.BF16)), (4, 2)),
    "mxfp8": (mx().replace(x=TensorSpec((4, 64), DType.BF16)), (4, 32)),
    "open marker": (
        nv()
        .with_checkpoint(nv().checkpoint.with_tensor(f"{P}.comfy_quant", Header("U8", (40,))))
        .replace(x=TensorSpec((3, 64), DType.F32)),
        (3, 128),
    ),
}


def build(call: ComfyCall) -> dict[str, Any]:
    assert RUNNER.build is not None
    return RUNNER.build(call, seeded(OPERATION.fill(call), 3), "cpu")


@pytest.mark.parametrize("name", RUNS)
def test_runs_agree_with_float32(name: str) -> None:
    call, shape = RUNS[name]
    assert not OPERATION.examine(call).failed()
    arguments = build(call)
    outputs = RUNNER.outputs(arguments, RUNNER.function(**arguments))
    expected = RUNNER.reference(build(call))
    assert outputs["y"].shape == shape
    assert float(expected["y"].square().mean()) > 1e-3, "a run of zeros shows nothing"
    found = compare("y", outputs["y"], expected["y"], RUNNER.tolerance("y", call))
    assert found.within, found
    spoilt = compare("y", outputs["y"] * 1.2, expected["y"], RUNNER.tolerance("y", call))
    assert not spoilt.within, "the tolerance takes anything"


def test_without_an_activation_the_inspection_is_the_result() -> None:
    method, markers, y = RUNNER.function(**build(VALID.without("x")))
    assert method == "comfy_nvfp4"
    assert y is None
    assert markers == {
        "model.transformer_blocks.0.attn.to_q": {
            "format": "nvfp4",
            "full_precision_matrix_mult": True,
            "_has_pre_quant_scale": False,
        }
    }


def test_an_activation_beside_layers_without_a_weight_goes_through_none() -> None:
    marker = Header("U8", (18,), Text('{"format":"mxfp8"}'))
    header = mx().checkpoint.tensors["a.weight"]
    file = mx().checkpoint.without_tensors("a.weight").with_tensor("a.weight_2", header)
    file = file.with_tensor("a.comfy_quant", marker)
    call = mx().replace(checkpoint=file, x=TensorSpec((4,), DType.F32))
    assert not OPERATION.examine(call).rejected
    method, _, y = RUNNER.function(**build(call))
    assert (method, y) == ("mxfp8", None)
    assert RUNNER.reference(build(call)) == {}


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (raw(b"{bad"), "Invalid Comfy quantization marker 'blk.fc.comfy_quant' in checkpoint.safetensors"),
        (
            raw(b'{"format": "\xff"}'),
            "Invalid Comfy quantization marker 'blk.fc.comfy_quant' in checkpoint.safetensors",
        ),
        (
            nv(weight=Header("I8", (128, 32))),
            "needs U8 packed weights and FP8 block scales, got I8 and F8_E4M3",
        ),
    ],
)
def test_a_described_file_is_refused_as_its_description(call: ComfyCall, text: str) -> None:
    raised = OPERATION.examine(call).raised
    assert raised is not None
    with pytest.raises(raised.raises) as error:
        RUNNER.function(**build(call))
    assert str(error.value) == raised.text
    assert text in raised.text


def test_a_file_of_the_library_is_inspected(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    marker = b'{"format": "nvfp4", "full_precision_matrix_mult": true}'
    tensors = {
        "fc.comfy_quant": torch.tensor(list(marker), dtype=torch.uint8),
        "fc.weight": torch.full((128, 32), 0x21, dtype=torch.uint8),
        "fc.weight_scale": torch.ones(128, 4).to(torch.float8_e4m3fn),
        "fc.weight_scale_2": torch.tensor(0.5),
    }
    save_file(tensors, path)
    method, markers, y = comfy_checkpoint(path, {"fc": "model.fc"}, torch.ones(1, 64), capability=9.0)
    assert (method, list(markers)) == ("comfy_nvfp4", ["model.fc"])
    assert y is not None
    assert torch.equal(y, torch.full((1, 128), 64 * 0.75 * 0.5))
    save_file({**tensors, "fc.comfy_quant": torch.zeros(3, dtype=torch.uint8)}, path)
    with pytest.raises(ValueError, match=r"Invalid Comfy quantization marker 'fc\.comfy_quant' in ") as error:
        comfy_checkpoint(path)
    assert str(path) in str(error.value)


def test_a_file_without_markers_is_refused_by_us(tmp_path: Path) -> None:
    path = tmp_path / "plain.safetensors"
    save_file({"weight": torch.zeros(2, 2)}, path)
    with pytest.raises(ValueError, match="not a Comfy quantized checkpoint"):
        comfy_checkpoint(path)
    assert OPERATION.examine(ComfyCall(Checkpoint({}, {"weight": Header("F32", (2, 2))}))).raised is None


def test_layers_without_a_marker_stay_out_of_the_way() -> None:
    call = nv().with_checkpoint(
        nv().checkpoint.with_tensor("norm.weight", Header("BF16", NVFP4["weight"].shape))
    )
    assert RUNNER.function(**build(call))[0] == "comfy_nvfp4"
