"""Run every benchmark that this host can run, one process each, and print their tables."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

EVERYWHERE = ("lookup", "checks", "sweep", "start")
ON_GPU = ("kernels",)


def main() -> int:
    """Exit status 1 when any benchmark failed."""
    failed = [name for name in (*EVERYWHERE, *(ON_GPU if _gpu() else ())) if not _run(name)]
    for name in failed:
        print(f"failed: {name}", file=sys.stderr)
    return 1 if failed else 0


def _run(name: str) -> bool:
    print(f"\n## {name}\n", flush=True)
    return subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode == 0


def _gpu() -> bool:
    if find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main())
