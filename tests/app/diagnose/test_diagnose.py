"""POST /api/diagnose through HTTP, with a real worker: verdicts, fixes that were run again, and bad
requests.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.diagnose.questions import parse_question
from app.diagnose.service import Diagnoser
from app.main import create_app
from app.settings import Settings
from app.worker.messages import Device, Environment, Job, Outcome, Worker
from app.worker.pool import PoolFull
from catalog.additions import request
from catalog.store import load_catalog
from kernels.call import Call, arguments_json
from kernels.registry import has_kernel, operations

CONTRACT_EXAMPLE = {
    "operation": "per_token_group_quant",
    "arguments": {
        "input": {"shape": [16, 7168], "dtype": "bfloat16"},
        "output_q": {"shape": [16, 7168], "dtype": "float8_e4m3fn"},
        "output_s": {"shape": [16, 14], "dtype": "int32", "strides": [1, 16]},
        "group_size": 128,
        "scale_ue8m0": False,
    },
}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """A service with one CPU worker."""
    with TestClient(create_app(Settings(device="cpu", run_timeout=30))) as made:
        yield made


@pytest.fixture(scope="module")
def checker() -> Iterator[TestClient]:
    """A service without a worker."""
    with TestClient(create_app(Settings(workers=0))) as made:
        yield made


def diagnose(client: TestClient, body: dict[str, Any]) -> dict[str, Any]:
    response = client.post("/api/diagnose", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def failed(answer: dict[str, Any]) -> list[str]:
    return [check["id"] for check in answer["checks"] if check["status"] == "failed"]


@pytest.mark.parametrize("level", ["checks", "run"])
def test_the_contracts_example_is_rejected_in_upstreams_words_and_repaired(
    client: TestClient, level: str
) -> None:
    answer = diagnose(client, {**CONTRACT_EXAMPLE, "level": level})
    assert answer["verdict"] == "rejected"
    assert answer["raised"] == {
        "errorClass": "ValueError",
        "message": "int32-packed scale buffers require scale_ue8m0=True",
        "recordId": "402df144293dfbb6",
        "atCheck": "packed_scales_without_ue8m0",
    }
    assert failed(answer) == ["packed_scales_without_ue8m0"]
    first = answer["fixes"][0]
    assert first["edits"] == [{"argument": "scale_ue8m0", "attribute": "value", "from": False, "to": True}]
    assert first["safe"]
    assert first["level"] == ("matches-reference" if level == "run" else "checks-pass")
    assert answer["disagreement"] is None


def test_a_fix_that_was_run_passes_when_it_is_asked_for(client: TestClient) -> None:
    answer = diagnose(client, {**CONTRACT_EXAMPLE, "level": "run"})
    for fix in answer["fixes"]:
        again = diagnose(
            client, {"operation": answer["operation"], "arguments": fix["arguments"], "level": "run"}
        )
        assert again["verdict"] == "passed"
        assert again["run"]["outputs"]


def test_a_run_says_where_and_how_well(client: TestClient) -> None:
    answer = diagnose(client, {"operation": "per_token_group_quant", "level": "run"})
    assert answer["verdict"] == "passed"
    run = answer["run"]
    assert run["device"] == {"name": "cpu", "capability": None, "emulated": True}
    assert run["implementation"] == "triton"
    assert {output["name"] for output in run["outputs"]} == {"output_q", "output_s"}
    assert run["maxAbsError"] <= run["tolerance"]["atol"] or all(
        output["within"] for output in run["outputs"]
    )
    assert answer["environment"]["torch"]
    assert any("emulates" in sentence for sentence in answer["assumed"])
    assert any(sentence.startswith("input = ") for sentence in answer["assumed"])


@pytest.mark.parametrize("name", list(operations()))
def test_every_operation_runs_its_valid_call(client: TestClient, name: str) -> None:
    operation = operations()[name]
    body = {"operation": name, "arguments": arguments_json(operation.valid), "level": "run"}
    answer = diagnose(client, body)
    if operation.needs:
        assert (answer["verdict"], failed(answer), answer["run"]) == ("unsupported", [], None)
        assert operation.needs in answer["detail"]
        return
    assert (answer["verdict"], failed(answer), answer["disagreement"]) == ("passed", [], None)
    implementation = answer["run"]["implementation"]
    assert (implementation == "triton") == has_kernel(operation)


@pytest.mark.parametrize(
    ("name", "identifier"),
    [(name, check.id()) for name, found in operations().items() for check in found.checks if check.example()],
)
def test_every_example_is_refused_by_the_real_function_as_the_checks_say(
    client: TestClient, name: str, identifier: str
) -> None:
    check = operations()[name].check(identifier)
    assert check is not None
    example = check.example()
    assert example is not None
    body = request(operations()[name], example)
    checked = diagnose(client, {**body, "level": "checks"})
    assert identifier in failed(checked)
    if example.target is not None:
        run = diagnose(client, {**body, "level": "run"})
        assert (run["run"], run["detail"]) == (None, f"no worker of this service is a {example.target}")
        return
    if sum(tensor.storage_bytes for _, tensor in example.tensors()) > 1 << 30:
        return
    run = diagnose(client, {**body, "level": "run"})
    assert run["disagreement"] is None
    assert run["raised"] == checked["raised"]
    assert run["verdict"] == checked["verdict"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"input": {"shape": [1_000_000, 1_000_000], "dtype": "bfloat16"}},
        {"input": {"shape": [4, 256], "dtype": "bf16", "strides": [0, 1]}},
        {"input": {"shape": [4, 256], "dtype": "bf16", "strides": [128, 1]}},
        {"input": {"shape": [0, 0], "dtype": "bf16"}},
        {"input": {"shape": [], "dtype": "bf16"}},
        {"input": {"shape": [2**63 - 1] * 3, "dtype": "bf16"}},
        {"input": "torch.bfloat16[4,256]", "group_size": "128"},
        {"input": "bf16[4,256]", "group_size": 2**200},
        {"input": "bf16[4,256]", "scale_ue8m0": 7, "fuse_silu_and_mul": None},
        {"input": "bf16[4,256]", "group_size": -128},
        {"input": "BF16[4,256]", "silu_and_mul_mode": "\u0000\u202e<script>"},
    ],
)
def test_unusual_calls_are_diagnosed(client: TestClient, arguments: dict[str, Any]) -> None:
    for level in ("checks", None):
        answer = diagnose(
            client, {"operation": "per_token_group_quant", "arguments": arguments, "level": level}
        )
        assert answer["verdict"] in ("passed", "rejected")
        for fix in answer["fixes"]:
            body = {"operation": "per_token_group_quant", "arguments": fix["arguments"], "level": "checks"}
            assert diagnose(client, body)["verdict"] == "passed"


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        ({}, ["/operation"]),
        ([], [""]),
        ({"operation": 3}, ["/operation"]),
        ({"operation": "per_token_group_quant", "extra": 1}, ["/extra"]),
        ({"operation": "per_token_group_quant", "level": "deep"}, ["/level"]),
        ({"operation": "per_token_group_quant", "target": "sm90; rm"}, ["/target"]),
        ({"operation": "per_token_group_quant", "seed": -1}, ["/seed"]),
        ({"operation": "per_token_group_quant", "arguments": []}, ["/arguments"]),
        (
            {"operation": "per_token_group_quant", "arguments": {"input": {"shape": [-1], "dtype": "bf16"}}},
            ["/arguments/input/shape/0"],
        ),
        (
            {"operation": "per_token_group_quant", "arguments": {"input": {"shape": "4", "dtype": "bf17"}}},
            ["/arguments/input/shape", "/arguments/input/dtype"],
        ),
        ({"operation": "per_token_group_quant", "arguments": {"input": "bf16[4"}}, ["/arguments/input"]),
        ({"operation": "per_token_group_quant", "arguments": {"input": 5}}, ["/arguments/input"]),
        ({"operation": "per_token_group_quant", "arguments": {"in/put": 5}}, ["/arguments/in~1put"]),
        ({"operation": "per_token_group_quant", "arguments": {"group_size": [1]}}, ["/arguments/group_size"]),
        (
            {"operation": "per_token_group_quant", "arguments": {"out_dtype": "fp99"}},
            ["/arguments/out_dtype"],
        ),
        (
            {
                "operation": "per_token_group_quant",
                "arguments": {"input": {"shape": [4], "dtype": "bf16", "strides": [1, 2]}},
            },
            ["/arguments/input"],
        ),
        (
            {
                "operation": "per_token_group_quant",
                "arguments": {"input": {"shape": [4], "dtype": "bf16", "values": {"kind": "exec"}}},
            },
            ["/arguments/input/values"],
        ),
        (
            {
                "operation": "per_token_group_quant",
                "arguments": {"input": {"shape": [1] * 65, "dtype": "bf16"}},
            },
            ["/arguments/input/shape"],
        ),
    ],
)
def test_what_cannot_be_read_is_listed_with_pointers(
    checker: TestClient, body: Any, pointers: list[str]
) -> None:
    response = checker.post("/api/diagnose", json=body)
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert [fault["pointer"] for fault in response.json()["errors"]] == pointers


def test_an_unknown_operation_is_not_found(checker: TestClient) -> None:
    response = checker.post("/api/diagnose", json={"operation": "os.system"})
    assert (response.status_code, response.json()["status"]) == (404, 404)


def test_a_float_where_an_int_belongs_is_repaired_by_the_same_number(checker: TestClient) -> None:
    arguments = {"input": "bf16[4,256]", "group_size": 128.0}
    answer = diagnose(checker, {"operation": "per_token_group_quant", "arguments": arguments})
    edit = answer["fixes"][0]["edits"][0]
    assert (edit["from"], edit["to"], type(edit["to"])) == (128.0, 128, int)


def test_a_fix_of_the_input_leaves_allocated_outputs_to_upstream(checker: TestClient) -> None:
    arguments = {"input": "bf16[16,4096]:stride(4100,1):offset(4)"}
    answer = diagnose(checker, {"operation": "per_token_group_quant", "arguments": arguments})
    assert failed(answer) == ["input_address_unaligned", "input_row_stride_unaligned"]
    assert {edit["argument"] for edit in answer["fixes"][0]["edits"]} == {"input"}
    assert list(answer["fixes"][0]["arguments"]) == ["input"]


def test_what_only_we_refuse_is_not_run_but_its_fix_is(client: TestClient) -> None:
    body = {
        "operation": "per_token_group_quant",
        "arguments": {
            "input": "bf16[4,256]",
            "output_q": "fp8[4,256]:offset(8)",
            "output_s": "float32[4,2]",
        },
        "level": "run",
    }
    answer = diagnose(client, body)
    assert (answer["verdict"], answer["raised"], answer["run"]) == ("rejected", None, None)
    assert failed(answer) == ["codes_unaligned"]
    assert answer["fixes"][0]["level"] == "matches-reference"


def test_too_large_a_run_is_refused_and_the_checks_are_not(client: TestClient) -> None:
    body = {
        "operation": "per_token_group_quant",
        "arguments": {"input": {"shape": [1_000_000, 1_000_192], "dtype": "bfloat16"}},
    }
    assert client.post("/api/diagnose", json={**body, "level": "run"}).status_code == 413
    answer = diagnose(client, body)
    assert answer["level"] == "checks"
    assert any("level checks" in sentence for sentence in answer["assumed"])


def test_a_run_without_a_worker_is_unsupported_and_still_checked(checker: TestClient) -> None:
    answer = diagnose(checker, {"operation": "per_token_group_quant", "level": "run"})
    assert answer["verdict"] == "unsupported"
    assert "no worker" in answer["detail"]
    assert diagnose(checker, {**CONTRACT_EXAMPLE, "level": "run"})["verdict"] == "rejected"


OLD = {"operation": "sparse_attn_v4_paged_decode", "target": "sm80"}
QUANTIZED = {
    "unified_kv": "float8_e4m3fn[8,128]",
    "kv_scales": "float32[8,2]",
}


@pytest.mark.parametrize(
    ("target", "fails", "message"),
    [
        (None, [], None),
        ("sm89", [], None),
        ("sm100a", [], None),
        ("gfx950", [], None),
        ("sm86", ["fp8_not_compiled"], None),
        (
            "gfx942",
            ["kv_not_fp8"],
            "kv_scales supplied but unified_kv is torch.float8_e4m3fn, expected torch.float8_e4m3fnuz",
        ),
    ],
)
def test_a_target_selects_the_checks_of_its_architecture(
    checker: TestClient, target: str | None, fails: list[str], message: str | None
) -> None:
    answer = diagnose(checker, {**OLD, "arguments": QUANTIZED, "target": target})
    assert failed(answer) == fails
    assert (answer["raised"] or {}).get("message") == message
    assert answer["verdict"] == ("rejected" if fails else "passed")
    assert bool(answer["fixes"]) == bool(fails)


def test_what_is_left_out_is_completed_for_the_target(checker: TestClient) -> None:
    answer = diagnose(checker, {**OLD, "arguments": {"kv_scales": "float32[8,2]"}, "target": "gfx942"})
    assert answer["verdict"] == "passed"
    assert any("unified_kv = float8_e4m3fnuz[8,128]" in sentence for sentence in answer["assumed"])


def test_a_call_for_another_architecture_is_checked_and_run_only_where_asked(client: TestClient) -> None:
    checked = diagnose(client, {**OLD, "arguments": {}})
    assert (checked["level"], checked["verdict"], checked["run"]) == ("checks", "passed", None)
    assert "level checks: no worker of this service is a sm80" in checked["assumed"]
    asked = diagnose(client, {**OLD, "arguments": {}, "level": "run"})
    assert (asked["verdict"], asked["run"]) == ("unsupported", None)


def refused() -> Call:
    question = parse_question(json.dumps({**OLD, "arguments": QUANTIZED}).encode())
    return question.call


class _Gpu:
    """A pool with a worker on a GPU that is not here; of the jobs it is given only repairs may run."""

    exists = True
    joins = False
    places = 1
    worker = Worker(Device("NVIDIA A100", "8.0", False), Environment())

    async def introduced(self) -> None:
        pass

    def choose(self, *_: object) -> Worker:
        return self.worker

    async def run(self, job: Job, worker: Worker, _: object) -> Outcome:
        assert job.call != refused(), "a refused call is not run"
        return Outcome("returned", self.worker.device, "reference")


class _Slow(_Gpu):
    """A pool whose runs take a while each."""

    cancelled = 0

    async def run(self, job: Job, worker: Worker, _: object) -> Outcome:
        try:
            await asyncio.sleep(0.6)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Outcome("returned", self.worker.device, "triton")


def test_repairs_are_run_for_as_long_as_one_run_may_take() -> None:
    pool, settings = _Slow(), Settings(run_timeout=1.0)
    diagnoser = Diagnoser(settings, pool, load_catalog().record_id_of, "")  # type: ignore[arg-type]
    began = time.monotonic()
    packed = {"output_s": "int32[16,14]:stride(1,16)", "output_q": "float8_e4m3fn[16,7168]"}
    body = {"operation": "per_token_group_quant", "arguments": packed, "level": "run"}
    answer = asyncio.run(diagnoser.diagnose(parse_question(json.dumps(body).encode())))
    assert time.monotonic() - began < 3 * 0.6 + 1.0
    assert [fix.level for fix in answer.fixes[:2]] == ["matches-reference", "checks-pass"]
    assert pool.cancelled == 1


class _Full(_Gpu):
    """A pool that has no place but for the first run, at first."""

    def __init__(self, refusals: int) -> None:
        self.runs, self.refusals = 0, refusals

    async def run(self, job: Job, worker: Worker, _: object) -> Outcome:
        if self.runs and self.refusals:
            self.refusals -= 1
            raise PoolFull("every worker is busy")
        self.runs += 1
        return Outcome("returned", self.worker.device, "triton")


@pytest.mark.parametrize(("refusals", "level"), [(2, "matches-reference"), (1000, "checks-pass")])
def test_a_run_is_not_run_again_because_its_repair_found_no_place(refusals: int, level: str) -> None:
    pool, settings = _Full(refusals), Settings(run_timeout=1.0)
    diagnoser = Diagnoser(settings, pool, load_catalog().record_id_of, "")  # type: ignore[arg-type]
    packed = {"output_s": "int32[16,14]:stride(1,16)", "output_q": "float8_e4m3fn[16,7168]"}
    body = {"operation": "per_token_group_quant", "arguments": packed, "level": "run"}
    answer = asyncio.run(diagnoser.diagnose(parse_question(json.dumps(body).encode())))
    assert answer.fixes[0].level == level
    assert (pool.runs == 1) is (level == "checks-pass")


def test_at_level_run_the_workers_own_gpu_is_the_target(checker: TestClient) -> None:
    catalog = load_catalog()
    diagnoser = Diagnoser(Settings(), _Gpu(), catalog.record_id_of, "")  # type: ignore[arg-type]
    body = {"operation": OLD["operation"], "arguments": QUANTIZED}
    for level in ({"level": "run"}, {}):
        answer = asyncio.run(diagnoser.diagnose(parse_question(json.dumps({**body, **level}).encode())))
        assert [check.id for check in answer.checks if check.status == "failed"] == ["fp8_not_compiled"]
    checked = diagnose(checker, {**body, "level": "checks"})
    assert failed(checked) == []


def test_a_run_on_another_device_than_the_workers_is_unsupported(client: TestClient) -> None:
    diagnose(client, {"operation": "per_token_group_quant", "level": "run"})
    for choice in ({"device": "cuda"}, {"target": "sm100"}):
        answer = diagnose(client, {"operation": "per_token_group_quant", "level": "run", **choice})
        assert (answer["verdict"], answer["run"]) == ("unsupported", None)


def test_beyond_loopback_runs_are_off_until_the_operator_opens_them() -> None:
    with TestClient(create_app(Settings(host="0.0.0.0", device="cpu"))) as service:
        answer = diagnose(service, {"operation": "per_token_group_quant", "level": "run"})
        assert (answer["verdict"], answer["run"]) == ("unsupported", None)
        assert diagnose(service, {"operation": "per_token_group_quant"})["level"] == "checks"


@pytest.mark.parametrize("name", list(operations()))
def test_an_operation_describes_itself_completely(checker: TestClient, name: str) -> None:
    document = checker.get(f"/api/operations/{name}").json()
    operation = operations()[name]
    assert [check["id"] for check in document["checks"]] == [check.id() for check in operation.checks]
    assert list(document["callSchema"]["properties"]) == [item.name for item in operation.call.arguments()]
    assert diagnose(checker, {**document["valid"], "level": "checks"})["verdict"] == "passed"
    for check in document["checks"]:
        assert check["recordId"]
        if check["example"] is None:
            assert check["unreachable"]
        else:
            assert check["id"] in failed(diagnose(checker, {**check["example"], "level": "checks"}))


def test_operations_are_listed_with_their_addresses(checker: TestClient) -> None:
    listed = checker.get("/api/operations").json()["operations"]
    assert [item["name"] for item in listed] == list(operations())
    assert all(checker.get(item["url"]).status_code == 200 for item in listed)
    assert checker.get("/api/operations/nothing").status_code == 404


@pytest.mark.parametrize("record", [found.record.id for found in load_catalog().records])
def test_a_record_reproduces_itself_or_says_why_not(checker: TestClient, record: str) -> None:
    response = checker.post(f"/api/errors/{record}/reproduce")
    if response.status_code == 409:
        assert response.json()["detail"]
        return
    assert response.status_code == 200
    failing = [check for check in response.json()["checks"] if check["status"] == "failed"]
    assert record in {check["recordId"] for check in failing}


def test_a_record_reproduces_through_the_worker_and_by_a_named_check(client: TestClient) -> None:
    answer = client.post("/api/errors/402df144293dfbb6/reproduce").json()
    assert (answer["level"], answer["verdict"], answer["fixes"][0]["level"]) == (
        "run",
        "rejected",
        "matches-reference",
    )
    named = "/api/errors/402df144293dfbb6/reproduce?check="
    assert client.post(named + "packed_scales_without_ue8m0").status_code == 200
    assert client.post(named + "codes_rows").status_code == 422
    assert client.post("/api/errors/0000000000000000/reproduce").status_code == 404
