"""Names in Redis, and the times that hosts count on."""

from __future__ import annotations

PREFIX = "faultbook"

TASK = f"{PREFIX}.run"
"""The only task: one run of one call."""

NODES = f"{PREFIX}:node:"
"""+ node: who its worker is, as long as it is alive."""

SEEN = f"{PREFIX}:seen"
"""Sorted set of nodes, `queue:name`, by the time of Redis at which they were last seen. Services look here
every second: keys are many, and to look through them all takes Redis long.
"""

KINDS = f"{PREFIX}:kinds"
"""Hash: queue → who its workers are."""

COUNTS = f"{PREFIX}:counts"
"""Hash: RESTARTS, and XID + its number → how often, of all nodes together since Redis has its data."""

RESTARTS = "restarts"
XID = "xid:"

KNOWN = 3600
"""Seconds for which a queue is known after its last node was seen: its hosts may be starting again."""

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


NODE = "node"
"""Which node is at a run."""

BEGAN = "began"
"""The time of Redis at which it began."""

DELIVERIES = "deliveries"
"""How often the run was delivered to one that did not give it back."""

LOST = "lost"
"""Seconds for which nodes had it that have vanished."""


def holder_key(run: str) -> str:
    """Hash: NODE, BEGAN, DELIVERIES and LOST of a run."""
    return f"{PREFIX}:run:{run}"
