"""When a GPU is left alone, and what the driver's reports say."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.worker import safety
from app.worker.groups import Groups
from app.worker.nvml import Nvml, NvmlError
from app.worker.xid import HostLog, Watch, Xid, parse

GIB = 1 << 30


@dataclass
class Card:
    mode: str = "default"
    free: int = 8 * GIB
    clients: int = 0
    tells: bool = True

    def compute_mode(self) -> str:
        if not self.tells:
            raise NvmlError("not supported")
        return self.mode

    def memory(self) -> tuple[int, int]:
        return self.free, 80 * GIB

    def mps_clients(self) -> int:
        if not self.tells:
            raise NvmlError("not supported")
        return self.clients


@pytest.fixture(autouse=True)
def no_mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where MPS would have its pipe."""
    folder = tmp_path / "mps"
    folder.mkdir()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(folder))
    return folder


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A host's processes: systemd and a shell."""
    folder = tmp_path / "proc"
    for number, name in ((1, "systemd"), (77, "bash")):
        (folder / str(number)).mkdir(parents=True)
        (folder / str(number) / "comm").write_text(name + "\n")
    return folder


def test_a_free_gpu_may_be_used(proc: Path) -> None:
    assert safety.refusal(Card(), GIB, proc) == ""
    assert safety.refusal(Card(tells=False), GIB, proc) == ""
    assert safety.refusal(None, GIB, proc) == ""


@pytest.mark.parametrize("mode", ["exclusive-process", "exclusive-thread", "prohibited"])
def test_a_gpu_that_belongs_to_one_process_is_left_to_it(proc: Path, mode: str) -> None:
    assert mode in safety.refusal(Card(mode=mode), GIB, proc)


def test_others_keep_their_memory(proc: Path) -> None:
    reason = safety.refusal(Card(free=GIB // 2), GIB, proc)
    assert reason.startswith("0.5 of 80.0 GiB of the GPU are free and 1.0 stay reserved")
    assert safety.refusal(Card(free=GIB), GIB, proc) == ""


def test_a_gpu_with_mps_clients_is_left_alone(proc: Path) -> None:
    assert "MPS clients" in safety.refusal(Card(clients=2), GIB, proc)


def test_mps_is_known_by_its_pipe_and_who_serves_it(proc: Path, no_mps: Path) -> None:
    os.mkfifo(no_mps / "control")
    assert not safety.mps_control(proc)  # left behind: nothing serves it
    (proc / "90").mkdir()
    (proc / "90" / "comm").write_text("nvidia-cuda-mps\n")
    assert safety.mps_control(proc)
    assert "MPS" in safety.refusal(Card(), GIB, proc)
    assert "MPS" in safety.refusal(None, GIB, proc)


def test_a_pipe_in_a_container_is_meant_to_be_used(proc: Path, no_mps: Path) -> None:
    (proc / "1" / "comm").write_text("faultbook\n")
    assert not safety.mps_control(proc)
    os.mkfifo(no_mps / "control")
    assert safety.mps_control(proc)


@pytest.mark.parametrize(
    ("visible", "place", "chosen"),
    [("0,1,2", 1, "1"), ("0,1", 3, "1"), ("GPU-a, MIG-b", 1, "MIG-b"), ("5", 4, "5"), ("", 0, "")],
)
def test_each_worker_has_the_next_of_the_gpus_it_may_see(
    monkeypatch: pytest.MonkeyPatch, visible: str, place: int, chosen: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    safety.choose(place)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == chosen
    assert os.environ.pop("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"


LINES = [
    b"3,1234,567,-;NVRM: Xid (PCI:0000:0f:00): 31, pid=4242, name=python3, Ch 00000008\n",
    b"Dec  2 09:00:00 host kernel: [1.0] NVRM: Xid (PCI:0000:3b:00.0): 79, GPU has fallen off the bus.\n",
    b"NVRM: Xid (0000:3B:00): 13, pid='<unknown>', Graphics SM Warp Exception\n",
]


def test_reports_in_a_hosts_log() -> None:
    assert [parse(line) for line in LINES] == [
        Xid(31, "0000:0f:00", 4242),
        Xid(79, "0000:3b:00"),
        Xid(13, "0000:3b:00"),
    ]
    assert parse(b"NVRM: Xid (PCI:" + b"0" * 100_000) is None
    assert str(Xid(31, "0000:0f:00", 4242)).endswith("on 0000:0f:00, process 4242")
    assert str(Xid(999, "0000:0f:00")) == "Xid 999 on 0000:0f:00"


def test_only_what_a_log_says_from_now_on_counts(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_bytes(LINES[0])
    log = HostLog(str(path))
    assert list(log.new()) == []
    with path.open("ab") as file:
        file.write(LINES[1][:40])
        file.flush()
        assert list(log.new()) == []
        file.write(LINES[1][40:] + LINES[2])
    assert [found.number for found in log.new()] == [79, 13]
    log.close()


@pytest.mark.parametrize(("visible", "found"), [("0,1", 2), ("GPU-a", 1), ("", 1), ("0, 3 ,5", 3)])
def test_workers_have_no_more_places_than_gpus(
    visible: str, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert safety.places() == found


def test_the_watch_tells_each_error_once_and_by_whom(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.touch()
    watch = Watch((str(path), str(tmp_path / "none")))
    try:
        assert watch.sources[0] == "the host's log"
        began = time.monotonic()
        watch._note(Xid(31, "0000:0f:00"))  # the driver's event, which names no process
        with path.open("ab") as file:
            file.write(LINES[0] + LINES[0])
        assert watch.since(began) == [Xid(31, "0000:0f:00", 4242)]
        assert watch.since(time.monotonic()) == []
        assert watch.times() == {31: 2}
        with path.open("ab") as file:
            file.write(LINES[2])
        assert watch.times() == {31: 2, 13: 1}
    finally:
        watch.close()


def test_what_a_lost_worker_left_behind_is_ended() -> None:
    groups = Groups()
    code = (
        "import subprocess, sys; from app.worker.groups import lead; lead(sys.argv[1]);"
        "child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, groups.folder]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert worker.stdin is not None
    assert worker.stdout is not None
    child = int(worker.stdout.readline())
    groups.end_lost()
    assert worker.poll() is None
    assert _lives(child)
    worker.kill()
    worker.wait()
    groups.end_lost()
    worker.stdin.close()
    worker.stdout.close()
    ended = time.monotonic() + 5
    while _lives(child):
        assert time.monotonic() < ended
        time.sleep(0.01)
    groups.close()
    assert not Path(groups.folder).exists()


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.gpu
def test_the_management_library_knows_the_card_that_torch_sees() -> None:
    import torch

    card = Nvml().gpus()[0]
    assert card.name == torch.cuda.get_device_name(0)
    assert card.capability == "{}.{}".format(*torch.cuda.get_device_capability(0))
    assert card.compute_mode() == safety.ByDriver(0, torch.cuda.mem_get_info).compute_mode()
    free, total = card.memory()
    assert 0 < free <= total
    assert abs(total - torch.cuda.get_device_properties(0).total_memory) < 4 * GIB
