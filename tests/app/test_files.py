"""What a data folder holds is its user's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.access.quotas import FileLedger
from app.jobs.file_store import FileStore


@pytest.mark.parametrize("before", [False, True], ids=["new", "of an older version"])
def test_others_of_the_host_read_no_results(tmp_path: Path, before: bool) -> None:
    folder = tmp_path / "data"
    if before:
        folder.mkdir()
        for name in ("jobs.sqlite", "usage.sqlite"):
            (folder / name).touch(mode=0o644)
    former = os.umask(0o000)
    try:
        store = FileStore(folder)
        store.add("job", "ann", "call {}", most=1, share=1, now=0.0)
        FileLedger(folder).add("ann", 1, 1.0)
        found = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    finally:
        os.umask(former)
    store.close()
    assert found.keys() >= {"jobs.sqlite", "jobs.sqlite-wal", "usage.sqlite"}
    assert set(found.values()) == {0o600}
    if not before:
        assert folder.stat().st_mode & 0o777 == 0o700
