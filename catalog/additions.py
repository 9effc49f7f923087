"""What a curated record has beyond schema version 2: the key `x`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from catalog import sources, verified
from catalog.faults import LAUNCHER_PREFIX, Case, Demonstration, Fault
from catalog.template import Template
from kernels.call import Call, arguments_json
from kernels.registry import Operation

PREFIX_PATTERN: Final = r"(?:Failed at .+?:[0-9]+: )?"

AUTHORED: Final = (
    "documentation",
    "triggerScenarios",
    "commonSituations",
    "solutions",
    "handlingStrategy",
    "validationCode",
    "typeGuard",
    "tryCatchPattern",
    "preventionTips",
    "tags",
    "backgroundTag",
    "analyzedAt",
)
EXTRACTED: Final = ("repo", "errorMessage", "errorClass", "filePath", "lineNumber", "analyzedSha")
DERIVED: Final = (
    "id",
    "slug",
    "messagePattern",
    "errorType",
    "severity",
    "githubUrl",
    "exampleFix",
    "schemaVersion",
)


def additions(fault: Fault, related: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The value of `x`; `related` is (record id, reason)."""
    shown = fault.shown
    return {
        "match": match(fault),
        "sites": sites(fault),
        "checks": [check(case) for case in fault.cases],
        "fix": fix(shown),
        "repro": repro(fault),
        "condition": "; or ".join(dict.fromkeys(case.check.requires for case in fault.cases)),
        "related": [{"id": identifier, "reason": reason} for identifier, reason in related],
        "provenance": provenance(fault),
        "lifecycle": lifecycle(fault),
    }


def match(fault: Fault) -> dict[str, Any]:
    """How to find it in a text; a site without a text has nothing to be found by.

    `regex` is searched for in a message, with or without a launcher's prefix; one that ends in a hole is
    anchored there, for a lazy hole would stop after one character. The prefix counts among the literals.
    """
    if fault.textless:
        return {"regex": None, "literals": [], "captures": [], "literalWeight": 0}
    template = fault.template
    whole = Template.parse(LAUNCHER_PREFIX + fault.message) if fault.prefixed else template
    prefix = PREFIX_PATTERN if fault.prefixed else ""
    end = "" if template.segments[-1] else "$"
    return {
        "regex": f"{prefix}{template.pattern}{end}",
        "literals": list(whole.literals),
        "captures": [asdict(captured) for captured in fault.captures],
        "literalWeight": whole.literal_weight,
    }


def sites(fault: Fault) -> list[dict[str, Any]]:
    """Every place that raises it, once for each version it is known in; `order` counts places."""
    exception = fault.check.raises.__name__
    found = []
    for order, site in enumerate(fault.sites, 1):
        package = site.file.package
        known: list[tuple[int | None, str, str | None]] = []
        if site.pinned is not None:
            known.append((site.pinned, package.commit, site.url))
        if site.released is not None or not known:
            known.append((site.released, package.version, None))
        found += [
            {
                "path": site.file.path,
                "line": line,
                "function": site.function,
                "exception": exception,
                "order": order,
                "url": url,
                "version": version,
            }
            for line, version, url in known
        ]
    return found


def versions(fault: Fault) -> list[str]:
    """Versions of the package known to raise it, oldest first; the pinned commit is one of them."""
    pinned = [site.file.package.commit for site in fault.sites if site.pinned is not None]
    released = [
        site.file.package.version for site in fault.sites if site.released is not None or site.pinned is None
    ]
    return list(dict.fromkeys([*pinned, *released]))


def check(case: Case) -> dict[str, Any]:
    """One check of one operation, with our code of it."""
    declared = case.check
    return {
        "operation": case.operation.name,
        "id": declared.id(),
        "category": declared.category,
        "premises": [premise.id() for premise in declared.premises],
        "origin": declared.origin().value,
        "severity": declared.severity.value,
        "reason": declared.reason,
        "source": sources.source_of(declared),
    }


def fix(shown: Demonstration | None) -> dict[str, Any] | None:
    """The example's first fix; None where none is declared."""
    if shown is None or shown.fix is None:
        return None
    return {
        "title": shown.fix.title,
        "edits": [
            {"argument": edit.argument, "attribute": edit.attribute, "from": edit.before, "to": edit.after}
            for edit in shown.fix.edits(shown.call)
        ],
        "safe": shown.fix.safe,
        "note": shown.fix.note,
    }


def repro(fault: Fault) -> dict[str, Any] | None:
    """The failing and the passing call as diagnosis requests, what the user sees of the failing one, and when
    both were last run.
    """
    shown = fault.shown
    if shown is None:
        return None
    operation = shown.case.operation
    return {
        "failing": request(operation, shown.call),
        "passing": request(operation, operation.valid if shown.fix is None else shown.fix.call),
        "renderedMessage": shown.violation.text,
        "lastVerified": verified.read().get(fault.id),
    }


def request(operation: Operation, call: Call) -> dict[str, Any]:
    """A call as the body of a diagnosis request."""
    body = {"operation": operation.name, "arguments": arguments_json(call)}
    return body if call.target is None else {**body, "target": call.target.name}


def provenance(fault: Fault) -> dict[str, str]:
    """Where each field comes from: written here, computed, or read off the package's source."""
    upstream = "derived" if fault.own else "extracted"
    found = (
        dict.fromkeys(AUTHORED, "authored")
        | dict.fromkeys(DERIVED, "derived")
        | dict.fromkeys(EXTRACTED, upstream)
    )
    return dict(sorted(found.items()))


def lifecycle(fault: Fault) -> dict[str, Any]:
    """Whether upstream still raises it, and since when as far as it is known."""
    known = versions(fault)
    return {
        "status": "active",
        "firstSeen": known[0] if known else None,
        "lastSeen": known[-1] if known else None,
        "priorWordings": list(fault.check.formerly),
    }
