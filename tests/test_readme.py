"""The README's tour, pasted: each block runs against its own service and prints what the text promises."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOUR = re.search(
    r"^## Tour$(.*?)^## ", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", TOUR[1] if TOUR else "", re.DOTALL | re.MULTILINE)
PROMISED = (
    ("402df144293dfbb6", "root-cause"),
    ("scale_ue8m0",),
    ("int32-packed scale buffers require scale_ue8m0=True", "matches-reference"),
    (
        "Error while deserializing header: header too large",
        "Git LFS pointer of a file of 4,976,698,672 bytes",
    ),
    ("packed_scales_without_ue8m0", "sgl-project/sglang", "sparse_attn_v4_paged_decode", "catalog"),
)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A service started as `make serve` starts it, on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = int(probe.getsockname()[1])
    command = [str(Path(sys.executable).with_name("faultbook")), "serve", "--port", str(free)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{free}/readyz", timeout=5).close()
                    break
                except (urllib.error.URLError, ConnectionError):
                    time.sleep(0.1)
            yield free
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)


@pytest.mark.parametrize("index", range(len(PROMISED)))
def test_a_block_of_the_tour_runs_as_pasted(port: int, index: int) -> None:
    assert len(BLOCKS) == len(PROMISED)
    script = BLOCKS[index].replace("127.0.0.1:8000", f"127.0.0.1:{port}")
    script = script.replace(".venv/bin/faultbook", str(Path(sys.executable).with_name("faultbook")))
    pasted = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert pasted.returncode == 0, pasted.stdout + pasted.stderr
    for promise in PROMISED[index]:
        assert promise in pasted.stdout
