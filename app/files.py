"""Files of the data folder."""

from __future__ import annotations

import os
from pathlib import Path


def private(folder: Path, name: str) -> Path:
    """A file that only this user reads, made where it is missing: what was asked and answered, and who
    asked. SQLite gives its side files the same mode. Raises OSError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / name
    file.touch(mode=0o600)
    if file.stat().st_mode & 0o077 and file.stat().st_uid == os.getuid():
        file.chmod(0o600)
    return file
