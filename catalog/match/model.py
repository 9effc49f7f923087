"""What goes into the matcher and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from catalog.match.stamps import Stamp
from catalog.template import Template

MATCH: Final = 0.8
"""A score from which a candidate counts as found."""
POSSIBLE: Final = 0.5
"""A score from which a candidate is worth a look; below it is only similar."""


def kind_of(score: float) -> Literal["match", "possible", "similar"]:
    """What a score is called."""
    return "match" if score >= MATCH else "possible" if score >= POSSIBLE else "similar"


Role = Literal["root-cause", "wrapper", "secondary"]
MatchType = Literal["exact-code", "pattern", "site", "fuzzy"]


@dataclass(frozen=True, slots=True)
class Site:
    """One raise site: `path` in its repository and the `lines` it had in the versions that are known."""

    path: str
    function: str | None
    lines: tuple[int, ...]
    exception: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One record to be found.

    `message` is upstream's template; with `launcher` the compiled launcher prints `Failed at {file}:{line}:
    ` (or its two-line form) before it; with `textless` it is a source expression, found by its site only.
    `hole_kinds` has one of `catalog.template.KINDS` per hole. A `logged` record is a line of a log, a
    `quiet` one below error level: true, and no match; a `hint` is what another library says about this and
    other things: possible, and no match. `versions` are those of a scanned package that raise
    it; `cut` is the template where parsing the message again would not do."""

    record_id: str
    repo: str
    message: str
    code: str | None
    sites: tuple[Site, ...]
    curated: bool
    hole_kinds: tuple[str, ...]
    launcher: bool = False
    textless: bool = False
    quiet: bool = False
    logged: bool = False
    hint: bool = False
    versions: tuple[str, ...] = ()
    cut: Template | None = None

    def __post_init__(self) -> None:
        if not self.textless and len(self.hole_kinds) != len(self.template.holes):
            raise ValueError(f"record {self.record_id}: {len(self.hole_kinds)} kinds for {self.message!r}")

    @property
    def template(self) -> Template:
        """The message cut at its holes."""
        return self.cut or Template.parse(self.message)


@dataclass(frozen=True, slots=True)
class Capture:
    """What one hole printed: `name` is the hole's expression (its number where upstream left it empty)."""

    name: str
    value: str
    kind: str


@dataclass(frozen=True, slots=True)
class Match:
    """A record found in a pasted text.

    `line` is 1-based; `span` are character offsets into the text as pasted; `rendered` is the message in
    upstream's spelling with the values found, secrets redacted. `count` is how often it occurs, `ranks` on
    which ranks (numbers, or the tag where several dimensions are printed), `hosts` on which hosts, as they
    are called in the text; `first_seen` is the earliest time stamp it carries, as printed, and `moment` that
    or the last one above it. `files` are the logs it is in, where there are several; line and span are the
    first one's."""

    record_id: str
    match_type: MatchType
    score: float
    line: int
    span: tuple[int, int]
    rendered: str
    captures: tuple[Capture, ...] = ()
    site: Site | None = None
    siblings: tuple[str, ...] = ()
    role: Role = "root-cause"
    count: int = 1
    ranks: tuple[int | str, ...] = ()
    first_seen: str | None = None
    evidence: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    moment: Stamp | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A record that a search found."""

    record_id: str
    match_type: MatchType
    score: float
    captures: tuple[Capture, ...]
    site: Site | None
    siblings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """What a text of a driver, a library or a launcher is that no record is of."""

    name: str
    meaning: str
    advice: str


@dataclass(frozen=True, slots=True)
class Unmatched:
    """An exception that was pasted and belongs to no record; or a line without one that is known as what it
    is, with no `exception`. `package` is the importable name of what raised it, where the text tells."""

    line: int
    exception: str | None
    message: str
    role: Role = "root-cause"
    count: int = 1
    ranks: tuple[int | str, ...] = ()
    hosts: tuple[str, ...] = ()
    first_seen: str | None = None
    moment: Stamp | None = None
    files: tuple[str, ...] = ()
    known: Told | None = None
    package: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """`root_cause` indexes `matches`; `truncated` says that a limit cut the work or the lists."""

    matches: tuple[Match, ...]
    root_cause: int | None
    unmatched: tuple[Unmatched, ...]
    truncated: bool

    @property
    def has_match(self) -> bool:
        return any(match.score >= MATCH for match in self.matches)
