"""From texts to records over HTTP, and back to calls that print them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from app.diagnose.questions import parse_question
from app.http.text import json_bytes
from app.lookup.routes import router
from app.lookup.service import match_text
from app.main import create_app
from app.settings import Settings
from catalog.faults import Case, demonstrate
from catalog.store import load_catalog
from kernels.registry import operations

SCALES = "3018da578aab5d5a"
PRINTED = "kv_scales must be fp32, got torch.bfloat16"


@pytest.fixture(scope="module")
def served() -> Iterator[TestClient]:
    with TestClient(create_app(Settings(), routers=[router])) as client:
        yield client


def search(served: TestClient, **query: Any) -> list[dict[str, Any]]:
    answer = served.get("/api/search", params=query)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["matches"])


def match(served: TestClient, text: str, **more: Any) -> dict[str, Any]:
    answer = served.post("/api/match", json={"text": text, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


# --- search


@pytest.mark.parametrize("name", ["q", "message"])
def test_a_message_is_found_by_either_name(served: TestClient, name: str) -> None:
    first, *_ = search(served, **{name: PRINTED})
    assert (first["id"], first["repo"], first["code"]) == (SCALES, "sgl-project/sglang", None)
    assert first["message"] == "kv_scales must be fp32, got {kv_scales.dtype}"
    assert first["matchType"] == "pattern"
    assert 0.8 <= first["score"] <= 1
    assert first["url"] == f"/errors/{SCALES}/kv-scales-must-be-fp32-got-kv-scales-dtype"
    assert first["captures"] == [{"name": "kv_scales.dtype", "value": "torch.bfloat16", "kind": "dtype"}]


def test_words_of_a_message_are_similar_to_it(served: TestClient) -> None:
    found = search(served, q="scales fp32 kv must be", limit=25)
    assert SCALES in [item["id"] for item in found]
    assert {item["matchType"] for item in found} == {"fuzzy"}


@pytest.mark.parametrize("limit", [1, 3, 25])
def test_no_more_than_asked_for(served: TestClient, limit: int) -> None:
    assert 0 < len(search(served, q="scale buffers", limit=limit)) <= limit


def test_five_unless_asked_for_more(served: TestClient) -> None:
    assert len(search(served, q="scale buffers shape dtype group")) <= 5


def test_a_repository_narrows_it(served: TestClient) -> None:
    assert search(served, q=PRINTED, repo="nobody/nothing") == []
    assert search(served, q=PRINTED, repo="sgl-project/sglang")[0]["id"] == SCALES


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({}, "/q"),
        ({"q": ""}, "/q"),
        ({"q": "  "}, "/q"),
        ({"q": "a", "limit": 0}, "/limit"),
        ({"q": "a", "limit": 26}, "/limit"),
    ],
)
def test_bad_searches_are_pointed_at(served: TestClient, query: dict[str, Any], pointer: str) -> None:
    answer = served.get("/api/search", params=query)
    assert answer.status_code == 422
    [fault] = answer.json()["errors"]
    assert (fault["pointer"], fault["in"]) == (pointer, "query")


def test_a_search_is_no_business_of_shared_caches(served: TestClient) -> None:
    answer = served.get("/api/search", params={"q": PRINTED})
    assert answer.headers["cache-control"] == "private, max-age=60"
    again = served.get(
        "/api/search", params={"q": PRINTED}, headers={"If-None-Match": answer.headers["etag"]}
    )
    assert again.status_code == 304


def test_a_long_query_is_searched_for_too(served: TestClient) -> None:
    assert search(served, q=PRINTED + "\n" + "noise " * 500)[0]["id"] == SCALES


# --- match


TRACEBACK = f"""\
2026-12-01 10:00:00 INFO loading
Traceback (most recent call last):
  File "/opt/sglang/dsv4/unified_kv_kernels/paged_decode.py", line 739, in _sparse_attn_v4_paged_decode_triton
    raise RuntimeError(f"kv_scales must be fp32, got {{kv_scales.dtype}}")
RuntimeError: {PRINTED}
"""


def test_a_traceback(served: TestClient) -> None:
    body = match(served, TRACEBACK)
    assert body["hasMatch"] is True
    assert body["truncated"] is False
    assert body["unmatched"] == []
    first = body["matches"][body["rootCause"]]
    assert first["id"] == SCALES
    assert (first["errorClass"], first["role"], first["count"]) == ("RuntimeError", "root-cause", 1)
    assert first["line"] == 5
    assert TRACEBACK[first["span"]["start"] : first["span"]["end"]] == PRINTED == first["rendered"]
    assert first["site"]["lines"] == [668, 739]
    assert first["versions"] == ["0132848349585cfe6aae51c4941cbae872505f8a", "0.5.23"]
    assert body["datasetVersion"] == load_catalog().dataset_version


def test_plain_text_is_the_same(served: TestClient) -> None:
    answer = served.post("/api/match", content=TRACEBACK.encode(), headers={"Content-Type": "text/plain"})
    assert answer.json() == match(served, TRACEBACK)
    assert answer.headers["cache-control"] == "no-store"


def test_what_is_unknown_is_said_to_be(served: TestClient) -> None:
    body = match(served, "Traceback (most recent call last):\nKeyError: 'no such thing'")
    assert (body["hasMatch"], body["rootCause"]) == (False, None)
    assert not [item for item in body["matches"] if item["score"] >= 0.8]
    assert [item["exception"] for item in body["unmatched"]] == ["KeyError"]


def test_the_limit_and_the_repository_hold(served: TestClient) -> None:
    text = f"RuntimeError: {PRINTED}\n\nValueError: int32-packed scale buffers require scale_ue8m0=True\n"
    assert len(match(served, text)["matches"]) == 2
    body = match(served, text, limit=1)
    assert (len(body["matches"]), body["truncated"]) == (1, True)
    assert match(served, text, repo="nobody/nothing")["matches"] == []


@pytest.mark.parametrize(
    ("packages", "versions"),
    [
        ({"sglang": "0.5.23"}, ["0.5.23"]),
        ({"sglang": "0.4.0"}, ["0132848349585cfe6aae51c4941cbae872505f8a", "0.5.23"]),
        ({"torch": "2.13.0"}, ["0132848349585cfe6aae51c4941cbae872505f8a", "0.5.23"]),
    ],
)
def test_an_installed_version_narrows_the_versions(
    served: TestClient, packages: dict[str, str], versions: list[str]
) -> None:
    assert match(served, PRINTED, packages=packages)["matches"][0]["versions"] == versions


def test_a_site_that_a_version_lacks(served: TestClient) -> None:
    packages = {"sglang": "0132848349585cfe6aae51c4941cbae872505f8a"}
    [found] = match(served, "ValueError: Unknown silu_and_mul_mode: fast", packages=packages)["matches"]
    assert found["versions"] == []


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", {"Content-Type": "text/plain"}, 422),
        (b"", {"Content-Type": "application/json"}, 422),
        (b"\xff\xfe", {"Content-Type": "text/plain"}, 422),
        (b'{"text": "\xff"}', {"Content-Type": "application/json"}, 422),
        (b'{"text": NaN}', {"Content-Type": "application/json"}, 422),
        (b"[" * 100_000, {"Content-Type": "application/json"}, 422),
        (b"{", {"Content-Type": "application/json"}, 422),
        (b"text", {}, 415),
        (b"text", {"Content-Type": "application/xml"}, 415),
        (b"x" * (16 * 2**20 + 1), {"Content-Type": "text/plain"}, 413),
    ],
)
def test_bad_bodies_are_refused(
    served: TestClient, body: bytes, headers: dict[str, str], status: int
) -> None:
    answer = served.post("/api/match", content=body, headers=headers)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        ({}, ["/text"]),
        ({"text": ""}, ["/text"]),
        ({"text": 1, "limit": 0}, ["/text", "/limit"]),
        ({"text": "a", "limit": 101}, ["/limit"]),
        ({"text": "a", "limit": "5"}, ["/limit"]),
        ({"text": "a", "packages": {"sglang": 5}}, ["/packages/sglang"]),
        ({"text": "a", "colour": "red"}, ["/colour"]),
    ],
)
def test_every_fault_of_a_body_is_pointed_at(
    served: TestClient, body: dict[str, Any], pointers: list[str]
) -> None:
    answer = served.post("/api/match", json=body)
    assert answer.status_code == 422
    assert [fault["pointer"] for fault in answer.json()["errors"]] == pointers


def test_answers_are_as_openapi_says(served: TestClient) -> None:
    document = served.get("/openapi.json").json()
    answers = {
        ("/api/search", "get"): served.get("/api/search", params={"q": PRINTED}).json(),
        ("/api/repos", "get"): served.get("/api/repos").json(),
        ("/api/match", "post"): match(served, TRACEBACK + "KeyError: 'x'"),
    }
    for (path, method), body in answers.items():
        shape = document["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.Draft202012Validator({**shape, "components": document["components"]}).validate(body)


def test_a_whole_log(served: TestClient) -> None:
    log = "INFO step 17 of 100: loss 3.25, nothing unusual happened at all\n" * 150_000
    body = match(served, log + TRACEBACK)
    first = body["matches"][body["rootCause"]]
    assert (first["id"], first["line"]) == (SCALES, 150_005)


def test_a_long_match_does_not_hold_up_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    began, released, waited = threading.Event(), threading.Event(), []

    def slow(*positional: Any, **named: Any) -> dict[str, Any]:
        began.set()
        waited.append(released.wait(10))
        return match_text(*positional, **named)

    async def both() -> tuple[int, int]:
        transport = httpx2.ASGITransport(create_app(Settings(), routers=[router]))
        async with httpx2.AsyncClient(transport=transport, base_url="http://service") as client:
            first = asyncio.create_task(client.post("/api/match", json={"text": PRINTED}))
            await asyncio.to_thread(began.wait, 10)
            second = await client.get("/api/repos")
            released.set()
            return (await first).status_code, second.status_code

    monkeypatch.setattr("app.lookup.service.match_text", slow)
    assert asyncio.run(both()) == (200, 200)
    assert waited == [True], "the other request was answered while the match was still running"


def test_repositories(served: TestClient) -> None:
    body = served.get("/api/repos").json()
    by_name = {item["repo"]: item for item in body["repos"]}
    assert by_name["sgl-project/sglang"]["packageVersion"] == "0.5.23"
    assert sum(item["errorCount"] for item in body["repos"]) == len(load_catalog().records)
    assert body["datasetVersion"] == load_catalog().dataset_version


# --- the call that a match comes with


def arguments(text: str) -> dict[str, Any]:
    first, *_ = match_text(text)["matches"]
    assert first["spec"]["operation"] == first["operation"]
    return dict(first["spec"]["arguments"])


def test_a_captured_type_is_that_of_the_call() -> None:
    assert arguments("kv_scales must be fp32, got torch.float64")["kv_scales"]["dtype"] == "float64"
    assert arguments("ValueError: Unsupported output_s dtype torch.uint8")["output_s"]["dtype"] == "uint8"


def test_captured_sizes_are_those_of_the_call() -> None:
    found = arguments("RuntimeError: kv_scales shape (70, 3) does not match expected (64, 2)")
    assert found["kv_scales"]["shape"] == [70, 3]
    assert found["unified_kv"]["shape"][0] == 64


def test_a_captured_word_is_that_of_the_call() -> None:
    assert arguments("ValueError: Unknown silu_and_mul_mode: turbo")["silu_and_mul_mode"] == "turbo"


@pytest.mark.parametrize(
    ("line", "tensor", "shape", "cause"),
    [
        (488, "output_q", [7, 256], "Size mismatch for shape#0('num_tokens'): expected 4 but got 7"),
        (489, "output_s", [9, 2], "Size mismatch for shape#0('num_tokens'): expected 4 but got 9"),
        (616, "masked_m", [5], "Size mismatch for shape#0('num_experts'): expected 2 but got 5"),
    ],
)
def test_the_line_tells_which_tensor_is_meant(line: int, tensor: str, shape: list[int], cause: str) -> None:
    sizes = ", ".join(map(str, shape))
    strides = ", ".join(map(str, [shape[1], 1] if len(shape) == 2 else [1]))
    dtype = {"output_q": "float8_e4m3fn", "output_s": "float32", "masked_m": "int32"}[tensor]
    text = (
        f"RuntimeError: Tensor match failed for Tensor<{sizes}>[strides=<{strides}>, dtype={dtype}, "
        f"device=cuda:0] at /opt/sglang/csrc/gemm/per_token_group_quant.cuh:{line}\n- Root cause: {cause}"
    )
    assert arguments(text)[tensor] == {"shape": shape, "dtype": dtype}


SHOWN = [
    (case, found)
    for operation in operations().values()
    for case in (Case(operation, check) for check in operation.checks)
    if not case.check.pythons_own and case.check.message
    for found in [demonstrate(case)]
    if found is not None
]


@pytest.mark.parametrize(
    ("case", "found"), SHOWN, ids=[f"{case.operation.name}/{case.check.id()}" for case, _ in SHOWN]
)
def test_the_call_of_a_match_raises_what_was_pasted(case: Case, found: Any) -> None:
    """Read as a request is, it breaks a check of the record with the same text, site apart."""
    error = found.violation.exception()
    first, *_ = match_text(f"{type(error).__name__}: {found.violation.text}")["matches"]
    question = parse_question(json_bytes(first["spec"]))
    examination = question.operation.examine(question.call)
    violation = examination.raised or examination.failed()[0].occurrences[0].violation
    raised = load_catalog().record_id_of(question.operation, type(violation))
    assert raised in (first["id"], *first["siblings"])
    same = type(violation).__name__ == case.check.__name__ or violation.text == found.violation.text
    own = load_catalog().record_id_of(case.operation, case.check)
    assert same or own in first["siblings"], "a text of several files, read as the first of them"


VALUES = st.one_of(
    st.sampled_from(
        ["torch.int8", "bfloat16", "(0,)", "()", "(1, 2, 3, 4, 5)", "None", "-1", "cuda:3", "cpu", "''"]
    ),
    st.integers(-(2**70), 2**70).map(str),
    st.lists(st.integers(0, 2**62), max_size=20).map(lambda sizes: str(tuple(sizes))),
    st.text(max_size=30),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([fault for fault in load_catalog().records if fault.fault.captures]), st.data())
def test_whatever_a_message_prints_is_answered(found: Any, data: st.DataObject) -> None:
    template = found.fault.template
    text = template.segments[0]
    for segment in template.segments[1:]:
        text += data.draw(VALUES) + segment
    for item in match_text(f"{found.record.error_class}: {text}")["matches"]:
        if item["spec"] is not None:
            parse_question(json_bytes(item["spec"]))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            "terminate called after throwing an instance of 'c10::Error'\n  what():  nobody knows this",
            "torch",
        ),
        ("flashinfer.jit.SomeError: nobody knows this", "flashinfer-python"),
        ("acme.SomeError: nobody\nother.OtherError: knows", "acme other"),
    ],
)
def test_what_is_not_indexed_is_named(text: str, named: str) -> None:
    assert f"`faultbook index {named}`" in match_text(text)["notice"]


@pytest.mark.parametrize(
    "text", [PRINTED, "ValueError: nobody knows this", "torch.OutOfMemoryError: CUDA out of memory."]
)
def test_where_indexing_would_not_help_none_is_asked_for(text: str) -> None:
    assert match_text(text)["notice"] is None
