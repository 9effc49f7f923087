"""Which of the errors in a text is the cause: the earliest that no other one reports or follows from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from catalog.match.model import MATCH, Match, Report, Role
from catalog.match.stamps import earlier

# Said by a process about another one that failed, or that it waited for: true, and no cause.
_SECONDARY: Final = (
    # servers about their workers
    "received sigquit from a child process",
    "engine core initialization failed",
    "could finish the model loading, but there are other ranks",
    "enginecore encountered",
    "enginecore failed",
    "engine loop is not running",
    "worker proc initialization failed",
    "workerproc initialization failed",
    "workerproc failed to start",
    "scheduler is dead",
    "health check failed",
    "died unexpectedly",
    "terminated unexpectedly",
    "the actor is dead",
    "child process is dead",
    # launchers about ranks
    "sending process",
    "childfailederror",
    "srun: error",
    "terminated with signal sig",
    "exited on signal",
    # ranks that waited for one that failed
    "watchdog caught collective operation timeout",
    "watchdog thread terminated with exception",
    "watchdog got stuck",
    "some nccl operations have failed or timed out",
    "to avoid data inconsistency, we are taking the entire process down",
    "failure detected by watchdog",
    "timeout at nccl work",
    "a collective timeout from rank",
    "global timeout from another rank",
    "nccl communicator was aborted",
    "communicator was aborted on rank",
    "remote process exited or there was a network error",
    "connection closed by peer",
    "connection reset by peer",
    "wait timeout after",
    "rpc call to",
)
_CLASSES: Final = frozenset(
    (
        "ActorDiedError",
        "BrokenProcessPool",
        "ChildFailedError",
        "EngineDeadError",
        "ProcessExitedException",
        "ProcessRaisedException",
        "RayActorError",
        "SystemExit",
        "WorkerCrashedError",
    )
)
"""Exceptions that say that another process ended."""
# What a watchdog or a server found in its own process is told behind its words.
_CAUSE_INSIDE: Final = re.compile(r"cuda error|out of memory|device-side assert", re.IGNORECASE)

ONLY_SECONDARY: Final = (
    "All of this reports a failure that began elsewhere: another rank or process failed first. "
    "Its error stands further up in this log, or in the log of that process; paste that."
)


def is_secondary(message: str, exception: str | None = None) -> bool:
    """Whether a message only says that another process failed."""
    if exception is not None and exception.rpartition(".")[2] in _CLASSES:
        return True
    lower = message[:4096].lower()
    return any(words in lower for words in _SECONDARY) and _CAUSE_INSIDE.search(lower) is None


def role_of(message: str, exception: str) -> Role:
    """The role of an exception that no record is known of."""
    return "secondary" if is_secondary(message, exception) else "root-cause"


_ROLES: Final[tuple[Role, ...]] = ("root-cause", "wrapper", "secondary")


def order(match: Match) -> tuple[bool, int, float, tuple[int, int], str]:
    """Sorts what was found: matches first, causes before what wraps them, then by score."""
    sure = match.score >= MATCH
    return not sure, _ROLES.index(match.role) if sure else 0, -match.score, match.span, match.record_id


def first(matches: Sequence[Match], files: Sequence[str] = ()) -> int | None:
    """The index of the root cause: the earliest match in its own right, by its time where all have one of a
    kind, else by its place; `files` are the logs in their order, where there are several.
    """
    if len(matches) == 1:
        return 0 if matches[0].role == "root-cause" and matches[0].score >= MATCH else None
    causes = [
        (number, match)
        for number, match in enumerate(matches)
        if match.role == "root-cause" and match.score >= MATCH
    ]
    timed = len({match.moment.form if match.moment else None for _, match in causes}) == 1
    return min(
        causes,
        key=lambda pair: (
            pair[1].moment.seconds if timed and pair[1].moment else 0.0,
            files.index(pair[1].files[0]) if pair[1].files else 0,
            pair[1].span,
        ),
        default=(None, None),
    )[0]


def notice(report: Report) -> str | None:
    """What to tell who pasted nothing but consequences, or whose first failure no record is of."""
    roles = [match.role for match in report.matches if match.score >= MATCH]
    roles += [missed.role for missed in report.unmatched]
    if roles and set(roles) == {"secondary"}:
        return ONLY_SECONDARY
    if report.root_cause is None:
        return None
    known = report.matches[report.root_cause].moment
    before = [
        (missed.moment, missed.exception or "Another failure")
        for missed in report.unmatched
        if missed.role == "root-cause" and missed.moment is not None and earlier(missed.moment, known)
    ]
    if not before:
        return None
    moment, what = min(before, key=lambda pair: pair[0].seconds)
    return f"{what} came before it, at {moment.printed}: no record is of that, and it may be the cause."
