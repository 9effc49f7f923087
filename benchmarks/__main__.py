"""Run the benchmarks of this host, one process each, and print their tables.

    python -m benchmarks [NAME [ARGUMENT ...]]

With a name that one alone, with its own arguments.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

EVERYWHERE = ("lookup", "checks", "fixes", "http", "load", "sweep", "start")
ON_GPU = ("kernels",)


def main() -> int:
    """Exit status 1 when any benchmark failed, 2 when there is none of that name."""
    name, *arguments = sys.argv[1:] or [""]
    if name:
        if name not in EVERYWHERE + ON_GPU:
            print(f"no benchmark {name!r}: {', '.join(EVERYWHERE + ON_GPU)}", file=sys.stderr)
            return 2
        return 0 if _run(name, *arguments) else 1
    failed = [name for name in (*EVERYWHERE, *(ON_GPU if _gpu() else ())) if not _run(name)]
    for name in failed:
        print(f"failed: {name}", file=sys.stderr)
    return 1 if failed else 0


def _run(name: str, *arguments: str) -> bool:
    print(f"\n## {name}\n", flush=True)
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    return subprocess.run(command, check=False).returncode == 0


def _gpu() -> bool:
    if find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main())
