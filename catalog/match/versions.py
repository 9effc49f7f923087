"""Which version of a package a text is about, where several are known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from catalog.match.literals import EVERYTHING, Scope
from catalog.match.parts import Part
from catalog.scan.packages import normal

READ: Final = 1 << 20
"""Characters of a text in which its versions are looked for: servers print them when they start."""
_VERSION: Final = r"[^\n\d]{0,40}?(\d[\w+]{0,20}(?:\.[\w+]{1,20}){0,6})"
MOST: Final = 200
"""Places looked at per package."""


class Versions:
    """The parts of packages that are known in several versions."""

    def __init__(self, parts: Sequence[Part]) -> None:
        known: dict[str, dict[str, int]] = {}
        for number, part in enumerate(parts):
            if part.package:
                known.setdefault(part.package, {})[part.version] = number
        self._all = frozenset(range(len(parts)))
        self._several = {package: versions for package, versions in known.items() if len(versions) > 1}
        self._patterns = {
            package: re.compile(rf"\b{package.replace('-', '[-_]')}\b{_VERSION}", re.IGNORECASE)
            for package in self._several
        }

    def scope(self, text: str, packages: Mapping[str, str], repo: str | None) -> Scope:
        """The parts to look into: of each package the version that is said, all where none is or is known."""
        if not self._several:
            return EVERYTHING if repo is None else Scope(repo)
        left_out: set[int] = set()
        for package, versions in self._several.items():
            asked = (version for name, version in packages.items() if normal(name) == package)
            said = next(asked, None)
            names = [said] if said is not None else self._named(package, text)
            meant = next((known for name in names if (known := meaning(name, versions)) is not None), None)
            if meant is not None:
                left_out.update(number for version, number in versions.items() if version != meant)
        return Scope(repo, self._all - left_out if left_out else None)

    def _named(self, package: str, text: str) -> Iterator[str]:
        """The versions that stand behind a package's name; `-1.2.dist-info` is 1.2."""
        for match in islice(self._patterns[package].finditer(text, 0, READ), MOST):
            yield from (match[1], match[1].rpartition(".")[0])


def meaning(said: str, versions: Iterable[str]) -> str | None:
    """The version of some that is meant: the same, or the only one that differs by no more than its build."""
    said = said.strip().removeprefix("v")
    known = list(versions)
    if said in known:
        return said
    public = [version for version in known if version.partition("+")[0] == said.partition("+")[0]]
    return public[0] if len(public) == 1 else None
