"""API keys: made here, kept as digests, given by FAULTBOOK_API_KEYS or a file.

An entry is `NAME:SCOPES:sha256-DIGEST` or `NAME:SCOPES:sha256-DIGEST:GPU_SECONDS`, scopes joined by `+`:

    ci:read+diagnose:sha256-9f86d081…:3600

A key is 32 random bytes, so one SHA-256 keeps it: no list of likely keys exists that a slower digest would
hold up.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from time import monotonic

from app.access.caller import Caller, Scope

PREFIX = "fbk_"
"""What a key begins with, so that scanners of repositories know one."""

RECHECK = 1.0
"""Seconds for which a file of keys is not looked at again."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"sha256-([0-9a-f]{64})")

log = logging.getLogger("faultbook.access")


class BadKeys(ValueError):
    """An entry that is none; the message names the entry's place and name, never what may be a key."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One key as it is kept."""

    digest: str
    caller: Caller

    def __str__(self) -> str:
        scopes = "+".join(sorted(self.caller.scopes - _implied(self.caller.scopes)))
        quota = "" if self.caller.gpu_seconds is None else f":{self.caller.gpu_seconds:g}"
        return f"{self.caller.name}:{scopes}:sha256-{self.digest}{quota}"


def new_key() -> str:
    """A fresh key: `fbk_` and 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(key: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def entry(name: str, scopes: str, digest: str, gpu_seconds: str | None = None) -> Entry:
    """One entry from its parts, as they are written; BadKeys says what is wrong."""
    if not _NAME.fullmatch(name):
        raise BadKeys("a name has 1 to 64 letters, digits, dots, dashes or underscores")
    named = [part.strip() for part in scopes.split("+")]
    unknown = [part for part in named if part not in tuple(Scope)]
    if unknown:
        raise BadKeys(f"{name}: the scopes are {', '.join(Scope)}, joined by +")
    found = _DIGEST.fullmatch(digest)
    if found is None:
        raise BadKeys(f"{name}: no key stands here but its digest: `faultbook keys` makes both")
    granted = {Scope(part) for part in named}
    return Entry(found[1], Caller(name, frozenset(granted | _implied(granted)), _seconds(name, gpu_seconds)))


def _implied(scopes: Iterable[Scope]) -> frozenset[Scope]:
    return frozenset({Scope.READ, Scope.DIAGNOSE}) if Scope.ADMIN in scopes else frozenset()


def _seconds(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not isfinite(seconds) or seconds < 0:
        raise BadKeys(f"{name}: GPU seconds a day are a number from 0 on")
    return seconds


def parse(text: str) -> Iterator[Entry]:
    """Entries separated by commas, blanks or lines; what follows a # in a line is a comment."""
    written = [item for line in text.splitlines() for item in re.split(r"[,\s]+", line.partition("#")[0])]
    for place, item in enumerate(filter(None, written), start=1):
        parts = item.split(":")
        if len(parts) not in (3, 4):
            raise BadKeys(f"entry {place} is not NAME:SCOPES:sha256-DIGEST or that with :GPU_SECONDS")
        yield entry(*parts)


def index(entries: Iterable[Entry]) -> dict[str, Caller]:
    """Callers by their keys' digests; BadKeys where two entries share a key or differ under one name."""
    found: dict[str, Caller] = {}
    names: dict[str, Caller] = {}
    for item in entries:
        if item.digest in found:
            raise BadKeys(f"{item.caller.name}: this key has an entry already")
        # Two keys of one name are how a key is replaced: the same caller for as long as both are valid.
        if names.setdefault(item.caller.name, item.caller) != item.caller:
            raise BadKeys(f"{item.caller.name}: two entries of one name differ in scopes or GPU seconds")
        found[item.digest] = item.caller
    return found


@dataclass
class Keyring:
    """The keys of a service: a variable's, and those of a file, which is read again when it changes."""

    text: str = ""
    file: Path | None = None
    _callers: dict[str, Caller] = field(default_factory=dict)
    _stamp: tuple[int, int] | None = None
    _looked: float = float("-inf")

    def __post_init__(self) -> None:
        """Read all; BadKeys, or OSError where the file cannot be read."""
        self._callers = self._read()
        self._looked = monotonic()

    def __bool__(self) -> bool:
        """Whether the service asks for keys: also while its file holds none."""
        return bool(self.text.strip()) or self.file is not None

    def __len__(self) -> int:
        """How many keys there are."""
        return len(self._callers)

    def find(self, key: str) -> Caller | None:
        """Whose key it is."""
        if self.file is not None and monotonic() - self._looked > RECHECK:
            self._refresh(self.file)
        return self._callers.get(digest_of(key))

    def named(self, name: str) -> Caller | None:
        """Whoever has the key of this name now: a job may outlive its key. Nobody's name, and any where the
        service has no keys, has no limits.
        """
        if not name or not self:
            return Caller(name)
        if self.file is not None and monotonic() - self._looked > RECHECK:
            self._refresh(self.file)
        return next((caller for caller in self._callers.values() if caller.name == name), None)

    def _refresh(self, file: Path) -> None:
        """Take the file's new content; a file that cannot be read or is wrong leaves the keys as they are."""
        self._looked = monotonic()
        try:
            if _stamp(file) != self._stamp:
                self._callers = self._read()
                log.info("the file of keys has changed: %d keys", len(self._callers))
        except (BadKeys, OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            log.error("the file of keys was not read, the former keys stay: %s", reason)

    def _read(self) -> dict[str, Caller]:
        entries = list(parse(self.text))
        if self.file is not None:
            self._stamp = _stamp(self.file)
            entries += parse(self.file.read_text("utf-8"))
        return index(entries)


def _stamp(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_mtime_ns, found.st_size
