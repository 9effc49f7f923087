"""Secrets and addresses are taken out of whatever is echoed from a pasted text."""

from __future__ import annotations

import re
from typing import Final

SHOWN: Final = 2000
"""Most characters of a message or value that are echoed."""

REDACTED: Final = "[redacted]"

_ISSUED: Final = r"hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|nvapi-|pypi-|A[KS]IA|AIza"
_ASSIGNMENT: Final = r"[\"']?\s{0,4}[:=]\s{0,4}[\"']?"
# What a text must hold (in lower case) for a pattern to be tried, and the pattern. Bounded repetitions and
# look-behinds: linear on any text.
_SECRETS: Final = tuple(
    (needles, re.compile(pattern, re.IGNORECASE))
    for needles, pattern in (
        (("://",), r"(?<=://)[^\s/@:]{1,128}:[^\s/@]{1,256}(?=@)"),
        (("@",), r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"),
        (
            ("hf_", "sk-", "gh", "glpat-", "xox", "nvapi-", "pypi-", "akia", "asia", "aiza"),
            rf"(?<![A-Za-z0-9])(?:{_ISSUED})[\w-]{{12,256}}",
        ),
        (("eyj",), r"(?<![\w-])eyJ[\w-]{8,2048}\.[\w-]{8,2048}\.[\w-]{0,1024}"),
        (("bearer ", "basic "), r"(?:(?<=bearer )|(?<=basic ))[\w.~+/=-]{6,512}"),
        (tuple(f".{digit}" for digit in range(10)), r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.]*\d)"),
        (
            tuple(f":{digit:x}" for digit in range(16)),
            r"(?<![\w:.])(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{1,4}(?![\w:])",
        ),
        (("::",), r"(?<![\w:.])(?:[0-9a-f]{1,4}:){1,6}(?::[0-9a-f]{1,4}){1,6}(?![\w:])"),
        (
            ("pass", "pwd", "secret", "credential"),
            r"(?:(?<=password)|(?<=passwd)|(?<=pwd)|(?<=secret)|(?<=credential)|(?<=credentials))"
            + _ASSIGNMENT
            + r"[^\s\"',;&)\]}]{4,512}",
        ),
        (
            ("token", "key"),
            # A count of tokens is no token.
            r"(?:(?<=token)|(?<=api_key)|(?<=api-key)|(?<=apikey)|(?<=access_key)|(?<=private_key))"
            + _ASSIGNMENT
            + r"(?!\d+\b|\[redacted)[^\s\"',;&)\]}]{4,512}",
        ),
    )
)
_ASSIGNED: Final = re.compile(_ASSIGNMENT)


# One search that finds any of the needles, for the common case that there is none.
_SUSPECT: Final = re.compile("|".join(re.escape(needle) for needles, _ in _SECRETS for needle in needles))


def _without(found: re.Match[str]) -> str:
    sign = _ASSIGNED.match(found[0])
    return f"{sign[0] if sign else ''}{REDACTED}"


def redact(text: str) -> str:
    """The text, cut to SHOWN characters, without secrets, e-mail addresses and IP addresses."""
    cut = text[: SHOWN + 256]
    lower = cut.lower()
    if _SUSPECT.search(lower) is None:
        return cut[:SHOWN]
    for needles, pattern in _SECRETS:
        if any(needle in lower for needle in needles):
            cut = pattern.sub(_without, cut)
    return cut[:SHOWN]
