"""Who gets through, who is asked for a key, and who has to wait."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, Request
from fastapi.routing import iter_route_contexts
from starlette.testclient import TestClient

from app.access.caller import Scope, caller_of
from app.access.gate import needed
from app.access.keys import digest_of, new_key
from app.main import create_app
from app.settings import Settings

KEYS = {scope: new_key() for scope in ("read", "diagnose", "admin")}
ENTRIES = ",".join(f"{scope}-key:{scope}:sha256-{digest_of(key)}" for scope, key in KEYS.items())


def bearer(scope: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[scope]}"}


def service(**settings: Any) -> TestClient:
    router = APIRouter()

    async def who(request: Request) -> dict[str, str]:
        return {"caller": caller_of(request).name}

    for method, path in (
        ("GET", "/api/errors"),
        ("POST", "/api/match"),
        ("POST", "/api/diagnose"),
        ("DELETE", "/api/diagnoses/{id}"),
        ("POST", "/api/errors/{id}/reproduce"),
        ("GET", "/operations"),
        ("POST", "/operations/{name}"),
    ):
        router.add_api_route(path, who, methods=[method])
    return TestClient(create_app(Settings(**settings), routers=[router]))


@pytest.fixture
def client() -> TestClient:
    return service(api_keys=ENTRIES)


def test_without_keys_everybody_may_do_everything() -> None:
    client = service()
    assert client.post("/api/diagnose").json() == {"caller": ""}
    assert client.get("/metrics").status_code == 200
    assert client.get("/api/errors", headers={"Authorization": "Bearer whatever"}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/api/errors", "read"),
        ("POST", "/api/match", "read"),
        ("GET", "/operations", "read"),
        ("POST", "/api/diagnose", "diagnose"),
        ("POST", "/operations/x", "diagnose"),
        ("POST", "/api/errors/0123456789abcdef/reproduce", "diagnose"),
        ("DELETE", "/api/diagnoses/x", "diagnose"),
        ("GET", "/metrics", "admin"),
    ],
)
def test_a_request_needs_its_scope(client: TestClient, method: str, path: str, scope: str) -> None:
    order = ["read", "diagnose", "admin"]
    without = client.request(method, path)
    assert without.status_code == 401
    assert without.headers["www-authenticate"].startswith('Bearer realm="faultbook"')
    for held in order:
        answer = client.request(method, path, headers=bearer(held))
        if order.index(held) >= order.index(scope):
            assert answer.status_code == 200
            if path != "/metrics":
                assert answer.json() == {"caller": f"{held}-key"}
        else:
            assert answer.status_code == 403
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["type"] == "/about/problems/forbidden"
            assert f"scope {scope}" in answer.json()["detail"]


@pytest.mark.parametrize(
    "path", ["/healthz", "/readyz", "/openapi.json", "/docs", "/about/problems/unauthorized", "/robots.txt"]
)
def test_what_is_the_same_everywhere_needs_no_key(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 200


def test_a_path_is_not_opened_by_how_it_begins(client: TestClient) -> None:
    for path in ("/healthz/x", "/docsx", "/api/errors/../healthz", "/robots.txt/api"):
        assert client.get(path).status_code in (401, 404), path
        assert needed("GET", path) is Scope.READ


@pytest.mark.parametrize("end", ["%0A", "%0a%0a", "%0D", "%00", "%7F", "%1b[2J"])
def test_a_line_feed_behind_an_address_opens_nothing(client: TestClient, end: str) -> None:
    """A pattern's `$` matches before it, so `/metrics` was reached without being recognised."""
    for caller in ({}, bearer("read"), bearer("admin")):
        for method, path in (("GET", "/metrics"), ("POST", "/api/diagnose"), ("GET", "/healthz")):
            assert client.request(method, path + end, headers=caller).status_code == 404, path


def test_what_acts_needs_the_scope_unless_it_is_known_to_look_up() -> None:
    for path in (
        "/api/diagnose",
        "/api/diagnose/",
        "/api//diagnose",
        "/API/diagnose",
        "/api/new",
        "/metrics/x",
    ):
        for method in ("POST", "PUT", "PATCH", "DELETE", "QUERY"):
            assert needed(method, path) is Scope.DIAGNOSE
    for path in ("/", "/api/match", "/mcp"):
        assert needed("POST", path) is Scope.READ


def test_an_unknown_key_is_told_apart_from_none(client: TestClient) -> None:
    answer = client.get("/api/errors", headers={"Authorization": f"Bearer {new_key()}"})
    assert answer.status_code == 401
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert "Basic" not in answer.headers["www-authenticate"]


@pytest.mark.parametrize(
    "value",
    ["", "Bearer", "Bearer ", "bearer a b", "Digest x", KEYS["admin"], "Basic ???", "Basic w6k="],
    ids=["empty", "scheme", "blank", "two words", "digest", "no scheme", "no base64", "no colon"],
)
def test_what_is_no_key_is_refused(client: TestClient, value: str) -> None:
    answer = client.get("/api/errors", headers={"Authorization": value})
    assert (answer.status_code, answer.json()["status"]) == (401, 401)


def test_two_keys_are_none(client: TestClient) -> None:
    both = [("Authorization", f"Bearer {KEYS['admin']}"), ("Authorization", f"Bearer {KEYS['read']}")]
    assert client.get("/api/errors", headers=both).status_code == 401  # type: ignore[arg-type]


def test_a_browser_may_ask_for_the_key_as_a_password(client: TestClient) -> None:
    asked = client.get("/operations", headers={"Accept": "text/html"})
    assert asked.status_code == 401
    assert "Basic" in asked.headers["www-authenticate"]
    given = base64.b64encode(f"me:{KEYS['diagnose']}".encode()).decode()
    told = {"Authorization": f"Basic {given}"}
    assert client.get("/operations", headers=told).status_code == 200
    assert client.post("/operations/x", headers={**told, "Sec-Fetch-Site": "same-origin"}).status_code == 200
    foreign = client.post("/operations/x", headers={**told, "Sec-Fetch-Site": "cross-site"})
    assert foreign.status_code == 403


def test_reading_can_be_left_open() -> None:
    client = service(api_keys=ENTRIES, anonymous="read")
    assert client.get("/api/errors").json() == {"caller": ""}
    assert client.post("/api/diagnose").status_code == 401
    # A key that is wrong is never taken for none.
    assert client.get("/api/errors", headers={"Authorization": "Bearer x"}).status_code == 401


def test_keys_count_below_a_prefix() -> None:
    client = service(api_keys=ENTRIES, root_path="/faultbook")
    for path in ("/faultbook/api/diagnose", "/api/diagnose"):
        assert client.post(path, headers=bearer("read")).status_code == 403
        assert client.post(path, headers=bearer("diagnose")).status_code == 200
    assert client.get("/faultbook/healthz").status_code == 200


def test_a_key_in_a_file_is_valid_until_it_is_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.access.keys.RECHECK", 0.0)
    file = tmp_path / "keys"
    file.write_text(f"# the team's\n{ENTRIES}\n", "utf-8")
    client = service(api_keys_file=str(file))
    assert client.get("/api/errors", headers=bearer("read")).status_code == 200
    file.write_text("not an entry\n", "utf-8")
    assert client.get("/api/errors", headers=bearer("read")).status_code == 200
    file.write_text("", "utf-8")
    assert client.get("/api/errors", headers=bearer("read")).status_code == 401
    assert client.get("/api/errors").status_code == 401


def test_a_rate_is_counted_by_key_and_by_address() -> None:
    client = service(api_keys=ENTRIES, rate_limit="3/hour", anonymous="read")
    for headers in (bearer("read"), bearer("admin"), {}):
        codes = [client.get("/api/errors", headers=headers).status_code for _ in range(4)]
        assert codes == [200, 200, 200, 429]
    refused = client.get("/api/errors")
    assert refused.json()["type"] == "/about/problems/too-many-requests"
    assert 1 <= int(refused.headers["retry-after"]) <= 1200
    assert client.get("/healthz").status_code == 200
    # Guessing keys is counted too.
    assert client.get("/api/errors", headers={"Authorization": "Bearer x"}).status_code == 429


def test_without_keys_addresses_have_a_rate() -> None:
    client = service(rate_limit="2/minute")
    assert [client.get("/api/errors").status_code for _ in range(3)] == [200, 200, 429]


def test_header_fields_have_a_limit() -> None:
    client = service(max_header_bytes=2048)
    answer = client.get("/api/errors", headers={"X-Long": "x" * 2048})
    assert answer.status_code == 431
    assert answer.json()["type"] == "/about/problems/headers-too-large"
    assert client.get("/api/errors", headers={"X-Long": "x" * 1024}).status_code == 200


def test_neither_a_key_nor_its_entry_reaches_the_log(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"):
        client.get("/api/errors", headers=bearer("read"))
        client.get("/api/errors", headers={"Authorization": "Bearer fbk_secret"})
    for text in (KEYS["read"], digest_of(KEYS["read"]), "fbk_secret"):
        assert text not in caplog.text


Ask = Callable[..., Any]


def test_an_address_that_looks_like_a_key_is_none(ask: Ask) -> None:
    app = create_app(Settings(api_keys=ENTRIES, rate_limit="1/hour"), routers=[])
    client = TestClient(app, client=("read-key", 1))
    assert client.get("/api/x").status_code == 401
    assert client.get("/api/x", headers=bearer("read")).status_code == 404


def test_no_shared_cache_keeps_what_a_key_has_opened(tmp_path: Path) -> None:
    path = "/api/errors/402df144293dfbb6"
    with TestClient(
        create_app(Settings(workers=0, data=tmp_path, api_keys=ENTRIES, anonymous="read"))
    ) as client:
        for _ in range(2):
            assert client.get(path, headers=bearer("read")).headers["cache-control"] == "private, max-age=60"
            assert client.get(path).headers["cache-control"] == "public, max-age=60"


STRANGE = [
    "",
    "/",
    "//",
    "\n",
    "\r",
    "\x00",
    "\x85",
    "\u2028",
    " ",
    ".",
    "..",
    ";a",
    "%",
    "\\",
    "?",
    "#",
    "é",
    "\ufeff",
]
ORDER = [None, Scope.READ, Scope.DIAGNOSE, Scope.ADMIN]


def test_no_spelling_of_an_address_opens_more_than_the_address() -> None:
    """Whatever the router takes for a route of ours, the gate asks for that route's scope, or refuses it."""
    tried = 0
    for route in iter_route_contexts(create_app(Settings(workers=0)).routes):
        template = str(getattr(route, "path_format", ""))
        pattern = getattr(route, "path_regex", None)
        plain = re.sub(r"\{[^}]*\}", "x", template)
        spellings = {plain.upper(), plain.title(), f"/{plain}"}
        for at in range(len(plain) + 1):
            spellings |= {plain[:at] + strange + plain[at:] for strange in STRANGE}
        for spelling in spellings:
            if pattern is None or not pattern.match(spelling):
                continue
            tried += 1
            for method in route.methods or {"GET", "POST", "DELETE"}:
                asked, wanted = needed(method, spelling), needed(method, plain)
                assert ORDER.index(asked) >= ORDER.index(wanted) or refused(spelling), (method, spelling)
    assert tried > 100


def refused(path: str) -> bool:
    return any(ord(letter) < 32 or ord(letter) == 127 for letter in path)


@pytest.mark.parametrize(
    ("origin", "settings", "code"),
    [
        ("http://rebound.example:8000", {}, 403),
        ("null", {}, 403),
        ("http://[", {}, 403),
        ("http://127.0.0.1.rebound.example", {}, 403),
        ("http://127.0.0.1:8000", {}, 200),
        ("http://LOCALHOST:9000", {}, 200),
        ("http://[::1]:8000", {}, 200),
        (None, {}, 200),
        ("https://faults.example.org", {"public_url": "https://faults.example.org/faultbook"}, 200),
        ("http://anybody.example", {"host": "0.0.0.0"}, 200),
        ("http://anybody.example", {"api_keys": ENTRIES}, 200),
    ],
)
def test_a_page_whose_name_leads_to_loopback_does_not_act(
    origin: str | None, settings: dict[str, Any], code: int
) -> None:
    """Nobody's key is needed there, and to a browser such a page is the service's own."""
    headers = {**bearer("diagnose"), **({"Origin": origin} if origin else {})}
    client = service(**settings)
    assert client.post("/api/diagnose", headers=headers).status_code == code
    assert client.delete("/api/diagnoses/x", headers=headers).status_code == code
    assert client.post("/api/match", headers=headers).status_code == 200
