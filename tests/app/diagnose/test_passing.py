"""Calls that pass are answered without a model: to the byte as all others are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from random import Random

import pytest
from starlette.testclient import TestClient

from app.diagnose.passing import Passing
from app.main import create_app
from app.settings import Settings
from benchmarks.calls import calls, changed
from kernels.call import Call, arguments_json
from kernels.nearby import BEFORE
from kernels.registry import Operation, operations

ID = 32
JSON = {"Content-Type": "application/json", "Cache-Control": "no-cache"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(workers=0, data=tmp_path_factory.mktemp("data")))) as client:
        yield client


def some(operation: Operation) -> Iterator[Call]:
    """The valid call often enough for an anchor, then calls near it, every check's example and others."""
    random = Random(operation.name)
    for _ in range(BEFORE + 2):
        yield operation.valid
    for _ in range(40):
        yield changed(operation.valid, random)
    yield from (example for check in operation.checks if (example := check.example()) is not None)
    yield from islice(calls(operation, 41), 10)


@pytest.mark.parametrize("name", [name for name, item in operations().items() if item.claims is None])
def test_an_answer_is_the_same_whichever_way_it_was_made(client: TestClient, name: str) -> None:
    operation, passed = operations()[name], 0
    for call in some(operation):
        if not call.describable:
            continue
        body = {"operation": name, "arguments": arguments_json(call)}
        quick, full = (
            client.post("/api/diagnose", content=json.dumps({**body, **level}), headers=JSON)
            for level in ({"level": "checks"}, {})
        )
        assert quick.status_code == full.status_code
        if quick.status_code == 200:
            begin = len('{"id":"')
            assert quick.content[:begin] == full.content[:begin] == b'{"id":"'
            assert quick.content[begin : begin + ID] != full.content[begin : begin + ID]
            assert quick.content[begin + ID :] == full.content[begin + ID :]
            passed += quick.json()["verdict"] == "passed"
    assert passed > BEFORE


def test_a_checkpoint_is_not_compared_with_others() -> None:
    operation = operations()["quanto_int8_checkpoint"]
    assert not Passing().passes(operation, operation.valid)
    other = operations()["per_token_group_quant"]
    assert Passing().passes(other, other.valid)
