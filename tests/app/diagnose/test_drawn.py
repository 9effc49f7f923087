"""Elements that are drawn are checked once they are drawn, before anything is launched on them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings

SPARSE, QUANT = "sparse_attn_v4_paged_decode", "per_token_group_quant"
DECODE, EXTEND = "inkling_attn_prologue_decode", "inkling_attn_prologue_extend"
WIDE = {"kind": "randn", "std": 1e6}
BEYOND = {"kind": "randn", "std": 1e39}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(create_app(Settings(device="cpu", run_timeout=120))) as made:
        yield made


def asked(
    client: TestClient, operation: str, arguments: dict[str, Any], level: str = "run"
) -> dict[str, Any]:
    body = {"operation": operation, "arguments": arguments, "level": level}
    response = client.post("/api/diagnose", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def tensor(shape: list[int], dtype: str, values: dict[str, Any]) -> dict[str, Any]:
    return {"shape": shape, "dtype": dtype, "values": values}


FAULTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "slots in no order": (
        SPARSE,
        {"kv_indptr": tensor([3], "int32", {"kind": "randint", "low": 0, "high": 9, "seed": 3})},
        "spans_decrease",
    ),
    "queries beyond bfloat16": (SPARSE, {"q": tensor([2, 16, 128], "bfloat16", BEYOND)}, "values_not_finite"),
    "rows of an expert": (
        QUANT,
        {"input": "bfloat16[2,8,256]", "masked_m": tensor([2], "int32", WIDE)},
        "masked_rows_out_of_range",
    ),
    "an input beyond bfloat16": (QUANT, {"input": tensor([4, 256], "bfloat16", BEYOND)}, "input_not_finite"),
    "pool slots": (DECODE, {"loc": tensor([3], "int64", WIDE)}, "loc_out_of_range"),
    "state slots": (DECODE, {"cache_indices": tensor([3], "int32", WIDE)}, "state_slot_out_of_range"),
    "a large input beyond bfloat16": (
        QUANT,
        {"input": tensor([512, 256], "bfloat16", BEYOND)},
        "input_not_finite",
    ),
    "tracked rows": (EXTEND, {"track_rows": tensor([2, 3], "int64", WIDE)}, "tracked_rows_out_of_range"),
    "tracked slots": (EXTEND, {"track_dst": tensor([2], "int64", WIDE)}, "tracked_rows_out_of_range"),
    "state behind a mask": (
        DECODE,
        {
            "k_cache": tensor([8, 3, 128], "bfloat16", BEYOND),
            "cache_mask": tensor([3], "bool", {"kind": "zeros"}),
        },
        "masked_state_not_finite",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_only_the_draw_proves_is_found_before_the_launch(client: TestClient, name: str) -> None:
    operation, arguments, check = FAULTS[name]
    described = asked(client, operation, arguments, "checks")
    assert described["verdict"] == "passed"
    answer = asked(client, operation, arguments)
    assert [row["id"] for row in answer["checks"] if row["status"] == "failed"] == [check]
    assert (answer["verdict"], answer["raised"], answer["run"]) == ("rejected", None, None)
    assert answer["detail"].startswith("not run: what is drawn")
    assert check in answer["detail"]
    assert answer["disagreement"] is None


def test_a_fix_changes_what_was_drawn_and_nothing_else_that_is(client: TestClient) -> None:
    arguments = {
        "qkvr": tensor([3, 512], "bfloat16", {"kind": "randn"}),
        "loc": tensor([3], "int64", WIDE),
    }
    answer = asked(client, DECODE, arguments)
    assert answer["fixes"]
    for fix in answer["fixes"]:
        assert {(edit["argument"], edit["attribute"]) for edit in fix["edits"]} == {("loc", "values")}
        assert fix["edits"][0]["from"]["kind"] == "randn"
        assert fix["arguments"]["qkvr"]["values"]["kind"] == "randn"
        assert fix["level"] == "matches-reference"


def test_a_draw_that_is_only_warned_of_runs(client: TestClient) -> None:
    drawn = tensor([3], "int32", {"kind": "randint", "low": 0, "high": 2})
    answer = asked(client, DECODE, {"cache_indices": drawn})
    warned = [row for row in answer["checks"] if row["status"] == "failed"]
    assert [(row["id"], row["severity"]) for row in warned] == [("slots_shared", "warning")]
    assert answer["run"] is not None


def test_a_draw_that_fails_nothing_changes_nothing(client: TestClient) -> None:
    answer = asked(client, QUANT, {"input": tensor([4, 256], "bfloat16", {"kind": "randn"})})
    assert (answer["verdict"], answer["disagreement"]) == ("passed", None)


def test_an_operator_may_allow_such_runs() -> None:
    settings = Settings(device="cpu", run_timeout=120, allow_faulting_runs=True)
    with TestClient(create_app(settings)) as client:
        answer = asked(client, QUANT, {"input": tensor([4, 256], "bfloat16", BEYOND)})
    assert [row["id"] for row in answer["checks"] if row["status"] == "failed"] == ["input_not_finite"]
    assert answer["verdict"] == "rejected"
    assert answer["run"] is not None
