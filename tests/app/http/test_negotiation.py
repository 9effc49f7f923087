from __future__ import annotations

import pytest
from starlette.requests import HTTPConnection

from app.http.negotiation import preferred, weights

OFFERS = ("application/json", "text/html", "text/markdown")


def connection(*accept: str) -> HTTPConnection:
    return HTTPConnection({"type": "http", "headers": [(b"accept", value.encode()) for value in accept]})


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ((), "application/json"),
        (("",), "application/json"),
        (("*/*",), "application/json"),
        (("text/html,application/xhtml+xml,*/*;q=0.8",), "text/html"),
        (("text/markdown",), "text/markdown"),
        (("text/*",), "text/html"),
        (("text/*;q=0.4, text/markdown;q=0.5",), "text/markdown"),
        (("application/json;q=0.2, text/html;q=0.2",), "application/json"),
        (("*/*, application/json;q=0",), "text/html"),
        (("TEXT/Markdown; charset=utf-8; Q=0.9",), "text/markdown"),
        (("image/png",), None),
        (("text/html;q=nonsense",), None),
        (("text/html;q=-1",), None),
        (("text/html;q=nan",), None),
        (("image/png", "text/html"), "text/html"),
        ((";;;,,=,q=1",), None),
    ],
)
def test_the_offer_with_most_weight_wins(accept: tuple[str, ...], chosen: str | None) -> None:
    assert preferred(connection(*accept), *OFFERS) == chosen


def test_weights_reads_a_list_of_codings() -> None:
    assert weights("gzip;q=0.5, br, *;q=0") == {"gzip": 0.5, "br": 1.0, "*": 0.0}
