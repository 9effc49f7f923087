from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.pages.search import MOST_ECHOED
from catalog.match import kind_of

Read = Callable[[str], Any]

TRACEBACK = """\
Traceback (most recent call last):
  File "/srv/worker.py", line 12, in forward
    out = sparse_attn_v4_paged_decode(q, pool, kv_scales=scales)
RuntimeError: kv_scales must be fp32, got torch.bfloat16
"""
UNKNOWN = "Traceback (most recent call last):\nFrobError: the zorgle of 17 quuxes is not wibbled\n"


def test_a_traceback_leads_to_its_record_and_to_a_call_that_raises_it(
    service: TestClient, read: Read
) -> None:
    answer = service.post("/", data={"text": TRACEBACK})
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    page = read(answer.text)
    assert "/errors/3018da578aab5d5a/kv-scales-must-be-fp32-got-kv-scales-dtype" in page.links
    assert (2, "1 match") in page.headings
    assert "Root cause" in page.text
    assert "torch.bfloat16" in page.text
    (prefilled,) = [fields for action, fields in page.forms if action.startswith("/operations/")]
    shown = service.post("/operations/sparse_attn_v4_paged_decode", data=prefilled)
    (form,) = [fields for action, fields in read(shown.text).forms if action.endswith("#result")]
    diagnosed = service.post("/operations/sparse_attn_v4_paged_decode", data={**form, "level": "checks"})
    assert "RuntimeError: kv_scales must be fp32, got torch.bfloat16" in read(diagnosed.text).text


def test_plain_text_and_a_form_find_the_same(service: TestClient) -> None:
    plain = service.post("/", content=TRACEBACK.encode(), headers={"Content-Type": "text/plain"})
    form = service.post("/", data={"text": TRACEBACK.replace("\n", "\r\n")})
    assert plain.status_code == 200
    assert plain.text == form.text


def test_a_short_text_may_stand_in_the_address(service: TestClient, read: Read) -> None:
    answer = service.get("/", params={"q": "kv_scales must be fp32, got torch.float16"})
    page = read(answer.text)
    assert "/errors/3018da578aab5d5a/kv-scales-must-be-fp32-got-kv-scales-dtype" in page.links
    assert answer.headers["cache-control"] == "no-store"
    (twin,) = page.alternates
    assert service.get(twin).json()["matches"][0]["id"] == "3018da578aab5d5a"


def test_what_matches_nothing_says_so(service: TestClient, read: Read) -> None:
    page = read(service.post("/", data={"text": UNKNOWN}).text)
    assert (2, "No record matches this text") in page.headings
    assert "the zorgle of 17 quuxes" in page.text
    cards = [text for level, text in page.headings if level == 3]
    assert "Exceptions without a record" in cards
    assert "Root cause" not in page.text


def test_words_that_are_no_message_lead_to_the_records_that_have_them(
    service: TestClient, read: Read
) -> None:
    page = read(service.get("/", params={"q": "scale contiguous"}).text)
    (address,) = [link for link in page.links if link.startswith("/errors?q=")]
    listed = [link for link in read(service.get(address).text).links if link.startswith("/errors/")]
    assert f"{len(listed)} records with these words" in page.text
    assert len(listed) > 1
    assert "with these words" not in service.get("/", params={"q": "zorgle"}).text


def test_chance_is_not_called_similar(service: TestClient, read: Read) -> None:
    page = read(service.get("/", params={"q": "hello world nothing like it"}).text)
    assert "similar" not in page.text
    near = read(service.get("/", params={"q": "kv scale must be fp32 got float16"}).text)
    assert "similar" in near.text


def test_an_id_is_taken_to_its_record(service: TestClient) -> None:
    answer = service.get("/", params={"q": " 3018da578aab5d5a "})
    assert answer.status_code == 302
    assert answer.headers["location"].startswith("/errors/3018da578aab5d5a/")
    assert service.get("/", params={"q": "3018da578aab5d5b"}).status_code == 200


def test_what_is_pasted_is_neither_logged_nor_sent_back_with_its_secrets(
    service: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "hf_abcdefghijklmnopqrst"
    with caplog.at_level(logging.DEBUG):
        answer = service.post("/", data={"text": f"token {secret}\nValueError: pasted-mark {secret}"})
        found = service.get("/", params={"q": f"pasted-mark {secret}"})
    for text in (answer.text, found.text.split("<body>")[1]):
        assert "pasted-mark" in text
        assert secret not in text
    ours = [record for record in caplog.records if record.name.startswith("faultbook")]
    assert ours
    assert not any("pasted-mark" in record.getMessage() for record in ours)


def test_a_long_text_is_searched_and_not_sent_back(service: TestClient, read: Read) -> None:
    log = "INFO nothing to see here\n" * 100_000 + TRACEBACK
    answer = service.post("/", data={"text": log})
    assert answer.status_code == 200
    assert (2, "1 match") in read(answer.text).headings
    assert len(answer.text) < 20_000 + MOST_ECHOED


def test_an_empty_form_shows_the_page(service: TestClient) -> None:
    answer = service.post("/", data={"text": "  "})
    assert answer.status_code == 200
    assert 'id="result"' not in answer.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Content-Type": "multipart/form-data; boundary=x"}, 415), ({"Content-Type": "application/json"}, 415)],
)
def test_other_media_types_are_refused(service: TestClient, headers: dict[str, str], status: int) -> None:
    assert service.post("/", content=b"text=x", headers=headers).status_code == status


def test_searches_are_counted(service: TestClient) -> None:
    def counted(outcome: str) -> float:
        line = f'faultbook_lookups_total{{door="page",outcome="{outcome}"}} '
        lines = service.get("/metrics").text.splitlines()
        return sum(float(found.removeprefix(line)) for found in lines if found.startswith(line))

    before = counted("match"), counted("none")
    service.post("/", data={"text": TRACEBACK})
    service.post("/", data={"text": UNKNOWN})
    assert (counted("match"), counted("none")) == (before[0] + 1, before[1] + 1)


def test_the_start_page_counts_what_there_is(service: TestClient, read: Read) -> None:
    text = read(service.get("/").text).text
    for repository in service.get("/api/repos").json()["repos"]:
        assert repository["repo"] in text
        assert f"{repository['errorCount']:,}" in text
    for operation in service.get("/api/operations").json()["operations"]:
        assert operation["name"] in text


def test_scores_have_the_contracts_names() -> None:
    assert [kind_of(score) for score in (1.0, 0.8, 0.799, 0.5, 0.499)] == [
        "match",
        "match",
        "possible",
        "possible",
        "similar",
    ]


def test_whose_an_error_is_stands_beside_it(service: TestClient, read: Read) -> None:
    error = "ValueError: Unsupported output_s dtype torch.uint8"
    lines = [f"[pod/w-{rank}/main] 2026-12-02T09:14:0{rank}Z [rank{rank}]: {error}" for rank in (2, 1)]
    page = read(service.post("/", data={"text": "\n".join(lines)}).text)
    for words in ("2 times", "ranks 1-2", "on w-2, w-1", "first 2026-12-02T09:14:01Z"):
        assert words in page.text


def test_a_text_that_no_record_is_of_is_told_as_what_it_is(service: TestClient, read: Read) -> None:
    text = "[rank1]:[E1202 09:14:05.1 P.cpp:616] [Rank 1] Watchdog caught collective operation timeout: x"
    page = read(service.post("/", data={"text": text}).text)
    assert (2, "No record matches this text") in page.headings
    assert "waited for a collective that another rank never joined" in page.text
    assert "another rank or process failed first" in page.text


def test_what_is_only_similar_shows_its_own_words(service: TestClient, read: Read) -> None:
    said = "int32-packed scale buffer requires scale ue8m0 zorgle"
    page = read(service.post("/", data={"text": f"ValueError: {said}"}).text)
    assert "int32-packed scale buffers require scale_ue8m0=True" in page.text
    assert page.text.count("zorgle") == 2  # in the box and among what has no record
