"""Names in Redis, and the times that hosts count on."""

from __future__ import annotations

PREFIX = "faultbook"

TASK = f"{PREFIX}.run"
"""The only task: one run of one call."""

NODES = f"{PREFIX}:node:"
"""+ node: who its worker is, as long as it is alive."""

KINDS = f"{PREFIX}:kinds"
"""Queue → who its workers were when one was last seen: a queue whose hosts are all down is known still."""

BEAT = 2.0
"""Seconds between a node's signs of life."""

ALIVE = 10
"""Seconds for which one counts."""

OUTCOME_KEPT = 3600
"""Seconds for which an outcome, or the wish to cancel, waits for whoever asked."""


def queue_key(queue: str) -> str:
    """The list in which Celery keeps a queue."""
    return f"{PREFIX}.{queue}"


def outcome_key(run: str) -> str:
    """Where a run's outcome stands."""
    return f"{PREFIX}:outcome:{run}"


def cancel_key(run: str) -> str:
    """There once a run is to be cancelled."""
    return f"{PREFIX}:cancel:{run}"


def holder_key(run: str) -> str:
    """Hash: which node is at a run, and how often it was delivered."""
    return f"{PREFIX}:run:{run}"
