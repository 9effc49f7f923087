from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from kernels.registry import operations

Read = Callable[[str], Any]

QUANT = "/operations/per_token_group_quant"
FAULTY = {
    "operation": "per_token_group_quant",
    "arguments": {
        "input": {"shape": [16, 7168], "dtype": "bfloat16"},
        "output_q": {"shape": [16, 7168], "dtype": "float8_e4m3fn"},
        "output_s": {"shape": [16, 14], "dtype": "int32", "strides": [1, 16]},
        "group_size": 128,
        "scale_ue8m0": False,
    },
}


def body_of(page: Any) -> str:
    """What the diagnosis form holds."""
    (form,) = [fields for action, fields in page.forms if action.endswith("#result")]
    return str(form["body"]).removeprefix("\n")


def diagnose(service: TestClient, body: str, level: str = "checks", path: str = QUANT, **headers: str) -> Any:
    return service.post(path, data={"body": body, "level": level}, headers=headers)


@pytest.mark.parametrize("name", operations())
def test_a_page_lists_every_argument_and_every_check_in_order(
    service: TestClient, read: Read, name: str
) -> None:
    page = read(service.get(f"/operations/{name}").text)
    api = service.get(f"/api/operations/{name}").json()
    for argument, form in api["callSchema"]["properties"].items():
        assert argument in page.text
        assert form["description"] in page.text
    checks = [check["id"] for check in api["checks"]]
    assert [identifier for identifier in page.ids if identifier in checks] == checks
    shown = " ".join(page.text.split())
    for check in api["checks"]:
        assert " ".join(check["message"].split()) in shown
        assert check["reason"] in shown
        tried = f"/operations/{name}?example={check['id']}#diagnose"
        assert (tried in page.links) == (check["example"] is not None)
        assert any(link.startswith(f"/errors/{check['recordId']}/") for link in page.links)


@pytest.mark.parametrize("name", operations())
def test_the_form_starts_with_a_valid_call_which_passes(service: TestClient, read: Read, name: str) -> None:
    body = body_of(read(service.get(f"/operations/{name}").text))
    assert json.loads(body) == service.get(f"/api/operations/{name}").json()["valid"]
    answer = diagnose(service, body, path=f"/operations/{name}")
    assert answer.status_code == 200
    assert (2, "Passed: no check refuses this call") in read(answer.text).headings


@pytest.mark.parametrize("name", operations())
def test_each_failing_example_fails_on_the_page_as_it_does_in_the_api(
    service: TestClient, read: Read, name: str
) -> None:
    for check in service.get(f"/api/operations/{name}").json()["checks"]:
        if check["example"] is None:
            answer = service.get(f"/operations/{name}?example={check['id']}")
            assert answer.status_code == 409
            continue
        page = read(service.get(f"/operations/{name}?example={check['id']}").text)
        body = body_of(page)
        assert json.loads(body) == check["example"]
        told = read(diagnose(service, body, path=f"/operations/{name}").text)
        assert any(level == 3 and text.startswith(check["id"]) for level, text in told.headings), check["id"]


def test_an_operation_or_check_of_no_such_name_is_not_found(service: TestClient) -> None:
    assert service.get("/operations/nothing").status_code == 404
    assert service.post("/operations/nothing", data={"body": "{}"}).status_code == 404
    assert service.get(f"{QUANT}?example=nothing").status_code == 404


def test_a_diagnosis_shows_what_the_api_answers(service: TestClient, read: Read) -> None:
    told = diagnose(service, json.dumps(FAULTY))
    assert told.status_code == 200
    assert told.headers["cache-control"] == "no-store"
    page = read(told.text)
    api = service.post("/api/diagnose", json={**FAULTY, "level": "checks"}).json()
    shown = " ".join(page.text.split())
    assert (2, "Rejected") in page.headings
    assert f"{api['raised']['errorClass']}: {api['raised']['message']}" in shown
    (failed,) = [check for check in api["checks"] if check["status"] == "failed"]
    for key in ("id", "reason", "expected", "actual"):
        assert failed[key] in shown
    for fix in api["fixes"]:
        assert (4, fix["title"]) in page.headings
        assert " ".join(fix["code"].split()) in shown
    for sentence in api["assumed"]:
        assert sentence in shown
    assert " ".join(api["reproduction"].split()) in shown
    assert json.loads(body_of(page)) == FAULTY


def test_a_fix_put_into_the_form_passes(service: TestClient, read: Read) -> None:
    page = read(diagnose(service, json.dumps(FAULTY)).text)
    offered = [fields for action, fields in page.forms if fields.get("step") == "edit"]
    assert offered
    for fields in offered:
        filled = read(service.post(QUANT, data=fields).text)
        assert not any(text == "Rejected" for _, text in filled.headings)
        again = read(diagnose(service, body_of(filled)).text)
        assert (2, "Passed: no check refuses this call") in again.headings


def test_faults_are_listed_with_pointers_and_the_text_stays(service: TestClient, read: Read) -> None:
    body = '\n{"arguments": {"input": {"shape": [4, -1], "dtype": "bf17"},\r\n "nonsense": "</textarea>"}}'
    answer = diagnose(service, body)
    assert answer.status_code == 422
    page = read(answer.text)
    for pointer in ("/arguments/input/shape/1", "/arguments/input/dtype", "/arguments/nonsense"):
        assert pointer in page.text
    assert body_of(page) == body.replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "The body is empty"),
        ("{", "The body is not JSON"),
        ("[1]", "Input should be"),
        ('{"arguments": {"group_size": NaN}}', "NaN and Infinity are not JSON"),
        ("[" * 3000, "nested more than 200 levels deep"),
        ('{"operation": "quanto_int8_checkpoint"}', "this page diagnoses per_token_group_quant"),
        ('{"operation": 3}', "/operation"),
        ('{"arguments": [], "colour": "red"}', "/colour"),
        ('{"arguments": {"group_size": 1e999}}', "/arguments/group_size"),
    ],
)
def test_a_body_that_is_no_request_is_told_and_kept(
    service: TestClient, read: Read, body: str, said: str
) -> None:
    answer = diagnose(service, body)
    assert answer.status_code == 422
    page = read(answer.text)
    assert said in page.text
    assert body_of(page) == body


def test_the_level_chosen_wins_and_stays_chosen(service: TestClient) -> None:
    answer = diagnose(service, json.dumps({**FAULTY, "level": "run"}))
    assert "Level checks:" in answer.text
    assert re.search(r'<option value="checks" selected>', answer.text)
    answer = diagnose(service, json.dumps({**FAULTY, "level": "run"}), level="")
    assert "Level run:" in answer.text
    assert diagnose(service, json.dumps(FAULTY), level="deep").status_code == 422


def test_unusual_numbers_arrive_as_they_were_written(service: TestClient, read: Read) -> None:
    arguments = {**FAULTY["arguments"], "group_size": 10**30}  # type: ignore[dict-item]
    page = read(diagnose(service, json.dumps({"arguments": arguments})).text)
    assert str(10**30) in page.text
    assert (2, "Rejected") in page.headings


@pytest.mark.parametrize(
    ("site", "level", "status"),
    [
        ("cross-site", "run", 403),
        ("cross-site", "", 403),
        ("cross-site", "checks", 200),
        ("same-origin", "run", 200),
        ("none", "", 200),
    ],
)
def test_a_foreign_form_makes_nothing_run(
    service: TestClient, read: Read, site: str, level: str, status: int
) -> None:
    answer = diagnose(service, json.dumps(FAULTY), level, **{"Sec-Fetch-Site": site})
    assert answer.status_code == status
    assert json.loads(body_of(read(answer.text))) == FAULTY


def test_a_foreign_form_does_not_get_around_that_by_its_body(service: TestClient) -> None:
    body = json.dumps({**FAULTY, "level": "run"})
    assert diagnose(service, body, "", **{"Sec-Fetch-Site": "cross-site"}).status_code == 403


def test_a_filled_form_runs_nothing(service: TestClient, read: Read) -> None:
    answer = service.post(QUANT, data={"body": json.dumps(FAULTY), "step": "edit"})
    assert answer.status_code == 200
    page = read(answer.text)
    assert json.loads(body_of(page)) == FAULTY
    assert "result" not in page.ids
    kept = read(service.post(QUANT, data={"body": "{no json", "step": "edit"}).text)
    assert body_of(kept) == "{no json"


def test_a_form_that_is_too_long_is_refused() -> None:
    with TestClient(create_app(Settings(workers=0, max_body_bytes=1000))) as client:
        assert client.post(QUANT, data={"body": "x" * 2000}).status_code == 413


def test_diagnoses_are_counted(service: TestClient) -> None:
    line = 'faultbook_diagnoses_total{level="checks",operation="per_token_group_quant",verdict="rejected"} '

    def counted() -> float:
        lines = service.get("/metrics").text.splitlines()
        return sum(float(found.removeprefix(line)) for found in lines if found.startswith(line))

    before = counted()
    diagnose(service, json.dumps(FAULTY))
    assert counted() == before + 1


@pytest.fixture(scope="module")
def worker() -> Iterator[TestClient]:
    with TestClient(create_app(Settings(device="cpu", run_timeout=60))) as client:
        yield client


def test_a_run_shows_where_it_ran_and_how_far_its_outputs_are_off(worker: TestClient, read: Read) -> None:
    valid = worker.get("/api/operations/per_token_group_quant").json()["valid"]
    answer = diagnose(worker, json.dumps(valid), "run")
    page = read(answer.text)
    assert answer.status_code == 200, page.text
    assert (3, "Run") in page.headings
    assert "output_q" in page.text
    assert "agrees with the reference" in page.text
    fixed = read(diagnose(worker, json.dumps(FAULTY), "run").text)
    assert "it was run, and its outputs agree with the reference" in fixed.text
