from __future__ import annotations

import gzip
import hashlib

import pytest
from fastapi import APIRouter, Request, Response
from starlette.testclient import TestClient

from app.http.caching import WORTHWHILE, Representation, json_response, matches
from app.main import create_app
from app.settings import Settings

LONG = Representation(b'{"text":"' + b"scale " * 500 + b'"}')
SHORT = Representation(b'{"text":"scale"}')
NOISE = Representation(
    b"".join(hashlib.sha256(bytes([i])).digest() for i in range(64)), "application/octet-stream"
)
GZIP = {"Accept-Encoding": "gzip"}
PLAIN = {"Accept-Encoding": "identity"}


@pytest.fixture(scope="module")
def client() -> TestClient:
    router = APIRouter()

    @router.get("/stored/{name}")
    async def stored(request: Request, name: str) -> Response:
        return {"long": LONG, "short": SHORT, "noise": NOISE}[name].respond(request, vary="Accept")

    @router.get("/made")
    async def made(request: Request) -> Response:
        return json_response(request, LONG.body, cache_control="no-cache", headers={"Link": "</x>"})

    return TestClient(create_app(Settings(), routers=[router]))


def test_the_etag_is_strong_and_belongs_to_the_bytes(client: TestClient) -> None:
    answer = client.get("/stored/long", headers=PLAIN)
    assert answer.content == LONG.body
    assert answer.headers["etag"] == f'"{hashlib.sha256(LONG.body).hexdigest()[:32]}"'
    assert answer.headers["cache-control"] == "public, max-age=60"
    assert answer.headers["vary"] == "Accept-Encoding, Accept"
    assert SHORT.etag != LONG.etag


def test_compressed_bytes_have_a_tag_of_their_own(client: TestClient) -> None:
    answer = client.get("/stored/long", headers=GZIP)
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["etag"] == LONG.etag[:-1] + '-gzip"'
    assert answer.headers["vary"] == "Accept-Encoding, Accept"
    assert int(answer.headers["content-length"]) < len(LONG.body) / 5
    assert answer.content == LONG.body  # the client has unpacked it


@pytest.mark.parametrize("name", ["short", "noise"])
def test_bytes_that_gain_nothing_are_not_compressed(client: TestClient, name: str) -> None:
    answer = client.get(f"/stored/{name}", headers=GZIP)
    assert "content-encoding" not in answer.headers
    assert "-gzip" not in answer.headers["etag"]
    assert answer.headers["vary"].startswith("Accept-Encoding")


@pytest.mark.parametrize(
    ("accepted", "compressed"),
    [
        ("gzip", True),
        ("gzip, deflate, br", True),
        ("*", True),
        ("x-gzip", True),
        ("GZIP;q=0.3", True),
        ("", False),
        ("br", False),
        ("gzip;q=0", False),
        ("*;q=0", False),
        ("identity, gzip;q=0.5", False),
    ],
)
def test_gzip_only_when_asked_for(client: TestClient, accepted: str, compressed: bool) -> None:
    answer = client.get("/stored/long", headers={"Accept-Encoding": accepted})
    assert ("content-encoding" in answer.headers) is compressed


@pytest.mark.parametrize("coding", [GZIP, PLAIN])
@pytest.mark.parametrize("form", ["{tag}", "W/{tag}", '"other", {tag}', 'W/"other" ,W/{tag}', "*"])
def test_a_known_representation_is_304(client: TestClient, coding: dict[str, str], form: str) -> None:
    tag = client.get("/stored/long", headers=coding).headers["etag"]
    answer = client.get("/stored/long", headers={**coding, "If-None-Match": form.format(tag=tag)})
    assert (answer.status_code, answer.content) == (304, b"")
    assert answer.headers["etag"] == tag
    assert answer.headers["cache-control"] == "public, max-age=60"
    assert answer.headers["vary"] == "Accept-Encoding, Accept"


def test_either_coding_of_the_same_bytes_is_known(client: TestClient) -> None:
    answer = client.get("/stored/long", headers={**GZIP, "If-None-Match": LONG.etag})
    assert (answer.status_code, answer.headers["etag"]) == (304, LONG.etag)


@pytest.mark.parametrize("known", ['"other"', "nonsense", "", 'W/"', '"a", "b"'])
def test_an_unknown_tag_gets_the_bytes(client: TestClient, known: str) -> None:
    assert client.get("/stored/long", headers={"If-None-Match": known}).status_code == 200


def test_head_has_the_headers_of_get(client: TestClient) -> None:
    for coding in (GZIP, PLAIN):
        get, head = (client.request(method, "/stored/long", headers=coding) for method in ("GET", "HEAD"))
        assert head.content == b""
        for name in ("etag", "content-length", "content-type", "cache-control", "vary"):
            assert head.headers[name] == get.headers[name]
    known = client.head("/stored/long", headers={"If-None-Match": LONG.etag})
    assert known.status_code == 304


def test_an_answer_made_for_the_request_has_them_too(client: TestClient) -> None:
    answer = client.get("/made", headers=GZIP)
    assert answer.headers["etag"] == LONG.gzip_etag
    assert (answer.headers["cache-control"], answer.headers["link"]) == ("no-cache", "</x>")


def test_compression_is_reproducible() -> None:
    again = Representation(LONG.body)
    assert again.zipped == LONG.zipped
    assert gzip.decompress(LONG.zipped or b"") == LONG.body
    assert Representation(b"a" * (WORTHWHILE - 1)).zipped is None


def test_tags_compare_whole() -> None:
    assert not matches('"ab"', '"abc"')
    assert not matches("abc", '"abc"')
