"""Text → records. Everything the rest of the project uses of it is here."""

from __future__ import annotations

from catalog.match.matcher import Matcher
from catalog.match.model import (
    MATCH,
    POSSIBLE,
    Candidate,
    Capture,
    Entry,
    Match,
    MatchType,
    Report,
    Role,
    Site,
    Unmatched,
)
from catalog.match.redact import redact

__all__ = [
    "MATCH",
    "POSSIBLE",
    "Candidate",
    "Capture",
    "Entry",
    "Match",
    "MatchType",
    "Matcher",
    "Report",
    "Role",
    "Site",
    "Unmatched",
    "redact",
]
