"""Records over HTTP: one, in each of its forms, and lists."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from starlette.testclient import TestClient

from app.main import create_app
from app.records import service
from app.records.routes import router
from app.settings import Settings
from catalog.record import Record, schema
from catalog.store import load_catalog

SCALES = "3018da578aab5d5a"
ONE = f"/api/errors/{SCALES}"


@pytest.fixture(scope="module")
def served() -> Iterator[TestClient]:
    with TestClient(create_app(Settings(), routers=[router])) as client:
        yield client


def problem(served: TestClient, path: str, status: int) -> dict[str, Any]:
    answer = served.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    return dict(answer.json())


# --- one record


def test_a_record_is_strict(served: TestClient) -> None:
    answer = served.get(ONE)
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert list(body) == ["record", "datasetVersion"]
    assert Record.from_json(body["record"]).id == SCALES
    assert body["datasetVersion"] == load_catalog().dataset_version


def test_every_record_is_served(served: TestClient) -> None:
    for found in load_catalog().records:
        assert served.get(f"/api/errors/{found.record.id}").json()["record"] == found.record.to_json()
        full = served.get(f"/api/errors/{found.record.id}?view=full").json()["record"]
        assert full.pop("x") == json.loads(json.dumps(found.x))
        assert full == found.record.to_json()


@pytest.mark.parametrize(
    "identifier",
    ["0000000000000000", SCALES.upper(), SCALES[:15], f"{SCALES}0", "..", "%00", "a b", "%F0%9F%92%A9"],
)
@pytest.mark.parametrize("suffix", ["", ".md", "?view=full"])
def test_an_unknown_id_is_not_found(served: TestClient, identifier: str, suffix: str) -> None:
    assert problem(served, f"/api/errors/{identifier}{suffix}", 404)["type"] == "/about/problems/not-found"


def test_an_unknown_view_is_refused(served: TestClient) -> None:
    [fault] = problem(served, f"{ONE}?view=half", 422)["errors"]
    assert (fault["pointer"], fault["in"]) == ("/view", "query")


def test_etags_are_strong_and_differ_by_form(served: TestClient) -> None:
    plain = {"Accept-Encoding": "identity"}
    forms = [ONE, f"{ONE}?view=full", f"{ONE}.md"]
    tags = [served.get(path, headers=plain).headers["etag"] for path in forms]
    assert len(set(tags)) == 3
    for path, tag in zip(forms, tags, strict=True):
        assert tag.startswith('"')
        again = served.get(path, headers={**plain, "If-None-Match": tag})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert served.get(path, headers={**plain, "If-None-Match": '"other"'}).status_code == 200


def test_compression_has_its_own_etag(served: TestClient) -> None:
    with served.stream("GET", ONE, headers={"Accept-Encoding": "gzip"}) as answer:
        raw = b"".join(answer.iter_raw())
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["etag"].endswith('-gzip"')
    assert "Accept-Encoding" in answer.headers["vary"]
    assert json.loads(gzip.decompress(raw))["record"]["id"] == SCALES


def test_head_is_get_without_a_body(served: TestClient) -> None:
    plain = {"Accept-Encoding": "identity"}
    get, head = served.get(ONE, headers=plain), served.head(ONE, headers=plain)
    assert head.content == b""
    for name in ("etag", "content-length", "content-type", "cache-control"):
        assert head.headers[name] == get.headers[name]


def test_readers_elsewhere_may_use_it(served: TestClient) -> None:
    headers = served.get(ONE, headers={"Origin": "https://example.org"}).headers
    assert headers["access-control-allow-origin"] == "*"
    assert {"ETag", "Link"} <= set(headers["access-control-expose-headers"].split(", "))
    assert headers["cache-control"] == "public, max-age=60"


def test_markdown_by_address_and_by_accept(served: TestClient) -> None:
    by_address = served.get(f"{ONE}.md")
    by_accept = served.get(ONE, headers={"Accept": "text/markdown"})
    assert (
        by_address.headers["content-type"]
        == by_accept.headers["content-type"]
        == "text/markdown; charset=utf-8"
    )
    assert by_address.text == by_accept.text
    assert by_accept.text.startswith("sgl-project/sglang · error · RuntimeError\n")
    assert "Accept" in by_accept.headers["vary"].split(", ")


@pytest.mark.parametrize(
    "accept", ["*/*", "application/json", "text/html", "text/markdown;q=0.1, application/json"]
)
def test_json_is_what_everybody_else_gets(served: TestClient, accept: str) -> None:
    answer = served.get(ONE, headers={"Accept": accept})
    assert answer.headers["content-type"] == "application/json"
    assert "Accept" in answer.headers["vary"].split(", ")


def test_a_record_is_written_once(served: TestClient) -> None:
    served.get(ONE)
    before = service.representation.cache_info()
    served.get(ONE)
    after = service.representation.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)


# --- lists


def listed(served: TestClient, query: str = "") -> dict[str, Any]:
    answer = served.get(f"/api/errors{query}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_list_has_summaries_and_a_total(served: TestClient) -> None:
    body = listed(served, "?q=kv_scales+fp32&operation=sparse_attn_v4_paged_decode&limit=1")
    assert set(body) == {"errors", "total", "datasetVersion"}
    [first] = body["errors"]
    assert body["total"] >= 1
    record = load_catalog().get(first["id"])
    assert record is not None
    for key, value in first.items():
        if key != "operations":
            assert value == record.record.to_json()[key]
    assert first["operations"] == ["sparse_attn_v4_paged_decode"]


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("?repo=sgl-project/sglang&errorClass=RuntimeError&q=fp32&regex=^kv_scales%20must", 1),
        (
            "?errorType=validation&severity=error&family=tensor-dtype-mismatch&package=sglang&tag=kv-cache",
            None,
        ),
        ("?repo=nobody/nothing", 0),
        ("?repo=&q=&regex=&severity=&cursor=", None),
        ("?unknown=1", None),
    ],
)
def test_criteria(served: TestClient, query: str, count: int | None) -> None:
    body = listed(served, query)
    assert body["total"] == count if count is not None else body["total"] > 0


def test_pages_are_linked_to_the_end(served: TestClient) -> None:
    everything = [
        found.record.id for found in load_catalog().records if found.record.repo == "sgl-project/sglang"
    ]
    answer = served.get("/api/errors?limit=20&repo=sgl-project/sglang")
    seen = [item["id"] for item in answer.json()["errors"]]
    while (following := answer.links.get("next")) is not None:
        assert following["url"].startswith("/api/errors?")
        answer = served.get(following["url"])
        assert answer.json()["total"] == len(everything)
        seen += [item["id"] for item in answer.json()["errors"]]
    assert seen == everything


def test_a_link_is_absolute_where_the_address_is_known() -> None:
    settings = Settings(public_url="https://faults.example.org", root_path="/book")
    with TestClient(create_app(settings, routers=[router])) as client:
        link = client.get("/api/errors?limit=1&q=scale%20buffer").links["next"]["url"]
    assert link.startswith("https://faults.example.org/book/api/errors?")
    assert "q=scale+buffer" in link


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("?limit=0", "/limit"),
        ("?limit=201", "/limit"),
        ("?limit=many", "/limit"),
        ("?errorType=warning", "/errorType"),
        ("?severity=fatal", "/severity"),
        ("?cursor=nowhere", "/cursor"),
        ("?q=" + "x" * 501, "/q"),
        ("?regex=" + "x" * 1001, "/regex"),
        ("?regex=(a%7B500%7D)%7B500%7D", "/regex"),
    ],
)
def test_bad_criteria_are_pointed_at(served: TestClient, query: str, pointer: str) -> None:
    [fault] = problem(served, f"/api/errors{query}", 422)["errors"]
    assert (fault["pointer"], fault["in"]) == (pointer, "query")


def test_bad_syntax_of_a_pattern_names_its_position(served: TestClient) -> None:
    body = problem(served, "/api/errors?regex=ab(c", 400)
    assert body["position"] == 4
    assert "position 4" in body["detail"]


# --- the schema, and readiness


def test_the_schema_describes_what_is_served(served: TestClient) -> None:
    document = served.get("/schema.json").json()
    assert document == json.loads(json.dumps(schema()))
    jsonschema.Draft202012Validator(document).validate(served.get(ONE).json()["record"])
    assert not jsonschema.Draft202012Validator(document).is_valid(
        served.get(f"{ONE}?view=full").json()["record"]
    )


def test_answers_are_as_openapi_says(served: TestClient) -> None:
    document = served.get("/openapi.json").json()
    for path, query in (
        ("/api/errors/{record_id}", f"{ONE}?view=full"),
        ("/api/errors", "/api/errors?limit=200"),
    ):
        shape = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.Draft202012Validator(shape).validate(served.get(query).json())


def test_readiness_tells_of_the_catalog(served: TestClient) -> None:
    part = served.get("/readyz").json()["parts"]["catalog"]
    assert part["ready"] is True
    assert load_catalog().dataset_version in part["detail"]
