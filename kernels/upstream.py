"""Where upstream raises: package, file, function and line, at the commit the catalog is pinned to and in
a release.
"""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN = "0" * 40
"""Commit of a package whose lines are known from its release alone."""


@dataclass(frozen=True, slots=True)
class Package:
    """A published package whose messages are catalogued; `commit` is the one that lines and links refer
    to, or UNKNOWN.
    """

    name: str
    repo: str
    commit: str
    version: str
    description: str


SGLANG = Package(
    name="sglang",
    repo="sgl-project/sglang",
    commit="0132848349585cfe6aae51c4941cbae872505f8a",
    version="0.5.23",
    description="Serving engine for large language and diffusion models",
)

SAFETENSORS = Package(
    name="safetensors",
    repo="huggingface/safetensors",
    commit=UNKNOWN,
    version="0.8.0",
    description="Reader and writer of the safetensors format",
)

PACKAGES = (SAFETENSORS, SGLANG)


@dataclass(frozen=True, slots=True)
class File:
    """One of a package's files; `length` is its number of lines at the commit, where known."""

    package: Package
    path: str
    length: int | None = None

    def at(
        self, function: str, pinned: int | None, released: int | None = None, *, expression: str = ""
    ) -> Site:
        """A raise site of this file."""
        return Site(self, function, pinned, released, expression)


@dataclass(frozen=True, slots=True)
class Site:
    """One statement that raises.

    pinned      its line at the package's commit, None where that commit does not have it
    released    its line in the package's release
    expression  its source expression, for a statement without a text of its own
    """

    file: File
    function: str
    pinned: int | None
    released: int | None = None
    expression: str = ""

    @property
    def lines(self) -> tuple[int, ...]:
        """All lines this site is known at."""
        return tuple(dict.fromkeys(line for line in (self.pinned, self.released) if line is not None))

    @property
    def url(self) -> str | None:
        """The lines around the site on the package's public repository, 18 each way, as the dataset links
        them.
        """
        if self.pinned is None:
            return None
        package = self.file.package
        last = self.pinned + 18 if self.file.length is None else min(self.pinned + 18, self.file.length)
        return (
            f"https://github.com/{package.repo}/blob/{package.commit}/{self.file.path}"
            f"#L{max(1, self.pinned - 18)}-L{last}"
        )
