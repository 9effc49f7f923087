"""Workers lead process groups of their own, so that what a run has started ends with its worker."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path


class Groups:
    """The groups of the workers of one place, by files that the workers themselves write: a worker that dies
    in its first run has told nobody else who it was.
    """

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="faultbook-workers-")

    def end_lost(self) -> None:
        """Kill what workers that are gone have left behind."""
        for entry in Path(self.folder).iterdir():
            leader = int(entry.name)
            # A number stands for a group as long as it has members, so it is nobody else's yet.
            if not _lives(leader):
                _kill(leader)
                entry.unlink(missing_ok=True)

    def close(self) -> None:
        """Kill every group, and forget them."""
        for entry in Path(self.folder).iterdir():
            _kill(int(entry.name))
        shutil.rmtree(self.folder, ignore_errors=True)


def lead(folder: str) -> None:
    """Make this process the leader of a group, and say so in `folder`."""
    os.setpgid(0, 0)
    (Path(folder) / str(os.getpid())).touch()


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _lives(process: int) -> bool:
    """Whether there is a process of this id that has not ended; one that nobody has waited for has."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        pass
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return not Path("/proc/self").exists()
