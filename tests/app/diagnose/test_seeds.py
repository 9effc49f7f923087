"""The four errors that the project began with: refused in upstream's words at both levels, and repaired."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from kernels.registry import has_kernel, operations

PREFIX = "language_model.layers.0.mlp.up_proj"
MAP = base64.b64encode(json.dumps({PREFIX: {"weights": "qint8", "activations": "none"}}).encode()).decode()

SEEDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "402df144293dfbb6": (
        {
            "operation": "per_token_group_quant",
            "arguments": {
                "input": "bfloat16[16,7168]",
                "output_q": "float8_e4m3fn[16,7168]",
                "output_s": "int32[16,14]:stride(1,16)",
            },
        },
        "ValueError",
        "int32-packed scale buffers require scale_ue8m0=True",
    ),
    "423125772347fb99": (
        {
            "operation": "inkling_attn_prologue_decode",
            "arguments": {
                "qkvr": "bfloat16[3,256]:stride(576,1)",
                "k_buf": "float8_e4m3fn[256,1,128]",
                "v_buf": "float8_e4m3fn[256,1,128]",
                "q_off": 0,
                "k_off": 256,
                "v_off": 384,
                "dq": 256,
                "dkv": 128,
                "mxfp8_quant": True,
                "sfk": "uint8[1,1,32,4,4]",
                "sfv": "uint8[2,1,32,4,4]",
                "page_size": 128,
            },
        },
        "ValueError",
        (
            "MXFP8 fused decode prologue requires interleaved K/V scale buffers with shape (2, 1, 32, 4, 4), "
            "got (1, 1, 32, 4, 4) and (2, 1, 32, 4, 4)."
        ),
    ),
    "3018da578aab5d5a": (
        {
            "operation": "sparse_attn_v4_paged_decode",
            "arguments": {
                "q": "bfloat16[2,16,128]",
                "unified_kv": "float8_e4m3fn[8,128]",
                "kv_scales": "bfloat16[8,2]",
            },
        },
        "RuntimeError",
        "kv_scales must be fp32, got torch.bfloat16",
    ),
    "0416e3d22055e05b": (
        {
            "operation": "quanto_int8_checkpoint",
            "arguments": {
                "checkpoint": {
                    "metadata": {"quantization_format": "quanto", "quantization_map_base64": MAP},
                    "tensors": {
                        f"{PREFIX}.weight._data": {"dtype": "I8", "shape": [3, 2]},
                        f"{PREFIX}.weight._scale": {"dtype": "BF16", "shape": [3, 1]},
                        f"{PREFIX}.input_scale": {"dtype": "BF16", "shape": [1]},
                        f"{PREFIX}.output_scale": {"dtype": "BF16", "shape": []},
                    },
                },
                "x": "bfloat16[1,2]",
            },
        },
        "ValueError",
        f"Quanto auxiliary scale '{PREFIX}.input_scale' must be a float scalar",
    ),
}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(create_app(Settings(device="cpu", run_timeout=60))) as made:
        yield made


@pytest.mark.parametrize("level", ["checks", "run"])
@pytest.mark.parametrize("identifier", SEEDS)
def test_refused_in_upstreams_words_and_repaired_by_the_first_fix(
    client: TestClient, identifier: str, level: str
) -> None:
    body, error, message = SEEDS[identifier]
    answer = client.post("/api/diagnose", json={**body, "level": level}).json()
    assert answer["verdict"] == "rejected", answer
    raised = answer["raised"]
    assert (raised["errorClass"], raised["message"], raised["recordId"]) == (error, message, identifier)
    assert answer["disagreement"] is None
    fix = answer["fixes"][0]
    proved = "matches-reference" if has_kernel(operations()[body["operation"]]) else "ran"
    assert fix["level"] == ("checks-pass" if level == "checks" else proved)
    again = client.post(
        "/api/diagnose", json={"operation": body["operation"], "arguments": fix["arguments"], "level": level}
    ).json()
    assert again["verdict"] == "passed", again
    if level == "run":
        assert again["run"]["outputs"]


@pytest.mark.parametrize("identifier", SEEDS)
def test_the_message_finds_its_record_and_a_call_to_go_on_with(client: TestClient, identifier: str) -> None:
    _, error, message = SEEDS[identifier]
    matched = client.post("/api/match", json={"text": f"{error}: {message}"}).json()
    assert matched["hasMatch"]
    first = matched["matches"][matched["rootCause"]]
    assert first["id"] == identifier
    answer = client.post("/api/diagnose", json={**first["spec"], "level": "checks"}).json()
    assert answer["raised"]["recordId"] == identifier
