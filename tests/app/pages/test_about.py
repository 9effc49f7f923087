from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fastapi import APIRouter
from pydantic import TypeAdapter
from starlette.testclient import TestClient

from app.errors import Problem
from app.http.bodies import request_body
from app.main import create_app
from app.pages.rendering import FOLDER
from app.settings import Settings


class Page(HTMLParser):
    """A page's links, inline code and whether its tags are closed."""

    VOID = frozenset({"meta", "link", "input", "br", "hr", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.alternates: list[str] = []
        self.inline: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag not in self.VOID:
            self.open.append(tag)
        self.links += [values[name] for name in ("href", "src", "action") if name in values]
        if values.get("rel") == "alternate":
            self.alternates.append(values["href"])
        if tag == "style" or (tag == "script" and "src" not in values) or "style" in values:
            self.inline.append(tag)
        self.inline += [name for name in values if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def client() -> TestClient:
    router = APIRouter()

    @router.post("/api/things/{name}", openapi_extra=request_body(json=TypeAdapter(dict[str, int])))
    async def things(name: str, limit: int = 5) -> dict[str, int]:
        """Makes <things>."""
        return {name: limit}

    return TestClient(create_app(Settings(root_path="/f"), routers=[router]))


PAGES = ["/about/problems", "/docs", *(f"/about/problems/{slug}" for slug in sorted(Problem.kinds))]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_whole_needs_no_other_host_and_no_inline_code(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    page = Page(answer.text)
    assert page.open == []
    assert page.inline == []
    assert all(link.startswith(("/f/", "#")) for link in page.links)
    (twin,) = page.alternates
    assert client.get(twin).headers["content-type"] == "application/json"
    assert "/f/static/style.css" in page.links
    assert answer.headers["cache-control"] == "public, max-age=60"


@pytest.mark.parametrize("path", ["/about/problems", "/docs"])
def test_links_within_the_shell_lead_somewhere(client: TestClient, path: str) -> None:
    elsewhere = {"/f/", "/f/operations"}  # pages of other capabilities
    for link in set(Page(client.get(path).text).links) - elsewhere:
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
