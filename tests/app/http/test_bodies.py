from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from fastapi import APIRouter, FastAPI, Request
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter

from app.errors import MAX_FAULTS, ContentTooLarge, InvalidRequest, Problem
from app.http import bodies
from app.http.bodies import load_json, parse_json, pointer, read_bytes, read_json, read_text, request_body
from app.main import create_app
from app.settings import Settings

Ask = Callable[..., Any]
LIMIT = 1000
JSON = {"content_type": "application/json"}
ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)


@dataclass
class Tensor:
    shape: list[Annotated[int, Field(ge=0)]]
    dtype: Literal["float32", "bfloat16"]


@dataclass
class Call:
    operation: str
    arguments: dict[str, Tensor | int | bool]


CALL = TypeAdapter(Call)


@pytest.fixture(scope="module")
def app() -> FastAPI:
    router = APIRouter()

    @router.post("/api/json")
    async def as_json(request: Request) -> Any:
        return await read_json(request, ANYTHING)

    @router.post("/api/call", openapi_extra=request_body(json=CALL))
    async def as_call(request: Request) -> str:
        return (await read_json(request, CALL)).operation

    @router.post("/api/text")
    async def as_text(request: Request) -> str:
        return await read_text(request)

    @router.post("/api/bytes")
    async def as_bytes(request: Request) -> int:
        return len(await read_bytes(request))

    @router.post("/api/framework")
    async def by_framework(body: dict[str, Any]) -> int:
        return len(body)

    return create_app(Settings(max_body_bytes=LIMIT), routers=[router])


def fault(answer: Any, status: int = 422) -> dict[str, str]:
    assert answer.status == status
    assert answer.headers["content-type"] == "application/problem+json"
    (found,) = answer.json()["errors"]
    assert isinstance(found, dict)
    return found


def refused(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        load_json(body)
    return caught.value


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b'{"a": NaN}', "NaN and Infinity are not JSON"),
        (b'{"a": [Infinity]}', "NaN and Infinity are not JSON"),
        (b'{"a": -Infinity}', "NaN and Infinity are not JSON"),
        (b'{"a": "\xff"}', "line 1 column 8"),
        (b'{"a": "\xed\xa0\x80"}', "line 1 column 8"),
        (rb'{"a": "\ud800"}', "surrogate"),
        (rb'{"a": "\ud800\u0041"}', "line 1"),
        (b"[" * 100_000, "nested more than 200 levels deep"),
        (b'{"a":' * 201 + b"1" + b"}" * 201, "nested more than 200 levels deep"),
        (b'{"a": ' + b"9" * 4301 + b"}", "more than 4,300 digits"),
        (b"9" * 900_000, "more than 4,300 digits"),
        (b'{"a": 1,\n "b": }', "line 2 column 7"),
        (b"{'a': 1}", "line 1 column 2"),
        (b'{"a": 1} x', "line 1 column 10"),
        (b'{"a": 01}', "line 1"),
        (b"\xef\xbb\xbf{}", "line 1"),
        (b"\x00", "line 1"),
    ],
)
def test_what_is_not_json_is_refused_with_its_position(body: bytes, said: str) -> None:
    problem = refused(body)
    assert said in problem.detail
    assert [found.pointer for found in problem.faults] == [""]


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        (b'{"a": [1, 1e999, {"b/c": -1E+0400}]}', ["/a/1", "/a/2/b~1c"]),
        (b"9" * 400 + b".5", [""]),
        (b"9" * 250 + b"e99", [""]),
    ],
)
def test_a_number_that_is_infinite_is_refused_where_it_stands(body: bytes, pointers: list[str]) -> None:
    assert [found.pointer for found in refused(body).faults] == pointers


@pytest.mark.parametrize("number", ["1.7e308", "-1e300", "1e-999", "0e999", "9" * 300, "0." + "3" * 300])
def test_a_number_that_is_finite_passes(number: str) -> None:
    assert load_json(number.encode()) == json.loads(number)


def test_text_that_looks_like_a_huge_number_passes() -> None:
    assert load_json(b'{"log": "1e999"}') == {"log": "1e999"}


def test_of_equal_keys_the_last_counts() -> None:
    assert load_json(b'{"a": 1, "a": 2}') == {"a": 2}


def test_nesting_within_the_limit_passes() -> None:
    assert load_json(b"[" * 150 + b"]" * 150)


def test_only_values_are_counted_not_commas_in_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_VALUES", 10)
    assert load_json(json.dumps([",,,,,,,,,,,,,,,,", *range(8)]).encode())
    with pytest.raises(ContentTooLarge, match="more than 10 values"):
        load_json(json.dumps([[0, 1, 2], {"a": [4, 5], "b": 6}, 7, 8, 9, 10]).encode())


@given(st.binary() | st.text(alphabet='[]{}",:0123456789eE+-.\\ud8NaInfity \n').map(str.encode))
def test_any_bytes_are_json_or_a_problem(body: bytes) -> None:
    try:
        value = load_json(body)
    except Problem:
        return
    assert json.loads(body) == value


def test_every_fault_has_a_pointer_that_is_in_the_body() -> None:
    body = {"operation": 3, "arguments": {"a/b": {"shape": [1, -1, "x"], "dtype": "float31"}, "~": None}}
    with pytest.raises(InvalidRequest) as caught:
        parse_json(json.dumps(body).encode(), CALL)
    pointers = {found.pointer for found in caught.value.faults}
    assert pointers == {
        "/operation",
        "/arguments/a~1b",  # as the number or the flag that it could also be
        "/arguments/a~1b/shape/1",
        "/arguments/a~1b/shape/2",
        "/arguments/a~1b/dtype",
        "/arguments/~0",
    }


def test_a_missing_member_is_pointed_at_where_it_should_be() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_json(b'{"operation": "quant"}', CALL)
    assert [(found.pointer, found.detail) for found in caught.value.faults] == [
        ("/arguments", "Field required")
    ]


def test_input_is_not_echoed_and_the_list_is_bounded() -> None:
    body = json.dumps({"operation": "x", "arguments": {f"{i}": {"shape": "secret"} for i in range(500)}})
    with pytest.raises(InvalidRequest) as caught:
        parse_json(body.encode(), CALL)
    document = json.dumps(caught.value.document(base="", instance="/"))
    assert "secret" not in document
    assert len(caught.value.document(base="", instance="/")["errors"]) == MAX_FAULTS
    assert "the first 200 are listed" in document


def test_a_flood_of_faults_is_counted_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_MOST_ERRORS", 3)
    with pytest.raises(InvalidRequest, match="4 faults, too many to list"):
        parse_json(b'["a", "b", "c", "d"]', TypeAdapter(list[int]))


def test_pointers_are_rfc_6901() -> None:
    assert pointer([]) == ""
    assert pointer(["a/b", "m~n", 0, "", "é\ud800"]) == "/a~1b/m~0n/0//é�"


def test_faults_of_a_request_come_back_as_one_problem(app: FastAPI, ask: Ask) -> None:
    answer = ask(app, "POST", "/api/call", [b'{"operation": "q", "arguments": 1}'], **JSON)
    assert fault(answer) == {"pointer": "/arguments", "detail": "Input should be an object"}
    assert ask(app, "POST", "/api/call", [b'{"operation": "q", ', b'"arguments": {}}'], **JSON).json() == "q"


@pytest.mark.parametrize(
    "kind",
    ["application/json", "application/json; charset=UTF-8", "Application/JSON", "application/problem+json"],
)
def test_json_types_are_read(app: FastAPI, ask: Ask, kind: str) -> None:
    assert ask(app, "POST", "/api/json", [b"[1]"], content_type=kind).json() == [1]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content_type": "text/plain"},
        {"content_type": "application/x-www-form-urlencoded"},
        {"content_type": "nonsense"},
        {"content_type": ""},
        {"content_type": "application/json; charset=utf-16"},
        {"content_type": "application/json", "content_encoding": "gzip"},
    ],
)
def test_other_types_are_415(app: FastAPI, ask: Ask, headers: dict[str, str]) -> None:
    answer = ask(app, "POST", "/api/json", [b"[1]"], **headers)
    assert answer.status == 415
    assert answer.json()["type"] == "/about/problems/unsupported-media-type"


def test_text_is_strict_utf8(app: FastAPI, ask: Ask) -> None:
    plain = {"content_type": "text/plain; charset=utf-8"}
    assert ask(app, "POST", "/api/text", ["é".encode()], **plain).json() == "é"
    assert fault(ask(app, "POST", "/api/text", [b"ab\xff"], **plain))["detail"].endswith(
        "byte 2 cannot be decoded."
    )


@pytest.mark.parametrize("path", ["/api/json", "/api/bytes", "/api/framework"])
@pytest.mark.parametrize(
    ("chunks", "headers"),
    [
        ([b"x" * (LIMIT + 1)], {}),
        ([b"x" * 300] * 4, {}),
        ([b"x" * 300] * 4, {"content_length": "5"}),
        ([b"[]"], {"content_length": str(17 * 1024 * 1024)}),
        ([b"[]"], {"content_length": str(10**18)}),
    ],
    ids=["one chunk", "chunked", "understated length", "announced", "announced absurdly"],
)
def test_a_body_beyond_the_limit_is_413(
    app: FastAPI, ask: Ask, path: str, chunks: list[bytes], headers: dict[str, str]
) -> None:
    answer = ask(app, "POST", path, chunks, **JSON, **headers)
    assert answer.status == 413
    assert answer.headers["content-type"] == "application/problem+json"
    assert "1,000 bytes" in answer.json()["detail"]


@pytest.mark.parametrize("length", ["1000", "-1", "many", ""])
def test_a_body_at_the_limit_is_read(app: FastAPI, ask: Ask, length: str) -> None:
    assert ask(app, "POST", "/api/bytes", [b"x" * LIMIT], content_length=length).json() == LIMIT


def test_a_limit_does_not_touch_routes_that_read_nothing(app: FastAPI, ask: Ask) -> None:
    assert ask(app, "GET", "/healthz", [b"x" * 5000]).status == 200


def test_a_client_that_leaves_is_no_error(app: FastAPI, caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Any] = []

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/bytes",
        "headers": [],
        "query_string": b"",
        "http_version": "1.1",
    }
    asyncio.run(app(scope, gone, send))
    assert sent == []
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_route_documents_the_body_that_it_reads(app: FastAPI) -> None:
    document = app.openapi()
    body = document["paths"]["/api/call"]["post"]["requestBody"]
    schema = body["content"]["application/json"]["schema"]
    assert schema["required"] == ["operation", "arguments"]
    assert "$defs" not in schema
    assert document["components"]["schemas"]["Tensor"]["required"] == ["shape", "dtype"]


def test_all_kinds_of_body_can_be_documented() -> None:
    content = request_body(json={}, plain={"type": "string"}, binary={})["requestBody"]["content"]
    assert list(content) == ["application/json", "text/plain", "application/octet-stream"]
