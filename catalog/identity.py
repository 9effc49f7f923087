"""Ids and slugs, by the rules of the public dataset, so that ours are the same."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Final

SEPARATOR: Final = "\x01"
SLUG_SOURCE: Final = 50
"""Characters of the code or message that a slug is made of."""


def record_id(repo: str, error_code: str | None, error_message: str, file_path: str) -> str:
    """First 16 hex digits of SHA-256 over repository, code (else message) and path. Never changes."""
    parts = (repo, error_message if error_code is None else error_code, file_path)
    return hashlib.sha256(SEPARATOR.join(parts).encode()).hexdigest()[:16]


def slug(text: str, error_class: str) -> str:
    """Readable name of a code or message: lower case, every run of other characters a dash."""
    return re.sub(r"[^a-z0-9]+", "-", text[:SLUG_SOURCE].lower()).strip("-") or error_class


def distinct(slugs: Iterable[str]) -> Iterator[str]:
    """The slugs of one repository, in path order, repeats numbered -2, -3, …"""
    seen: dict[str, int] = {}
    taken: set[str] = set()
    for base in slugs:
        count = seen.get(base, 0) + 1
        while (name := base if count == 1 else f"{base}-{count}") in taken:
            count += 1
        seen[base] = count
        taken.add(name)
        yield name
