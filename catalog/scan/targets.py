"""What is to be scanned, and its files; nothing of it is ever imported or run.

A folder, a wheel or source archive, an installed package by its name, or a requirement whose wheel is
fetched with pip, without its dependencies.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from catalog.scan.archives import archived
from catalog.scan.folders import archives_in, digest, stated, walked
from catalog.scan.listing import (
    SUFFIXES,
    Found,
    Listed,
    Listing,
    NoTarget,
    TargetError,
    as_installed,
    listing,
)
from catalog.scan.model import Unreadable
from catalog.scan.packages import VERSION, Upstream, fork_of, is_known, normal, upstream_of
from catalog.scan.source import printable

FETCH_SECONDS: Final = 1800

_REQUIREMENT: Final = re.compile(
    r"[A-Za-z0-9][\w.-]{0,99}(?:\[[\w,. -]{1,200}\])?\s{0,9}"
    r"(?:(?:===?|~=|!=|[<>]=?)\s{0,9}[\w.*+!-]{1,99}(?:\s{0,9},\s{0,9})?){0,9}"
)
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,98}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Target:
    """A package to scan. `version` of a folder that states none is a digest of its files' names and sizes."""

    name: str
    version: str
    upstream: Upstream
    summary: str
    files: tuple[Listed, ...]
    unreadable: tuple[Unreadable, ...] = ()


@contextmanager
def resolved(text: str, upstream: str | None = None) -> Iterator[Target]:
    """The target that a word of the command line names; what is fetched is removed in the end."""
    try:
        repository = fork_of(upstream) if upstream is not None else None
    except ValueError as error:
        raise NoTarget(str(error)) from None
    shown = printable(text)[:100]
    if not text.strip() or "\x00" in text:
        raise NoTarget(f"{shown!r} names nothing; the folder that one is in is called `.`")
    path = Path(text)
    if path.is_dir():
        yield _folder(path.resolve(), repository)
    elif path.is_file():
        yield _archive(path, repository)
    elif "/" in text or text.endswith((".whl", ".gz", ".zip")):
        raise NoTarget(f"{shown}: there is no such file or folder")
    elif not _REQUIREMENT.fullmatch(text):
        raise NoTarget(f"{shown!r} is neither a file, a folder, a package nor a requirement")
    elif (installed := _installed(text)) is not None:
        yield _distribution(installed, repository)
    else:
        with tempfile.TemporaryDirectory(prefix="faultbook-") as folder:
            yield _archive(_fetched(text, Path(folder)), repository)


def _installed(text: str) -> Distribution | None:
    try:
        return distribution(text)
    except (PackageNotFoundError, ValueError):
        return None


def _fetched(requirement: str, folder: Path) -> Path:
    """The wheel of a requirement. Source archives are not asked for: pip would run their build."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-input", "--disable-pip-version-check", "--quiet", "--dest", str(folder)]
    try:
        done = subprocess.run(
            [*command, "--", requirement],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=FETCH_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise TargetError(f"{requirement}: pip took longer than {FETCH_SECONDS} s") from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = (done.stderr or done.stdout).strip().splitlines()
        why = printable(said[-1])[:300] if said else "pip brought no wheel"
        if "No matching distribution" in why:
            why += "; of a package without wheels, name its downloaded source archive"
        raise TargetError(f"{requirement}: {why}")
    return wheels[0]


def _distribution(found: Distribution, repository: Upstream | None) -> Target:
    if (folder := _edited(found)) is not None:
        name, version, summary, addresses = _described(found.metadata, "the installed package")
        upstream = repository or upstream_of(name, addresses)
        files = listing(upstream, _laid_out(upstream, walked(folder)))
        return _target(name, version, upstream, summary, files, "no Python or C++ sources in its folder")
    try:
        name, version, summary, addresses = _described(found.metadata, "the installed package")
        there = [file for file in found.files or () if file.suffix in SUFFIXES and ".." not in file.parts]
    except (ValueError, OSError) as error:
        raise TargetError(f"the installed package's metadata cannot be read ({error})"[:300]) from None
    upstream = repository or upstream_of(name, addresses)
    files = listing(upstream, ((file.as_posix(), Path(str(file.locate()))) for file in there))
    where = "in another folder? name that" if found.files else "no list of its files"
    return _target(name, version, upstream, summary, files, f"no sources are installed ({where})")


def _edited(found: Distribution) -> Path | None:
    """The folder of an editable install, which what is installed only points to."""
    try:
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        if origin["dir_info"]["editable"] is not True:
            return None
        folder = Path(unquote(urlsplit(origin["url"]).path))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return folder if folder.is_dir() else None


def _folder(path: Path, repository: Upstream | None) -> Target:
    name, version = stated(path)
    upstream = repository or upstream_of(name)
    files = listing(upstream, _laid_out(upstream, walked(path)))
    version = version or digest(
        (item.path, item.content) for item in files.files if isinstance(item.content, Path)
    )
    empty = "no Python or C++ sources in it"
    if not files.files and (inside := archives_in(path)):
        empty += f"; name the archives in it: {', '.join(map(printable, inside))}"
    return _target(name, version, upstream, "", files, empty)


def _archive(path: Path, repository: Upstream | None) -> Target:
    sources, metadata, wheel = archived(path)
    name, version, summary, addresses = _described(metadata, path.name)
    upstream = repository or upstream_of(name, addresses)
    files = listing(upstream, sources) if wheel else listing(None, _laid_out(upstream, sources))
    return _target(name, version, upstream, summary, files, "no Python or C++ sources in it")


def _laid_out(upstream: Upstream, found: Iterable[Found]) -> Iterable[Found]:
    """A source tree's files at their paths in the repository where those are known, else as installed."""
    return found if is_known(upstream) else as_installed(found)


def _target(name: str, version: str, upstream: Upstream, summary: str, files: Listing, empty: str) -> Target:
    if not files.files:
        reason = f"; {files.unreadable[0].path}: {files.unreadable[0].reason}" if files.unreadable else ""
        raise TargetError(f"{name} {version}: {empty}{reason}")
    return Target(name, version, upstream, summary, files.files, files.unreadable)


def _described(metadata: Message | Any, where: str) -> tuple[str, str, str, list[str]]:
    """Name, version, summary and addresses of a package's own metadata; TargetError without the first two."""
    name, version = normal(str(metadata["Name"] or "")), str(metadata["Version"] or "").strip()
    if _NAME.fullmatch(name) is None or VERSION.fullmatch(version) is None:
        shown = printable(f"{name} {version}")[:100]
        raise TargetError(f"{where}: its metadata states no usable name and version ({shown!r})")
    headers = [*(metadata.get_all("Project-URL") or ()), *(metadata.get_all("Home-page") or ())]
    # Each is `Label, https://…` or `https://…`.
    addresses = [str(value)[:500].rpartition(" ")[2] for value in headers[:50]]
    return name, version, printable(str(metadata["Summary"] or ""))[:500], addresses
