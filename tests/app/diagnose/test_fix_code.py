"""The code of a fix: what changes in the caller's own file or tensors, and the passing call."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from safetensors import safe_open

from app.main import create_app
from app.settings import Settings
from kernels.checkpoint import Checkpoint
from kernels.checkpoint_file import read_header, write
from kernels.registry import operations
from kernels.values import Listed, Ones
from tests.upstream_stand_in import on_this_host, stand_in

MAP = base64.b64encode(json.dumps({"l": {"weights": "qint8", "activations": "none"}}).encode()).decode()
FILE = {
    "metadata": {"quantization_format": "quanto", "quantization_map_base64": MAP},
    "tensors": {
        "l.weight._data": {"dtype": "I8", "shape": [3, 2]},
        "l.weight._scale": {"dtype": "BF16", "shape": [3]},
        "l.input_scale": {"dtype": "BF16", "shape": [1]},
        "l.output_scale": {"dtype": "BF16", "shape": [1]},
    },
}


def first_fix(arguments: dict[str, Any], operation: str) -> dict[str, Any]:
    body = {"operation": operation, "arguments": arguments, "level": "checks"}
    with TestClient(create_app(Settings(device="cpu", workers=0))) as client:
        answer = client.post("/api/diagnose", json=body).json()
    fix: dict[str, Any] = answer["fixes"][0]
    return fix


def test_a_files_fix_keeps_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix = first_fix({"checkpoint": FILE}, "quanto_int8_checkpoint")
    described = Checkpoint.from_json(FILE)
    held = {name: (header, Ones()) for name, header in described.tensors.items()}
    scale = described.tensors["l.weight._scale"]
    monkeypatch.chdir(tmp_path)
    write(
        Path("checkpoint.safetensors"),
        described.metadata,
        {**held, "l.weight._scale": (scale, Listed((0.5, 0.25, 2)))},
    )
    names: dict[str, Any] = {}
    exec(fix["code"], names)  # noqa: S102 (the answer's own script)
    with safe_open(names["checkpoint"], framework="pt") as file:
        assert read_header(file) == Checkpoint.from_json(fix["arguments"]["checkpoint"])
        assert file.get_tensor("l.weight._scale").tolist() == [[0.5], [0.25], [2.0]]
        assert file.get_tensor("l.weight._data").tolist() == [[1, 1]] * 3


QUANT = {
    "input": "bfloat16[16,7168]",
    "output_q": "float8_e4m3fn[16,7168]",
    "output_s": "int32[16,14]:stride(1,16)",
    "group_size": 128,
    "scale_ue8m0": False,
}


def test_a_calls_fix_is_the_passing_call_and_says_what_was() -> None:
    fix = first_fix(QUANT, "per_token_group_quant")
    imported, _, function, _, *built, _, was, call = fix["code"].splitlines()
    assert imported == "import torch"
    assert function == (
        "from sglang.kernels.ops.quantization.per_token_group_quant import per_token_group_quant"
    )
    assert [line.partition(" = ")[0] for line in built] == ["input", "output_q", "output_s"]
    assert was == "# scale_ue8m0: was False"
    assert call == "per_token_group_quant(input, output_q, output_s, scale_ue8m0=True)"


MADE_ANEW = 'output_q = torch.empty(4, 256, dtype=torch.float8_e4m3fn, device="cuda")'


@pytest.mark.parametrize(
    ("operation", "arguments", "line"),
    [
        (
            "per_token_group_quant",
            {"input": "bf16[4,256]:stride(512,2)"},
            "input = input.contiguous()  # was bfloat16[4,256]:stride(512,2)",
        ),
        (
            "per_token_group_quant",
            {"input": "bf16[4,256]", "output_q": "fp8[4,1,256]", "output_s": "f32[4,2]"},
            f"{MADE_ANEW}  # was float8_e4m3fn[4,1,256]",
        ),
        (
            "sparse_attn_v4_paged_decode",
            {"unified_kv": "fp8[8,128]", "kv_scales": "f32[2,8]"},
            "kv_scales = kv_scales.t()  # was float32[2,8]",
        ),
        (
            "inkling_attn_prologue_decode",
            {"q_gamma": "f32[128]"},
            "q_gamma = q_gamma.to(torch.bfloat16)  # was float32[128]",
        ),
    ],
    ids=["strided input", "output of three dimensions", "transposed scales", "weights of another type"],
)
def test_a_tensor_of_another_layout_is_converted_and_an_output_made_anew(
    operation: str, arguments: dict[str, Any], line: str
) -> None:
    code = first_fix(arguments, operation)["code"].splitlines()
    name = line.partition(" = ")[0]
    own = [each for each in code if each.startswith(f"{name} = ")]
    assert own[-1] == line
    # The caller's own comes first where something is made of it.
    assert len(own) == (1 if name.startswith("output") else 2)
    [blank] = [place for place, each in enumerate(code) if place > 4 and not each]
    assert code[blank + 1] == line


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        (QUANT, {}),
        ({"input": "bf16[16,4096]:stride(4100,1):offset(4)"}, {"input": (16, 4096)}),
        ({"input": "bf16[4,3420]"}, {"input": (4, 3456)}),
        ({"input": "bf16[4,256]", "output_q": "fp8[4,256]"}, {"output_s": (4, 2)}),
        ({"input": "f64[4,256]"}, {"input": (4, 256)}),
    ],
)
def test_the_code_runs_and_calls_with_the_arguments_of_the_fix(
    arguments: dict[str, Any], changed: dict[str, tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fix = first_fix(arguments, "per_token_group_quant")
    called = stand_in(operations()["per_token_group_quant"], monkeypatch)
    exec(on_this_host(fix["code"]), {})  # noqa: S102 (the answer's own script)
    [given] = called
    assert set(given) == set(fix["arguments"])
    for name, shape in changed.items():
        assert tuple(given[name].shape) == shape
    assert "# " in fix["code"]
    assert {edit["argument"] for edit in fix["edits"]} >= set(changed)
