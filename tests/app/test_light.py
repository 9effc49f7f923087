"""What a command loads: only what it needs, so that it answers in a moment."""

from __future__ import annotations

import subprocess
import sys

import pytest

RUN = """
import sys
sys.argv = ["faultbook", *{arguments!r}]
from app.cli import cli
try:
    cli(standalone_mode=False)
finally:
    loaded = sorted(sys.modules)
    print("\\n".join(loaded), file=sys.stderr)
"""
HEAVY = ("torch", "triton", "fastapi", "starlette.responses", "uvicorn", "pebble")


@pytest.mark.parametrize(
    ("arguments", "without"),
    [
        (("--help",), (*HEAVY, "numpy", "catalog.match", "kernels.registry")),
        (("match", "-"), (*HEAVY, "rich.markdown")),
    ],
)
def test_nothing_is_loaded_that_is_not_needed(arguments: tuple[str, ...], without: tuple[str, ...]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", RUN.format(arguments=arguments)],
        input="kv_scales must be fp32, got torch.float16",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    loaded = set(ended.stderr.split("\n"))
    assert "app.cli" in loaded, ended.stderr
    assert not loaded.intersection(without)
