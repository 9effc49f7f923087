from __future__ import annotations

from xml.etree import ElementTree

from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from catalog.store import load_catalog
from kernels.registry import operations

NAMESPACE = "{http://www.sitemaps.org/schemas/sitemap/0.9}"


def addresses(text: str) -> list[str]:
    return [place.text or "" for place in ElementTree.fromstring(text).iter(f"{NAMESPACE}loc")]


def test_it_lists_every_record_and_operation_by_addresses_that_answer(service: TestClient) -> None:
    answer = service.get("/sitemap.xml")
    assert answer.headers["content-type"] == "application/xml"
    listed = addresses(answer.text)
    assert len(listed) == len(set(listed)) == 2 + len(operations()) + len(load_catalog().records)
    for path in listed:
        assert service.get(path).status_code == 200, path


def test_addresses_are_whole_where_the_public_one_is_known_and_never_the_host_headers() -> None:
    for public, start in (("https://faults.example", "https://faults.example/"), ("", "/")):
        client = TestClient(create_app(Settings(workers=0, public_url=public)))
        listed = addresses(client.get("/sitemap.xml", headers={"Host": "evil.example"}).text)
        assert all(address.startswith(start) for address in listed)
        assert not any("evil" in address for address in listed)
