"""`faultbook worker` as a command, and its processes for several GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Timer

import pytest

from app.cluster import command
from tests.app.serving import ROOT, environment


def faultbook(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *arguments],
        cwd=ROOT,
        env=environment(folder, **settings),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize(
    ("settings", "word"),
    [({}, "BROKER_URL is not set"), ({"broker_url": "http://x"}, "must start with redis")],
)
def test_a_worker_needs_a_broker(tmp_path: Path, settings: dict[str, str], word: str) -> None:
    done = faultbook(tmp_path, "worker", **settings)
    assert (done.returncode, word in done.stderr) == (2, True), done.stderr


def test_a_worker_without_the_device_asked_for_says_so(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this host has the device asked for")
    done = faultbook(tmp_path, "worker", device="cuda", broker_url="redis://127.0.0.1:1/0")
    assert done.returncode == 3, done.stderr
    assert "sees no CUDA device" in done.stderr


def test_a_diagnosis_that_crashes_its_worker_exits_with_four(tmp_path: Path) -> None:
    arguments = ("diagnose", "hazard", "--arg", "kind=abort", "--level", "run")
    done = faultbook(tmp_path, *arguments, device="cpu")
    assert done.returncode == 4, done.stderr
    assert "crashed" in done.stdout


def test_each_visible_gpu_gets_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, GPU-abc")
    assert command._places("auto") == ["2", "GPU-abc"]
    assert command._places("cpu") == []


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Processes that note their GPU; that of a GPU 0 ends as the environment says, others go on."""
    note = tmp_path / "note"
    code = (
        "import os, sys, time\n"
        f"open({str(note)!r}, 'a').write(os.environ['CUDA_VISIBLE_DEVICES'])\n"
        "if os.environ['CUDA_VISIBLE_DEVICES'][0] == '0': sys.exit(int(os.environ['ENDS_WITH']))\n"
        "time.sleep(60)"
    )
    monkeypatch.setattr(command, "_MODULE", ("-c", code))
    monkeypatch.setattr(command, "AGAIN", 0.1)
    return note


def test_a_process_that_ends_by_itself_is_started_again_until_a_signal(
    started: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENDS_WITH", "1")
    Timer(3.0, os.kill, (os.getpid(), 15)).start()
    began = time.monotonic()
    assert command._supervise(["0", "1"]) == 0
    assert time.monotonic() - began < 20
    assert started.read_text().count("1") == 1
    assert started.read_text().count("0") > 1


def test_gpus_that_cannot_be_used_are_left_out(started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENDS_WITH", "3")
    assert command._supervise(["0", "00"]) == 3
    assert started.read_text() == "000"
