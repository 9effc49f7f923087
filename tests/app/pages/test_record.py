from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from catalog.store import load_catalog

Read = Callable[[str], Any]

SEEDS = ["402df144293dfbb6", "423125772347fb99", "0416e3d22055e05b", "3018da578aab5d5a"]
ORDER = [
    "Error message",
    "What it means",
    "Source",
    "Solutions",
    "Example fix",
    "Prevention",
    "When it happens",
    "Related errors",
    "Prevention tips",
    "Tags",
    "Checks",
    "Where this comes from",
]


def page_of(service: TestClient, identifier: str) -> str:
    return service.get(service.get(f"/errors/{identifier}").headers["location"]).text


@pytest.mark.parametrize("identifier", SEEDS)
def test_the_sections_stand_in_the_datasets_order(service: TestClient, read: Read, identifier: str) -> None:
    page = read(page_of(service, identifier))
    assert [text for level, text in page.headings if level == 2] == ORDER


@pytest.mark.parametrize("identifier", SEEDS)
def test_a_page_shows_everything_its_json_says(service: TestClient, read: Read, identifier: str) -> None:
    record = service.get(f"/api/errors/{identifier}").json()["record"]
    page = read(page_of(service, identifier))
    shown = " ".join(page.text.split())
    for key in ("errorMessage", "documentation", "exampleFix", "validationCode", "triggerScenarios"):
        assert " ".join(record[key].split()) in shown, key
    for text in (*record["solutions"], *record["preventionTips"], *record["tags"]):
        assert text in shown
    assert f"{record['repo']} · {record['severity']} · {record['errorClass']}" in shown
    assert f"Thrown at {record['filePath']}:{record['lineNumber']}" in shown
    assert record["githubUrl"] in page.links
    assert f"pinned to {record['analyzedSha'][:10]}" in shown


def test_a_page_names_its_twins_and_its_own_address(service: TestClient, read: Read) -> None:
    answer = service.get("/errors/3018da578aab5d5a/kv-scales-must-be-fp32-got-kv-scales-dtype")
    page = read(answer.text)
    assert page.alternates == ["/api/errors/3018da578aab5d5a"]
    assert "/api/errors/3018da578aab5d5a.md" in page.links
    assert page.canonical == "/errors/3018da578aab5d5a/kv-scales-must-be-fp32-got-kv-scales-dtype"
    assert answer.headers["cache-control"] == "public, max-age=60"
    assert service.get(page.canonical, headers={"If-None-Match": answer.headers["etag"]}).status_code == 304


@pytest.mark.parametrize("path", ["", "/", "/wrong", "/kv-scales-must-be-fp32-got-kv-scales-dtype2"])
def test_other_addresses_of_a_record_lead_to_its_own(service: TestClient, path: str) -> None:
    answer = service.get(f"/errors/3018da578aab5d5a{path}")
    if path == "/":  # no address here ends in a slash
        assert answer.status_code == 404
        return
    assert answer.status_code == 301
    assert answer.headers["location"] == "/errors/3018da578aab5d5a/kv-scales-must-be-fp32-got-kv-scales-dtype"


@pytest.mark.parametrize("path", ["0000000000000000", "3018DA578AAB5D5A", "x/y", "%00", "..%2f..%2fx"])
def test_what_is_no_record_is_not_found(service: TestClient, read: Read, path: str) -> None:
    answer = service.get(f"/errors/{path}", headers={"Accept": "text/html"})
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert (1, "Not found") in read(answer.text).headings


def test_each_check_of_a_record_offers_its_failing_example(service: TestClient, read: Read) -> None:
    for found in load_catalog().records:
        text = page_of(service, found.record.id)
        page = read(text)
        assert found.fault.cases
        for case in found.fault.cases:
            assert f"/operations/{case.operation.name}#{case.check.id()}" in page.links
            tried = f"/operations/{case.operation.name}?example={case.check.id()}#diagnose"
            assert (tried in page.links) == (case.check.example() is not None), found.fault.name


def test_the_failing_example_is_the_one_the_api_gives(service: TestClient) -> None:
    x = service.get("/api/errors/402df144293dfbb6?view=full").json()["record"]["x"]
    text = page_of(service, "402df144293dfbb6")
    start = text.index("{\n", text.index("A call that breaks it"))
    spec, _ = json.JSONDecoder().raw_decode(text[start:].replace("&#34;", '"'))
    assert spec == x["repro"]["failing"]


def test_related_records_come_with_their_reason(service: TestClient, read: Read) -> None:
    found = load_catalog().get("3018da578aab5d5a")
    assert found
    page = read(page_of(service, "3018da578aab5d5a"))
    assert found.related
    for related in found.related:
        assert f"/errors/{related.record.id}/{related.record.slug}" in page.links
        assert related.reason in page.text


def test_a_record_without_a_text_says_so(service: TestClient, read: Read) -> None:
    found = next(found for found in load_catalog().records if found.fault.textless)
    assert "It is raised without a text." in read(page_of(service, found.record.id)).text
