from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.pages import listing
from catalog.store import load_catalog

Read = Callable[[str], Any]


def test_a_criterion_narrows_page_and_twin_alike(service: TestClient, read: Read) -> None:
    for query in (
        "family=tensor-layout",
        "repo=faultbook",
        "operation=per_token_group_quant",
        "tag=fp8",
        "q=scale+stride",
    ):
        page = read(service.get(f"/errors?{query}").text)
        (twin,) = page.alternates
        errors = service.get(twin).json()["errors"]
        assert errors
        expected = [f"/errors/{error['id']}/{error['slug']}" for error in errors]
        assert [link for link in page.links if link.startswith("/errors/")] == expected


def test_pages_follow_each_other_to_the_end(
    service: TestClient, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "PAGE", 7)
    seen: list[str] = []
    address = "/errors"
    while address:
        page = read(service.get(address).text)
        seen += [link.split("/")[2] for link in page.links if link.startswith("/errors/")]
        address = next(
            (link for link in page.links if "cursor=" in link and not link.startswith("/api/")), ""
        )
    assert seen == [found.record.id for found in load_catalog().records]


def test_a_list_of_nothing_says_so(service: TestClient) -> None:
    answer = service.get("/errors?tag=nothing-has-this")
    assert answer.status_code == 200
    assert "0 records" in answer.text


def test_a_cursor_of_nobody_is_a_problem(service: TestClient) -> None:
    answer = service.get("/errors?cursor=abc")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/cursor"
