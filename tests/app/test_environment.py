"""What `doctor` finds: the GPUs of a host, by the driver's own tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from app import environment


def tool(folder: Path, script: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo 'NVIDIA H200, 9.0'; echo 'NVIDIA A100-SXM4-80GB, 8.0'",
            "NVIDIA H200 (target sm90), NVIDIA A100-SXM4-80GB (target sm80)",
        ),
        ("echo 'NVIDIA-SMI has failed'; exit 9", ""),
        ("echo no devices", ""),
    ],
)
def test_the_gpus_are_named_with_the_target_of_their_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    tool(tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment._devices() == said


def test_a_host_without_the_tool_says_nothing_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment._devices() == ""
