"""Text → records. Everything the rest of the project uses of it is here.

A pasted text goes through these modules, in this order:

    line         one plain line that is one message, without all that follows
    clean        colours, escapes and line prefixes blanked in place; the key domain
    literals     templates by two anchors in an `automaton`, then a linear walk over their literals
    extent       where the message around the literals starts and ends
    occurrences  equal messages of many ranks as one; nested and chained ones
    context      exception class, stack frames, launcher prefix, rank; what Python itself says
    score        how sure a match is; values: what the holes printed; sites: records without a text
    fuzzy        what is similar; guessing: what a text may be of which nothing, or a part alone, was found

`redact` is applied to all that is echoed; `user_regex` searches messages with a user's pattern.
"""

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
    kind_of,
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
    "kind_of",
    "redact",
]
