"""POST /api/diagnose/sweep: every point is what POST /api/diagnose says of it; faults are pointed at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from app.sweep import service

QUANT = "per_token_group_quant"
OUTPUTS = {"output_q": "float8_e4m3fn[4,256]", "output_s": "float32[4,2]"}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(create_app(Settings(workers=0))) as made:
        yield made


def swept(client: TestClient, **body: Any) -> dict[str, Any]:
    response = client.post("/api/diagnose/sweep", json={"operation": QUANT, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def faults(client: TestClient, status: int = 422, **body: Any) -> dict[str, str]:
    response = client.post("/api/diagnose/sweep", json={"operation": QUANT, **body})
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    found: dict[str, str] = {}
    for fault in response.json()["errors"]:
        found[fault["pointer"]] = "; ".join(filter(None, [found.get(fault["pointer"]), fault["detail"]]))
    return found


def test_a_range_beyond_every_machine_number_is_refused(client: TestClient) -> None:
    found = faults(client, vary={"group_size": {"from": 0, "to": 10**25}})
    assert found == {"/vary/group_size": "the range holds more than 10,000 numbers"}


def with_edit(tensor: dict[str, Any], attribute: str, value: Any) -> dict[str, Any]:
    name, _, index = attribute.partition(".")
    edited = {key: item for key, item in tensor.items() if key != "strides" or name != "shape"}
    if index:
        numbers = list(edited.get(name, tensor["shape"]))
        numbers[int(index)] = value
        return {**edited, name: numbers}
    return {**edited, name: value}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("group_size", [16, 100, 128, 0, "128", 128.0, True]),
        ("output_s.dtype", ["float32", "int32", "fp16"]),
        ("output_s.strides", [[2, 1], [1, 4], [0, 1], [1, 2]]),
        ("output_s.shape.1", [1, 2, 3]),
        ("input.offset", [0, 1, 8]),
        ("input.device", ["cuda", "cpu", "cuda:1"]),
        ("masked_m", [None, "int32[4]"]),
    ],
)
def test_a_point_is_what_a_diagnosis_of_its_arguments_says(
    client: TestClient, path: str, values: list[Any]
) -> None:
    arguments: dict[str, Any] = {
        "input": {"shape": [4, 256], "dtype": "bfloat16"},
        "output_q": {"shape": [4, 256], "dtype": "float8_e4m3fn"},
        "output_s": {"shape": [4, 2], "dtype": "float32"},
    }
    answer = swept(client, arguments=arguments, vary={path: values})
    assert [point["values"] for point in answer["points"]] == [{path: value} for value in values]
    name, _, attribute = path.partition(".")
    outcomes = set()
    for point, value in zip(answer["points"], values, strict=True):
        edited = with_edit(arguments[name], attribute, value) if attribute else value
        body = {"operation": QUANT, "arguments": {**arguments, name: edited}, "level": "checks"}
        alone = client.post("/api/diagnose", json=body).json()
        assert point["passes"] == (alone["verdict"] == "passed")
        assert point["raised"] == alone["raised"]
        failed = [check["id"] for check in alone["checks"] if check["status"] == "failed"]
        assert {*point["warnings"], *filter(None, [point["ruledBy"]])} <= set(failed)
        assert (point["ruledBy"] is None) == point["passes"]
        outcomes.add(point["ruledBy"])
    assert len(outcomes) > 1


def test_regions_cover_the_grid_once(client: TestClient) -> None:
    vary = {"group_size": {"from": 1, "to": 64}, "input.shape.1": [256, 3420, 4096]}
    answer = swept(client, vary=vary)
    cells = {tuple(point["values"].values()): point["ruledBy"] for point in answer["points"]}
    assert len(cells) == 64 * 3
    widths = vary["input.shape.1"]
    for region in answer["regions"]:
        sizes, columns = region["values"]["group_size"], region["values"]["input.shape.1"]
        within = [
            (size, width)
            for size in range(sizes["from"], sizes["to"] + 1)
            for width in widths[widths.index(columns["from"]) : widths.index(columns["to"]) + 1]  # type: ignore[attr-defined, index]
        ]
        assert region["points"] == len(within) == sizes["count"] * columns["count"]
        assert {cells.pop(cell) for cell in within} == {region["ruledBy"]}
    assert not cells
    assert answer["passing"] == sum(region["points"] for region in answer["regions"] if region["passes"])
    assert len(answer["regions"]) < 20


def test_a_hidden_size_that_no_group_size_serves(client: TestClient) -> None:
    answer = swept(
        client, arguments={"input": "bfloat16[4,3420]"}, vary={"group_size": [16, 32, 64, 128, 256]}
    )
    assert answer["passing"] == 0


def test_strides_and_shape_of_one_tensor_meet(client: TestClient) -> None:
    vary = {"output_s.strides": [[2, 1], [1, 4]], "output_s.shape": [[4, 2], [8, 2]]}
    assert len(swept(client, arguments=OUTPUTS, vary=vary)["points"]) == 4
    found = faults(client, arguments=OUTPUTS, vary={**vary, "output_s.shape": [[4, 2], [4]]})
    assert found == {"/vary/output_s.strides/0": "2 strides for 1 dimensions of output_s"}


def test_a_fitted_tensor_is_varied_after_it_is_fitted(client: TestClient) -> None:
    name = "sparse_attn_v4_paged_decode"
    vary = {"q.shape.2": [128, 256], "unified_kv.dtype": ["bfloat16", "float32"]}
    response = client.post(
        "/api/diagnose/sweep",
        json={"operation": name, "arguments": {"q": "bfloat16[2,16,128]"}, "vary": vary},
    )
    assert response.status_code == 200, response.text
    assert [point["passes"] for point in response.json()["points"]] == [True, False, True, False]


def test_the_target_may_be_varied(client: TestClient) -> None:
    body = {
        "operation": "sparse_attn_v4_paged_decode",
        "arguments": {"unified_kv": "float8_e4m3fn[8,128]", "kv_scales": "float32[8,2]"},
        "vary": {"target": ["sm80", "sm90", "gfx942"]},
    }
    answer = client.post("/api/diagnose/sweep", json=body).json()
    assert [point["passes"] for point in answer["points"]] == [False, True, False]


@pytest.mark.parametrize(
    ("vary", "pointer", "says"),
    [
        ({"nothing": [1]}, "/vary/nothing", "no argument of this name"),
        ({"group_size.dtype": ["int8"]}, "/vary/group_size.dtype", "no tensor"),
        ({"input.size": [1]}, "/vary/input.size", "attributes are"),
        ({"input.dtype.0": [1]}, "/vary/input.dtype.0", "only shape and strides"),
        ({"input.shape.7": [1]}, "/vary/input.shape.7", "2 dimensions"),
        ({"in put": [1]}, "/vary/in put", "write an argument"),
        ({"output_s.dtype": ["int32"]}, "/vary/output_s.dtype", "absent"),
        ({"input.dtype": ["float32", "f33"]}, "/vary/input.dtype/1", "unknown dtype"),
        ({"input.shape.0": [1, -1]}, "/vary/input.shape.0/1", "greater than or equal"),
        ({"input.shape": [[1, 2], [3, "x"]]}, "/vary/input.shape/1/1", "integer"),
        ({"input.shape": [4]}, "/vary/input.shape/0", "list"),
        ({"input.offset": [None]}, "/vary/input.offset/0", "has a value"),
        ({"input": ["bfloat16[4"]}, "/vary/input/0", "cannot read"),
        ({"target": ["sm9000"]}, "/vary/target/0", "no architecture"),
        ({"target": [7]}, "/vary/target/0", "name"),
        ({"group_size": {"from": 5, "to": 4}}, "/vary/group_size", "no number"),
        ({"group_size": {"from": 1, "to": 10**12}}, "/vary/group_size", "more than"),
        ({"input": ["bfloat16[4,256]"], "input.dtype": ["int8"]}, "/vary/input.dtype", "already"),
        ({"input.shape": [[4, 8]], "input.shape.0": [1]}, "/vary/input.shape.0", "already"),
        ({"input.shape.-1": [1], "input.shape.1": [1]}, "/vary/input.shape.1", "already"),
        ({"input.shape.0": [1], "input.shape.-2": [1]}, "/vary/input.shape.-2", "already"),
        ({"group_size": []}, "/vary/group_size", "at least 1"),
        ({}, "/vary", "at least 1"),
        ({"group_size": [1], "input.dtype": ["int8"], "scale_ue8m0": [True]}, "/vary", "at most 2"),
    ],
)
def test_what_is_wrong_is_pointed_at(
    client: TestClient, vary: dict[str, Any], pointer: str, says: str
) -> None:
    found = faults(client, vary=vary)
    assert pointer in found
    assert says in found[pointer]


def test_wrong_axes_are_all_told(client: TestClient) -> None:
    assert set(faults(client, vary={"nothing": [1], "input.dtype": ["x", "y"]})) == {
        "/vary/nothing",
        "/vary/input.dtype/0",
        "/vary/input.dtype/1",
    }


def test_faults_of_the_call_itself(client: TestClient) -> None:
    assert "/arguments/input" in faults(client, arguments={"input": "bfloat"}, vary={"group_size": [1]})
    assert "/level" in faults(client, vary={"group_size": [1]}, level="run")
    assert client.post("/api/diagnose/sweep", json={"operation": "none", "vary": {}}).status_code == 404


def test_too_many_points(client: TestClient) -> None:
    vary = {"group_size": {"from": 1, "to": 101}, "num_valid_tokens": {"from": 1, "to": 100}}
    assert "10,100 combinations" in faults(client, 413, vary=vary)["/vary"]


def test_too_long(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_SECONDS", 0.0)
    assert "points took" in faults(client, 413, vary={"group_size": [1, 2, 3]})["/vary"]


def test_what_is_assumed_is_told(client: TestClient) -> None:
    answer = swept(
        client,
        arguments={**OUTPUTS, "output_s": "float32[4,2]:stride(1,4)"},
        vary={"output_s.shape.0": [4, 8], "group_size": [128]},
    )
    assert "output_s is laid out row-major in every shape of it" in answer["assumed"]
    assert not any(sentence.startswith("group_size") for sentence in answer["assumed"])
    assert any(sentence.startswith("input = ") for sentence in answer["assumed"])


def test_ten_thousand_points_stay_within_the_limit_of_time(client: TestClient) -> None:
    answer = swept(client, vary={"group_size": {"from": 1, "to": 10_000}})
    assert len(answer["points"]) == 10_000
    assert answer["passing"] == 5
    assert len(json.dumps(answer["regions"])) < 3_000
