"""What `doctor` finds in an installation: its data, its keys, its GPUs, by the driver's own tool."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from app import environment
from app.access.keys import digest_of, entry, new_key
from app.host import Finding
from app.jobs import file_store
from app.settings import Settings
from tests.app.nobody import as_nobody

KEY = str(entry("ci", "diagnose", f"sha256-{digest_of(new_key())}"))


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


def found(name: str, settings: Settings) -> Finding:
    [finding] = [finding for finding in environment.findings(settings) if finding.name == name]
    return finding


def settings_of(folder: Path, **values: Any) -> Settings:
    return Settings(data=folder, port=0, device="cpu", **values)


def test_a_folder_that_cannot_be_written_is_broken(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert found("data", settings_of(tmp_path / "file")).state == "broken"


def test_a_disk_that_is_nearly_full_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "LEAST_SPACE", 1 << 62)
    finding = found("data", settings_of(tmp_path))
    assert finding.state == "missing"
    assert "MiB are free" in finding.detail


def test_without_jobs_nothing_is_said_of_them(tmp_path: Path) -> None:
    assert "jobs" not in {finding.name for finding in environment.findings(settings_of(tmp_path))}


def test_a_file_of_jobs_that_the_service_may_not_write_is_named() -> None:
    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o755)
        data = Path(above) / "data"
        file_store.FileStore(data).close()
        data.chmod(0o777)
        (data / file_store.FILE).chmod(0o444)
        with as_nobody():
            told = found("jobs", settings_of(data))
    assert (told.state, told.required) == ("broken", True)
    assert "cannot be written" in told.detail
    assert told.remedy.startswith("give it to the service's user")


def test_the_file_of_jobs_is_checked(tmp_path: Path) -> None:
    file_store.FileStore(tmp_path).close()
    assert found("jobs", settings_of(tmp_path)).state == "ok"
    with closing(sqlite3.connect(tmp_path / file_store.FILE)) as base:
        base.execute(f"PRAGMA user_version={file_store.VERSION + 1}")
    assert "newer" in found("jobs", settings_of(tmp_path)).detail
    (tmp_path / file_store.FILE).write_bytes(b"no database" * 1000)
    for beside in tmp_path.glob(f"{file_store.FILE}-*"):
        beside.unlink()
    assert found("jobs", settings_of(tmp_path)).state == "broken"


@pytest.mark.parametrize(
    ("values", "state", "said"),
    [
        ({}, "ok", "none needed"),
        ({"host": "0.0.0.0"}, "missing", "open to other hosts"),
        ({"host": "0.0.0.0", "open": True}, "missing", "may run kernels"),
        ({"host": "0.0.0.0", "api_keys": KEY}, "ok", "1"),
        ({"api_keys_file": "/nowhere/keys"}, "broken", "FAULTBOOK_API_KEYS_FILE"),
    ],
)
def test_who_needs_a_key_is_said(tmp_path: Path, values: dict[str, Any], state: str, said: str) -> None:
    finding = found("keys", settings_of(tmp_path, **values))
    assert (finding.state, said in finding.detail) == (state, True), finding
    assert (finding.remedy != "") == (state != "ok")


def test_a_file_without_keys_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "keys").touch()
    finding = found("keys", settings_of(tmp_path, api_keys_file=str(tmp_path / "keys")))
    assert finding.state == "broken"


class Card:
    """A GPU that an inference server has to itself."""

    def compute_mode(self) -> str:
        return "exclusive-process"

    def memory(self) -> tuple[int, int]:
        return 100 << 30, 140 << 30

    def mps_clients(self) -> int:
        return 0


@pytest.mark.parametrize("required", [True, False])
def test_a_gpu_that_is_left_alone_is_said_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, required: bool
) -> None:
    monkeypatch.setattr(environment, "nvml_card", Card)
    finding = environment._gpu(Settings(device="cuda" if required else "auto"))
    assert (finding.state, finding.required) == ("missing", required)
    assert "compute mode exclusive-process" in finding.detail
