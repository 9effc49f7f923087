"""Kernels compiled for GPUs that this host lacks, through the service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from app.worker.compiling import Uncompiled, compile_call, compiles
from kernels.offline import SHARED_MEMORY, TARGETS, offline_name
from kernels.registry import has_kernel, operations
from kernels.target import Target

pytestmark = pytest.mark.timeout(300)

FP8 = {"unified_kv": "float8_e4m3fn[8,128]", "kv_scales": "float32[8,2]"}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(create_app(Settings(device="cpu", run_timeout=120))) as made:
        yield made


def asked(client: TestClient, operation: str, target: str, **arguments: Any) -> dict[str, Any]:
    body = {"operation": operation, "arguments": arguments, "target": target, "level": "run"}
    response = client.post("/api/diagnose", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.mark.parametrize("target", ["sm75", "sm120", "gfx942"])
def test_a_call_for_a_gpu_without_a_worker_is_compiled_for_it(client: TestClient, target: str) -> None:
    answer = asked(client, "sparse_attn_v4_paged_decode", target)
    assert (answer["verdict"], answer["run"]) == ("unsupported", None)
    decode, *_ = answer["compilations"]
    assert (decode["kernel"], decode["target"]) == ("paged_decode_kernel", target)
    assert decode["kind"] == ("hsaco" if target.startswith("gfx") else "cubin")
    assert 0 < decode["sharedBytes"] <= decode["sharedLimit"] == SHARED_MEMORY[target]
    assert decode["fits"] is True


@pytest.mark.parametrize(
    ("target", "width", "fits"),
    [("V100", 576, True), ("V100", 1152, False), ("T4", 576, False), ("A100", 576, True)],
)
def test_wide_heads_need_more_shared_memory_than_older_gpus_have(
    client: TestClient, target: str, width: int, fits: bool
) -> None:
    """Keys of 512 + 64 columns, as latent attention has them, were too wide for a V100 elsewhere."""
    arguments = {"q": f"float16[2,16,{width}]", "unified_kv": f"float16[8,{width}]"}
    answer = asked(client, "sparse_attn_v4_paged_decode", target, **arguments)
    assert answer["verdict"] == "unsupported"
    decode, *_ = answer["compilations"]
    assert decode["sharedLimit"] == {"V100": 98_304, "T4": 65_536, "A100": 166_912}[target]
    assert decode["fits"] is fits is (decode["sharedBytes"] <= decode["sharedLimit"])


def test_the_compiler_says_in_its_own_words_what_the_architecture_lacks(client: TestClient) -> None:
    answer = asked(client, "sparse_attn_v4_paged_decode", "A100", **FP8)
    assert [row["id"] for row in answer["checks"] if row["status"] == "failed"] == ["fp8_not_compiled"]
    decode, *_ = answer["compilations"]
    assert "type fp8e4nv not supported in this architecture" in decode["refusal"]
    assert (decode["target"], decode["kind"], decode["fits"]) == ("sm80", None, None)


def test_what_cannot_be_compiled_here_says_why(client: TestClient) -> None:
    answer = asked(client, "per_token_group_quant", "sm61")
    assert answer["compilations"] is None
    assert "not for sm61" in answer["detail"]
    assert asked(client, "safetensors_file", "sm90")["compilations"] is None


def test_a_call_that_upstream_refuses_is_not_compiled(client: TestClient) -> None:
    assert asked(client, "per_token_group_quant", "sm120", group_size=96)["compilations"] is None


@pytest.mark.parametrize("name", list(operations()))
def test_every_operation_with_a_kernel_says_what_its_calls_compile(name: str) -> None:
    assert compiles(operations()[name]) == has_kernel(operations()[name])


def test_suffixes_name_the_same_architecture_and_others_are_refused() -> None:
    assert offline_name(Target("sm100a")) == "sm100"
    assert [offline_name(Target(name)) for name in TARGETS] == list(TARGETS)
    operation = operations()["per_token_group_quant"]
    for target in (None, Target("sm61"), Target("gfx90a")):
        with pytest.raises(Uncompiled, match="compiled here for"):
            compile_call(operation, operation.valid.replace(target=target))
