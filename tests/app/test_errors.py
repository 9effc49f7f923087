from __future__ import annotations

import logging
import re
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, FastAPI, Query
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from app import errors
from app.errors import MAX_FAULTS, MAX_TEXT, Conflict, Fault, InvalidRequest, NotFound, Problem, Unavailable
from app.main import create_app
from app.settings import Settings

KINDS = sorted(Problem.kinds.values(), key=lambda kind: kind.status)
SECRET = "what nobody outside may see"


class Shape(BaseModel):
    sizes: list[int]


def router() -> APIRouter:
    router = APIRouter()

    @router.get("/api/raise/{slug}")
    @router.get("/raise/{slug}")
    async def fail(slug: str) -> None:
        raise Problem.kinds[slug]("A <detail> & more.")

    @router.get("/api/crash")
    @router.get("/crash")
    async def crash() -> None:
        raise RuntimeError(SECRET)

    @router.get("/api/teapot")
    async def teapot() -> None:
        raise HTTPException(418, "short and stout", {"X-Tea": "green"})

    @router.get("/api/both")
    async def both(limit: Annotated[int, Query(ge=1)], size: int = 1) -> None: ...

    @router.post("/api/both")
    async def posted(shape: Shape) -> None: ...

    @router.get("/api/odd")
    async def odd() -> None:
        raise NotFound("a lone surrogate: \udcff")

    return router


@pytest.fixture
def app() -> FastAPI:
    return create_app(Settings(), routers=[router()])


@pytest.fixture
def client(app: FastAPI) -> TestClient:
    return TestClient(app)


def problem(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"
    document: dict[str, Any] = response.json()
    assert list(document)[:5] == ["type", "title", "status", "detail", "instance"]
    assert document["status"] == status
    return document


def test_the_tree_at_the_top_of_the_file_is_the_hierarchy() -> None:
    drawn = re.findall(r"[├└]── (\w+) +(\d+)  ", errors.__doc__ or "")
    declared = [(kind.__name__, str(kind.status)) for kind in KINDS if kind.__module__ == errors.__name__]
    assert drawn == declared


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.slug)
def test_a_problem_has_one_shape_and_a_type_that_can_be_opened(
    client: TestClient, kind: type[Problem]
) -> None:
    document = problem(client.get(f"/api/raise/{kind.slug}"), kind.status)
    assert document == {
        "type": f"/about/problems/{kind.slug}",
        "title": kind.title,
        "status": kind.status,
        "detail": "A <detail> & more.",
        "instance": f"/api/raise/{kind.slug}",
    }
    page = client.get(document["type"])
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert kind.title in page.text
    twin = client.get(document["type"] + ".json").json()
    assert twin == client.get(document["type"], headers={"Accept": "application/json"}).json()
    assert (twin["type"], twin["status"]) == (document["type"], kind.status)
    assert len(twin["description"]) > 40


def test_slugs_are_unique() -> None:
    with pytest.raises(TypeError, match="not-found"):
        type("Again", (Problem,), {"slug": "not-found"})


def test_the_type_honours_prefix_and_public_address() -> None:
    for settings, base in (
        (Settings(root_path="/faultbook"), "/faultbook"),
        (Settings(public_url="https://a.example", root_path="/faultbook"), "https://a.example/faultbook"),
    ):
        client = TestClient(create_app(settings, routers=[]))
        for path in ("/api/nothing", "/faultbook/api/nothing"):
            document = problem(client.get(path), 404)
            assert document["type"] == f"{base}/about/problems/not-found"
            assert document["instance"] == "/faultbook/api/nothing"
        assert client.get("/faultbook/about/problems/not-found").status_code == 200


def test_a_status_without_a_class_is_about_blank_and_keeps_its_headers(client: TestClient) -> None:
    response = client.get("/api/teapot")
    document = problem(response, 418)
    assert (document["type"], document["title"]) == ("about:blank", "I'm a Teapot")
    assert document["detail"] == "short and stout"
    assert response.headers["x-tea"] == "green"


def test_an_unknown_address_says_more_than_not_found(client: TestClient) -> None:
    document = problem(client.get("/api/nothing<here>"), 404)
    assert document["detail"] == "Nothing is served at this address."
    assert document["instance"] == "/api/nothing%3Chere%3E"
    document = problem(client.get("/api/nothing%0A"), 404)
    assert document["detail"] == "No address here holds a control character."


def test_405_lists_the_methods_of_all_routes_of_the_address(client: TestClient) -> None:
    response = client.delete("/api/both")
    problem(response, 405)
    assert response.headers["allow"] == "GET, HEAD, OPTIONS, POST"


def test_options_answers_with_the_methods(client: TestClient) -> None:
    response = client.options("/api/both")
    assert (response.status_code, response.content) == (204, b"")
    assert response.headers["allow"] == "GET, HEAD, OPTIONS, POST"
    problem(client.options("/api/nothing"), 404)


def test_every_faulty_parameter_is_listed_by_name(client: TestClient) -> None:
    document = problem(client.get("/api/both?limit=0&size=big"), 422)
    assert [(fault["pointer"], fault["in"]) for fault in document["errors"]] == [
        ("/limit", "query"),
        ("/size", "query"),
    ]
    assert "greater than or equal to 1" in document["errors"][0]["detail"]
    assert document["detail"] == "The request has 2 faults."
    (missing,) = problem(client.get("/api/both"), 422)["errors"]
    assert missing == {"pointer": "/limit", "detail": "Field required", "in": "query"}


def test_a_body_that_the_framework_reads_has_pointers_too(client: TestClient) -> None:
    document = problem(client.post("/api/both", json={"sizes": [1, "x", 2, []]}), 422)
    assert [fault["pointer"] for fault in document["errors"]] == ["/sizes/1", "/sizes/3"]
    assert "in" not in document["errors"][0]
    headers = {"Content-Type": "application/json"}
    assert problem(client.post("/api/both", content=b'{"sizes": ', headers=headers), 422)["errors"]


def test_a_person_gets_a_page_and_a_program_gets_json(client: TestClient) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    page = client.get("/raise/conflict", headers=browser)
    assert page.status_code == 409
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["vary"] == "Accept"
    assert "A &lt;detail&gt; &amp; more." in page.text
    assert problem(client.get("/raise/conflict"), 409)["detail"] == "A <detail> & more."
    for path in ("/api/raise/conflict", "/api/nothing", "/mcp", "/api/crash"):
        assert client.get(path, headers=browser).headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("path", ["/api/crash", "/crash"])
@pytest.mark.parametrize("accept", ["*/*", "text/html"])
def test_an_unexpected_error_is_logged_and_not_shown(
    client: TestClient, caplog: pytest.LogCaptureFixture, path: str, accept: str
) -> None:
    headers = {"Accept": accept, "X-Request-Id": "mine-1"}
    with caplog.at_level(logging.ERROR, "faultbook.problems"):
        response = client.get(path, headers=headers)
    assert response.status_code == 500
    assert "mine-1" in response.text
    assert response.headers["x-request-id"] == "mine-1"
    assert response.headers["access-control-allow-origin"] == "*"
    assert SECRET not in response.text
    assert "Traceback" not in response.text
    (record,) = caplog.records
    assert record.exc_info is not None
    assert SECRET in str(record.exc_info[1])


def test_text_that_is_not_unicode_does_not_break_the_answer(client: TestClient) -> None:
    assert problem(client.get("/api/odd"), 404)["detail"] == "a lone surrogate: �"
    page = client.get("/raise/not-found", headers={"Accept": "text/html"})
    assert page.status_code == 404


def test_a_long_fault_is_cut_and_a_long_pointer_ends_at_its_parent() -> None:
    detail = Fault("/a", "x" * 10_000).document()["detail"]
    assert len(detail) == MAX_TEXT
    assert detail.endswith("…")
    long = Fault("/a/" + "k" * 10_000, "unknown").document()
    assert long["pointer"] == "/a"
    assert "too long" in long["detail"]


def test_faults_are_listed_up_to_a_bound() -> None:
    faults = [Fault(f"/{index}", "wrong") for index in range(MAX_FAULTS + 5)]
    document = InvalidRequest("many", faults=faults).document(base="", instance="/")
    assert len(document["errors"]) == MAX_FAULTS


def test_unavailable_says_when_to_come_back() -> None:
    assert Unavailable("busy", retry_after=7).headers == {"Retry-After": "7"}
    assert errors.from_http(HTTPException(503)).headers == {"Retry-After": "5"}


def test_problems_of_one_status_share_their_description() -> None:
    class Gone(NotFound):
        """It was here."""

    found = errors.described(NotFound, Conflict, Gone)
    assert set(found) == {404, 409}
    assert found[404]["description"].endswith("Or: It was here.")
    assert found[409]["content"].keys() == {"application/problem+json"}
