"""A folder as a host on which the deployments' scripts run, with a stand-in for the `faultbook` command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

DEPLOY = Path(__file__).parent.parent / "deploy"

# Notes what it was called with, then does as the real one: takes a bundle in, or serves until told to end.
STAND_IN = f"""#!{sys.executable}
import json, os, pathlib, signal, sys
log = pathlib.Path(os.environ["LOG"])
names = ("FAULTBOOK_", "TRITON_")
seen = {{name: value for name, value in os.environ.items() if name.startswith(names)}}
with log.open("a") as opened:
    opened.write(json.dumps([sys.argv[1:], seen]) + "\\n")
if sys.argv[1] == "bundle":
    sys.exit(int(os.environ.get("BUNDLE_STATUS", "0")))
if os.environ.get("STAY"):
    def end(*_):
        with log.open("a") as opened:
            opened.write(json.dumps([["ended"], {{}}]) + "\\n")
        sys.exit(7)
    signal.signal(signal.SIGTERM, end)
    pathlib.Path(os.environ["STAY"]).touch()
    signal.pause()
"""


class Host:
    """A folder as a host: its data, its bundle, and what the stand-in was called with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.image = folder / "image"
        self.data = folder / "data"
        self.image.mkdir()
        (self.data / "snapshots").mkdir(parents=True)
        binary = folder / "venv/bin/faultbook"
        binary.parent.mkdir(parents=True)
        binary.write_text(STAND_IN)
        binary.chmod(0o755)
        self.environment = {
            "PATH": f"{binary.parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "LOG": str(self.log),
            "IMAGE_SNAPSHOTS": str(self.image),
            "FAULTBOOK_DATA": str(self.data),
        }

    def brings(self, digest: str) -> None:
        (self.image / "snapshots.tar").write_bytes(b"a bundle")
        (self.image / "snapshots.sha256").write_text(f"{digest}  snapshots.tar\n")

    def run(self, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.environment | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
            cwd=self.folder,
        )

    def calls(self) -> list[tuple[list[str], dict[str, str]]]:
        if not self.log.exists():
            return []
        return [tuple(json.loads(line)) for line in self.log.read_text().splitlines()]

    def commands(self) -> list[str]:
        found = [" ".join(arguments[:2]) for arguments, _ in self.calls()]
        self.log.unlink(missing_ok=True)
        return found
