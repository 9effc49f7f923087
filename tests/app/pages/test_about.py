from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter
from pydantic import TypeAdapter
from starlette.testclient import TestClient

from app.errors import Problem
from app.http.bodies import request_body
from app.main import create_app
from app.pages.rendering import FOLDER
from app.settings import Settings


@pytest.fixture
def client() -> TestClient:
    router = APIRouter()

    @router.post("/api/things/{name}", openapi_extra=request_body(json=TypeAdapter(dict[str, int])))
    async def things(name: str, limit: int = 5) -> dict[str, int]:
        """Makes <things>."""
        return {name: limit}

    return TestClient(create_app(Settings(root_path="/f"), routers=[router]))


Read = Callable[[str], Any]

PAGES = ["/about/problems", "/docs", *(f"/about/problems/{slug}" for slug in sorted(Problem.kinds))]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_whole_needs_no_other_host_and_no_inline_code(
    client: TestClient, read: Read, path: str
) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    page = read(answer.text)
    assert page.open == []
    assert page.inline == []
    assert all(link.startswith(("/f/", "#")) for link in page.links)
    (twin,) = page.alternates
    assert client.get(twin).headers["content-type"] == "application/json"
    assert "/f/static/style.css" in page.links
    assert answer.headers["cache-control"] == "public, max-age=60"


@pytest.mark.parametrize("path", ["/about/problems", "/docs"])
def test_links_within_the_shell_lead_somewhere(client: TestClient, read: Read, path: str) -> None:
    elsewhere = {"/f/", "/f/operations"}  # pages of other capabilities
    for link in set(read(client.get(path).text).links) - elsewhere:
        if link.startswith("/"):
            assert client.get(link).status_code == 200, link


def test_the_documentation_lists_every_path_with_its_parameters_and_schemas(client: TestClient) -> None:
    text = client.get("/docs").text
    for path in client.get("/openapi.json").json()["paths"]:
        assert f"<code>{path}</code>" in text
    assert "Makes &lt;things&gt;." in text
    assert "<code>limit</code>" in text
    assert "additionalProperties" in text
    assert 'id="schema-Problem"' in text


def test_the_list_of_problems_as_data(client: TestClient) -> None:
    found = client.get("/about/problems.json").json()["problems"]
    assert {item["type"].rpartition("/")[2] for item in found} == set(Problem.kinds)


def test_static_files_are_the_folder_and_nothing_else(client: TestClient) -> None:
    answer = client.get("/static/style.css")
    assert answer.headers["content-type"] == "text/css; charset=utf-8"
    assert answer.content == (FOLDER / "static" / "style.css").read_bytes()
    for name in ("nothing.css", "..%2Frendering.py", "%2e%2e", "style.css/", "STYLE.CSS"):
        assert client.get(f"/static/{name}").status_code == 404


def test_every_template_escapes() -> None:
    for path in Path(FOLDER / "templates").glob("*.html"):
        assert not re.search(r"\|\s*safe|autoescape false|Markup", path.read_text("utf-8")), path.name
