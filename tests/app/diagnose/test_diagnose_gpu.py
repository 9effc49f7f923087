"""The whole service on a real GPU: runs, fixes and the end of a broken CUDA context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from kernels.call import arguments_json
from kernels.registry import operations

pytestmark = pytest.mark.gpu

PACKED = {
    "operation": "per_token_group_quant",
    "arguments": {
        "input": "bfloat16[16,7168]",
        "output_q": "float8_e4m3fn[16,7168]",
        "output_s": "int32[16,14]:stride(1,16)",
    },
    "level": "run",
}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(create_app(Settings(device="cuda", run_timeout=120, max_tensor_bytes=8 << 30))) as made:
        # Once the worker is known, its GPU is the target of calls that name none, at level checks too.
        diagnose(made, {"operation": "safetensors_file", "arguments": {}, "level": "run"})
        yield made


def diagnose(client: TestClient, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post("/api/diagnose", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_the_packed_scales_of_the_contract_are_repaired_by_the_kernel_on_the_card(client: TestClient) -> None:
    answer = diagnose(client, PACKED)
    assert answer["raised"]["recordId"] == "402df144293dfbb6"
    fix = answer["fixes"][0]
    assert [edit["argument"] for edit in fix["edits"]] == ["scale_ue8m0"]
    assert fix["level"] == "matches-reference"
    assert fix["run"]["device"]["emulated"] is False
    assert fix["run"]["device"]["capability"]
    assert fix["run"]["maxAbsError"] == 0.0
    assert answer["environment"]["driver"]
    assert answer["environment"]["cuda"]


@pytest.mark.parametrize("name", [name for name, found in operations().items() if not found.needs])
def test_every_valid_call_runs_on_the_card(client: TestClient, name: str) -> None:
    body = {"operation": name, "arguments": arguments_json(operations()[name].valid), "level": "run"}
    answer = diagnose(client, body)
    assert (answer["verdict"], answer["disagreement"]) == ("passed", None), answer["run"]


@pytest.mark.parametrize(
    ("name", "identifier"),
    [(name, check.id()) for name, found in operations().items() for check in found.checks if check.example()],
)
def test_the_guard_on_the_card_says_what_the_checks_say(
    client: TestClient, name: str, identifier: str
) -> None:
    check = operations()[name].check(identifier)
    assert check is not None
    example = check.example()
    assert example is not None
    if sum(tensor.storage_bytes for _, tensor in example.tensors()) > 8 << 30:
        pytest.skip("larger than a run may be here")
    if example.target is not None:
        pytest.skip(f"meant for {example.target}")
    body = {"operation": name, "arguments": arguments_json(example)}
    checked = diagnose(client, {**body, "level": "checks"})
    answer = diagnose(client, {**body, "level": "run"})
    assert answer["disagreement"] is None
    assert answer["raised"] == checked["raised"]
    # A race that was only warned of may show itself on the card.
    warned = any(row["status"] == "failed" and row["severity"] == "warning" for row in checked["checks"])
    assert answer["verdict"] in {checked["verdict"], *(["wrong-result"] if warned else [])}


def test_an_index_outside_the_pool_ends_its_own_run_only(client: TestClient) -> None:
    arguments = {
        "q": "bfloat16[2,16,128]",
        "unified_kv": "bfloat16[8,128]",
        "kv_indices": {"shape": [8], "dtype": "int32", "values": {"kind": "full", "value": 1_000_000_000}},
    }
    answer = diagnose(
        client, {"operation": "sparse_attn_v4_paged_decode", "arguments": arguments, "level": "run"}
    )
    assert answer["verdict"] in ("crashed", "rejected")
    assert diagnose(client, PACKED)["fixes"][0]["level"] == "matches-reference"


def test_more_memory_than_the_card_has_is_said() -> None:
    settings = Settings(device="cuda", run_timeout=120, max_tensor_bytes=1 << 50)
    with TestClient(create_app(settings)) as service:
        body = {
            "operation": "per_token_group_quant",
            "arguments": {"input": "float32[8000000,8192]"},
            "level": "run",
        }
        assert diagnose(service, body)["verdict"] == "out-of-memory"
        assert diagnose(service, PACKED)["verdict"] == "rejected"
