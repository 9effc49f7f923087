"""The matcher: a pasted text in, the records of the errors in it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from catalog.match import causes, context, heap, known, line
from catalog.match.clean import Pasted, key
from catalog.match.fuzzy import Fuzzy
from catalog.match.guessing import guesses
from catalog.match.literals import Index, Scope, distinct, siblings
from catalog.match.model import Candidate, Entry, Report
from catalog.match.parts import InMemory, Part
from catalog.match.sites import Sites
from catalog.match.versions import Versions
from catalog.match.work import Work
from catalog.template import key_of


class Matcher:
    """All entries, indexed: building it is the expensive part. It never changes; threads may share it."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._prepare([InMemory(entries)])

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Self:
        """A matcher of parts that are prepared already."""
        matcher = cls.__new__(cls)
        matcher._prepare(parts)
        return matcher

    def _prepare(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        self.index = Index(self.parts)
        self.sites = Sites(self.parts)
        self.fuzzy = Fuzzy(self.index)
        self._versions = Versions(self.parts)
        self.has_codes = any(part.codes for part in self.parts)
        if len(self.index) > heap.LARGE:
            heap.give_back()

    def coded(self, code: str) -> list[Entry]:
        """The entries of an error code."""
        return [entry for part in self.parts for entry in part.codes.get(code.casefold(), ())]

    def match(
        self,
        text: str | bytes,
        *,
        repo: str | None = None,
        packages: Mapping[str, str] | None = None,
        limit: int = 25,
    ) -> Report:
        """The records of all errors in a text: a line, a traceback or a whole log, however it was pasted.

        Matches come first, causes before what wraps them, then by score. Bytes may be no UTF-8; the spans
        then count each undecodable byte as one character.

        Of a package that several versions are known of, the one in `packages`, else one that the text names,
        is looked into alone."""
        if isinstance(text, str) and len(text) <= line.LONGEST and not self.has_codes:
            scope = self._versions.scope(text, packages or {}, repo)
            report = line.look_up(self, text, scope)
            if report is not None and len(report.matches) <= limit:
                return report
        return self.match_any(text, repo=repo, packages=packages, limit=limit)

    def match_any(
        self,
        text: str | bytes,
        *,
        repo: str | None = None,
        packages: Mapping[str, str] | None = None,
        limit: int = 25,
    ) -> Report:
        """As `match`, the way of all texts, whatever they are."""
        pasted = Pasted(text, self._promising)
        work = Work(self, pasted, self._versions.scope(pasted.text, packages or {}, repo))
        found = [*work.patterns(), *work.named_sites(), *work.codes()]
        if work.is_open(found):
            found = guesses(work, found)
        ranked = sorted(found, key=causes.order)
        matches = tuple(ranked[:limit])
        return Report(
            matches=matches,
            root_cause=causes.first(matches),
            unmatched=work.unmatched(),
            truncated=work.truncated or len(ranked) > limit,
        )

    def search(self, query: str, *, repo: str | None = None, limit: int = 5) -> list[Candidate]:
        """The records a short query means: an error code, a message, or words of one."""
        best: dict[str, Candidate] = {}
        for entry in self.coded(query.strip()):
            if repo in (None, entry.repo):
                best[entry.record_id] = Candidate(entry.record_id, "exact-code", 1.0, (), None, ())
        for match in Work(self, Pasted(query, self._promising), Scope(repo)).patterns():
            found = Candidate(
                match.record_id, match.match_type, match.score, match.captures, match.site, match.siblings
            )
            best.setdefault(match.record_id, found)
        named = {other for found in best.values() for other in (found.record_id, *found.siblings)}
        for group, score, _ in self.fuzzy.search(key_of(query), 2 * limit):
            for member in distinct(group.within(Scope(repo))):
                shown = member.entry.record_id
                if shown not in named:
                    others = siblings(group, member)
                    best[shown] = Candidate(shown, "fuzzy", round(score, 4), (), None, others)
        return sorted(best.values(), key=lambda found: (-found.score, found.record_id))[:limit]

    def _promising(self, piece: bytes) -> bool:
        anchors, words = self.index.promising(key(piece))
        return anchors or (words and (context.is_promising(piece) or known.is_told(piece)))
