"""Content negotiation: what the client can read, by RFC 9110 section 12.5.1."""

from __future__ import annotations

from functools import lru_cache

from starlette.requests import HTTPConnection


def preferred(connection: HTTPConnection, *offers: str) -> str | None:
    """The offer that `Accept` gives most weight; the first offer wins a tie and where the header is absent.

    None where the client accepts none of them. Offers are media types without parameters.
    """
    given = [value for name, value in connection.scope["headers"] if name == b"accept"]
    return _preferred(b", ".join(given).decode("latin-1"), offers)


@lru_cache(maxsize=512)
def _preferred(header: str, offers: tuple[str, ...]) -> str | None:
    if not header.strip():
        return offers[0]
    ranges = weights(header)
    best, weight = None, 0.0
    for offer in offers:
        kind = offer.partition("/")[0]
        # The most specific range decides, whatever its weight.
        found = next((ranges[name] for name in (offer, f"{kind}/*", "*/*") if name in ranges), 0.0)
        if found > weight:
            best, weight = offer, found
    return best


def weights(header: str) -> dict[str, float]:
    """`"gzip;q=0.5, br"` as `{"gzip": 0.5, "br": 1.0}`; a weight that is no number counts as 0."""
    found: dict[str, float] = {}
    for item in header.split(","):
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        if not name:
            continue
        weight = 1.0
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip() == "q":
                weight = _weight(value.strip())
        found[name] = max(weight, found.get(name, 0.0))
    return found


def _weight(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if 0.0 <= number <= 1.0 else 0.0
