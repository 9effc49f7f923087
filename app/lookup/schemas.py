"""What may be asked of the matcher, and its answers as OpenAPI shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.lookup.service import MATCH_LIMIT

RepoName = Annotated[str, Field(max_length=500)]


class MatchRequest(BaseModel):
    """A pasted text: a line, a traceback or a whole log."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: Annotated[str, Field(min_length=1)]
    repo: RepoName | None = Field(None, description="only records of this repository")
    packages: Annotated[dict[str, str], Field(max_length=500)] = Field(
        default_factory=dict, description="installed packages and their versions"
    )
    limit: Annotated[int, Field(ge=1, le=100, description="most matches to answer")] = MATCH_LIMIT


class Captured(BaseModel):
    """What one hole of the message printed."""

    name: str = Field(description="upstream's expression")
    value: str
    kind: Literal["dtype", "shape", "int", "float", "bool", "device", "path", "name", "text"]


class RaiseSite(BaseModel):
    """Where the package raises it."""

    path: str
    function: str | None
    lines: list[int] = Field(description="its line in each version that is known")
    exception: str


class Span(BaseModel):
    """Characters of the text as it was sent."""

    start: int
    end: int


class Found(BaseModel):
    """A record that a search found."""

    id: str
    repo: str
    slug: str
    code: str | None
    message: str
    errorClass: str
    score: float
    matchType: Literal["exact-code", "pattern", "fuzzy"]
    url: str
    captures: list[Captured]
    site: RaiseSite | None
    siblings: list[str]


class SearchAnswer(BaseModel):
    """The best records first."""

    matches: list[Found]
    datasetVersion: str


class Occurring(BaseModel):
    """How often the same error is in the text, and where it comes from."""

    count: int
    ranks: list[int | str] = Field(description="numbers, or the tags of several dimensions")
    hosts: list[str] = Field(description="as the text calls them; addresses are numbered")
    firstSeen: str | None = Field(description="the earliest time stamp it carries, as printed")
    file: str | None = Field(description="the log that line and span are of, where there are several")
    files: list[str]


class Matched(Occurring):
    """A record found in the text; score ≥ 0.8 is a match, ≥ 0.5 possible, below similar."""

    id: str
    repo: str
    slug: str
    errorMessage: str
    errorClass: str
    severity: str
    url: str
    matchType: Literal["exact-code", "pattern", "site", "fuzzy"]
    score: float
    line: int
    span: Span
    rendered: str = Field(
        description="the message with the values found, secrets redacted; empty where it is only similar"
    )
    captures: list[Captured]
    site: RaiseSite | None
    siblings: list[str] = Field(description="other records with the same text")
    versions: list[str]
    role: Literal["root-cause", "wrapper", "secondary"]
    evidence: list[str]
    operation: str | None
    spec: dict[str, Any] | None = Field(description="a diagnosis request that raises it")


class Explained(BaseModel):
    """What a text of CUDA, NCCL, a compiler or a launcher is that no record is of."""

    name: str
    meaning: str
    advice: str


class UnknownException(Occurring):
    """An exception in the text that belongs to no record, or a line without one that is known."""

    line: int
    exception: str | None
    message: str
    role: Literal["root-cause", "wrapper", "secondary"]
    known: Explained | None


class MatchAnswer(BaseModel):
    """What is in the text."""

    hasMatch: bool
    rootCause: int | None = Field(description="index into matches")
    notice: str | None = Field(description="what to do when nothing here is a cause")
    matches: list[Matched]
    unmatched: list[UnknownException]
    truncated: bool
    datasetVersion: str


class Repository(BaseModel):
    """A repository with records."""

    repo: str
    description: str
    errorCount: int
    package: str
    packageVersion: str


class ReposAnswer(BaseModel):
    """Every repository that has records."""

    repos: list[Repository]
    datasetVersion: str
