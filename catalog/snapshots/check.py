"""Everything in a snapshot read once: for a file that came from elsewhere."""

from __future__ import annotations

from typing import Final

from catalog.identity import record_id
from catalog.snapshots.manifest import SnapshotError
from catalog.snapshots.snapshot import Snapshot

SOME: Final = 2000
"""Records read at a time."""


def check(snapshot: Snapshot) -> None:
    """SnapshotError where the file's structure, a record or what the matcher reads is not as we write it.

    An id is what its record's repository, message and path make it, so that no file can put its words in the
    place of another's record.
    """
    said = snapshot.integrity()
    if said != "ok":
        raise SnapshotError(f"{snapshot.path.name}: damaged ({said[:100]})")
    prepared = snapshot.prepared
    numbers = snapshot.numbers()
    if numbers != list(range(len(snapshot))):
        raise SnapshotError(f"{snapshot.path.name}: it has not the records that it states")
    for at in range(0, len(numbers), SOME):
        for row in snapshot.between(at, at + SOME):
            if row.id != record_id(snapshot.repo, None, row.message, row.path):
                raise SnapshotError(f"{snapshot.path.name}: record {row.number} has an id of another's")
            if snapshot.damage is not None:
                break
    if len(prepared.member) and int(prepared.member.max()) >= len(numbers):
        raise SnapshotError(f"{snapshot.path.name}: the matcher is told of records that it has not")
    for row_number in numbers[:: max(1, len(numbers) // 200)]:
        snapshot.snippet(row_number)
    if snapshot.damage is not None:
        raise SnapshotError(snapshot.damage)
