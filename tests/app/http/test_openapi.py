from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi import APIRouter
from pydantic import TypeAdapter
from starlette.testclient import TestClient

from app.http.bodies import request_body
from app.main import create_app
from app.settings import Settings


@pytest.fixture
def client() -> TestClient:
    router = APIRouter()

    @router.get("/api/things")
    async def things(limit: int = 5) -> dict[str, int]:
        return {"limit": limit}

    return TestClient(create_app(Settings(root_path="/f"), routers=[router]))


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def test_the_document_is_openapi_31_and_complete(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert document["info"]["title"] == "Faultbook"
    assert document["servers"] == [{"url": "/f"}]
    schemas = document["components"]["schemas"]
    assert set(references(document)) <= {f"#/components/schemas/{name}" for name in schemas}


@dataclass
class Leaf:
    value: int


@dataclass
class Tree:
    leaves: list[Leaf]
    branches: list[Tree]


def another_leaf() -> type:
    @dataclass
    class Leaf:
        weight: float

    return Leaf


def test_schemas_that_routes_bring_can_be_resolved_and_keep_apart() -> None:
    router = APIRouter()
    bodies: dict[str, Any] = {
        "tree": Tree,
        "again": Tree,
        "leaves": list[Leaf],
        "others": list[another_leaf()],  # type: ignore[misc]
    }
    for name, body in bodies.items():
        extra = request_body(json=TypeAdapter(body))

        @router.post(f"/api/{name}", openapi_extra=extra, operation_id=name)
        async def post() -> None: ...

    document = create_app(Settings(), routers=[router]).openapi()
    schemas = document["components"]["schemas"]
    assert {name for name in schemas if name[:4] in ("Leaf", "Tree")} == {"Leaf", "Leaf_2", "Tree"}
    assert set(references(document)) <= {f"#/components/schemas/{name}" for name in schemas}
    found = {
        name: document["paths"][f"/api/{name}"]["post"]["requestBody"]["content"]["application/json"][
            "schema"
        ]
        for name in bodies
    }
    assert found["tree"] == found["again"]
    assert found["leaves"]["items"] == {"$ref": "#/components/schemas/Leaf"}
    assert found["others"]["items"] == {"$ref": "#/components/schemas/Leaf_2"}


def test_what_is_no_success_is_a_problem_everywhere(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    for operations in document["paths"].values():
        for operation in operations.values():
            assert "422" not in operation["responses"]
            content = operation["responses"]["default"]["content"]
            assert content["application/problem+json"]["schema"] == {"$ref": "#/components/schemas/Problem"}
    schema = document["components"]["schemas"]["Problem"]
    answer = client.get("/api/things?limit=many").json()
    assert set(schema["required"]) <= set(answer)
    assert set(answer) <= set(schema["properties"])
    assert set(answer["errors"][0]) <= set(schema["properties"]["errors"]["items"]["properties"])


def test_the_document_is_cached_by_its_bytes(client: TestClient) -> None:
    first = client.get("/openapi.json")
    again = client.get("/openapi.json", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
