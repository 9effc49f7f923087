"""What holds for every page: whole, linked, escaped, without inline code, readable by a screen reader."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.http.headers import PAGE_POLICY
from app.main import create_app
from app.settings import Settings

Read = Callable[[str], Any]

HOSTILE = "</textarea></pre><script>alert(1)</script><img src=x onerror=alert(2)>\"'&lt;"
POSTS = [
    ("/", {"text": HOSTILE}),
    ("/", {"text": f"ValueError: kv_scales must be fp32, got {HOSTILE}"}),
    ("/operations/per_token_group_quant", {"body": HOSTILE, "level": HOSTILE}),
    ("/operations/per_token_group_quant", {"body": HOSTILE, "step": "edit"}),
    ("/operations/per_token_group_quant", {"body": '{"arguments": {"<script>": "<script>"}}'}),
    (
        "/operations/per_token_group_quant",
        {"body": '{"arguments": {"silu_and_mul_mode": "<script>alert(1)</script>"}, "level": "checks"}'},
    ),
]
PAGES = ["/", "/?q=kv_scales+must+be+fp32", "/errors", "/errors?family=tensor-layout", "/operations"]


def pages_from(service: TestClient, read: Read, start: list[str]) -> dict[str, Any]:
    """Every page that can be reached by links, read; other answers are only asked for."""
    found: dict[str, Any] = {}
    todo = list(start)
    while todo:
        path = todo.pop().partition("#")[0]
        if not path.startswith("/") or path in found:
            continue
        answer = service.get(path)
        assert answer.status_code == 200, path
        if answer.headers["content-type"].startswith("text/html"):
            found[path] = read(answer.text)
            todo += found[path].links
        else:
            found[path] = None
    return {path: page for path, page in found.items() if page is not None}


def test_every_page_that_is_linked_exists_and_is_well_made(service: TestClient, read: Read) -> None:
    found = pages_from(service, read, PAGES)
    assert len(found) > 100
    for path, page in found.items():
        assert page.open == [], path
        assert page.inline == [], path
        assert len(page.ids) == len(set(page.ids)), path
        assert set(page.fields) <= set(page.labelled), path
        assert page.tags.count("main") == 1, path
        levels = [level for level, _ in page.headings]
        assert levels.count(1) == 1, path
        assert levels[0] == 1, path
        assert all(later <= earlier + 1 for earlier, later in pairwise(levels)), path
        (twin,) = page.alternates
        assert service.get(twin).headers["content-type"] == "application/json", path
        for link in page.links:
            assert link.startswith(("/", "#", "https://github.com/")), (path, link)


def test_links_within_a_page_have_their_target(service: TestClient, read: Read) -> None:
    for path in ("/operations/per_token_group_quant", "/operations/quanto_int8_checkpoint"):
        page = read(service.get(path).text)
        inside = [link[1:] for link in page.links if link.startswith("#")]
        assert len(inside) > 3
        assert set(inside) <= set(page.ids)


@pytest.mark.parametrize(("path", "fields"), POSTS)
def test_what_is_sent_is_shown_and_never_run(
    service: TestClient, read: Read, path: str, fields: dict[str, str]
) -> None:
    answer = service.post(path, data=fields)
    assert answer.status_code in (200, 422)
    page = read(answer.text)
    assert page.open == []
    assert page.inline == []
    assert {"script", "img"}.isdisjoint(page.tags)
    assert "<script>" in page.text


@pytest.mark.parametrize(
    "path",
    ["/?q=", "/errors?family=", "/errors?tag=", "/operations/x?example=", "/errors/x/", "/operations/"],
)
def test_a_hostile_address_is_shown_and_never_run(service: TestClient, read: Read, path: str) -> None:
    answer = service.get(path + "%3Cscript%3Ealert(1)%3C%2Fscript%3E", headers={"Accept": "text/html"})
    assert answer.headers["content-type"].startswith("text/html")
    assert "script" not in read(answer.text).tags
    assert "<script>" not in answer.text


@pytest.mark.parametrize("path", [*PAGES, "/operations/per_token_group_quant"])
def test_headers_of_a_page(service: TestClient, path: str) -> None:
    answer = service.get(path)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == PAGE_POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    head = service.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == answer.headers["content-length"]


@pytest.mark.parametrize("path", ["/", "/errors", "/operations", "/operations/per_token_group_quant"])
def test_a_page_for_everybody_is_revalidated_by_its_tag(service: TestClient, path: str) -> None:
    answer = service.get(path)
    assert answer.headers["cache-control"] == "public, max-age=60"
    again = service.get(path, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_behind_a_prefix_every_address_has_it(read: Read) -> None:
    chosen = Settings(workers=0, root_path="/f", public_url="https://faults.example")
    with TestClient(create_app(chosen), follow_redirects=False) as client:
        for path in ("/", "/operations/per_token_group_quant", "/errors"):
            page = read(client.get("/f" + path).text)
            links = [link for link in page.links if not link.startswith(("#", "https://github.com/"))]
            assert all(link.startswith(("/f/", "https://faults.example/f/")) for link in links), path
        found = client.get("/f/errors/402df144293dfbb6").headers["location"]
        assert found.startswith("/f/errors/402df144293dfbb6/")
        page = read(client.get(found).text)
        assert page.canonical == f"https://faults.example{found}"
