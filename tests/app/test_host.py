"""What `doctor` finds of hosts that are described as folders: no GPU is needed to be told what one lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from app import host
from app.host import Torch

CUDA_13 = Torch("2.13.0", "13.0", None)
CUDA_12 = Torch("2.11.0", "12.8", None)
CPU = Torch("2.13.0+cpu", None, None)
ROCM = Torch("2.13.0+rocm7.1", None, "7.1")

OPEN_MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (builder@host)\n"
    "GCC version:  gcc version 13.3.0\n"
)
OLD_MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 03:00:00 UTC 2025\n"


def nvidia(root: Path, module: str = OPEN_MODULE) -> Path:
    (root / "proc/driver/nvidia").mkdir(parents=True)
    (root / "proc/driver/nvidia/version").write_text(module)
    return root


def amd(root: Path, *devices: str) -> Path:
    (root / "dev/dri").mkdir(parents=True)
    for name in ("kfd", *devices):
        (root / "dev" / name).touch()
    return root


def on_the_bus(root: Path, vendor: str, kind: str = "0x030200") -> Path:
    device = root / "sys/bus/pci/devices/0000:0f:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")
    return root


@pytest.mark.parametrize(
    ("module", "torch", "state", "said"),
    [
        (OPEN_MODULE, CUDA_13, "ok", "NVIDIA 580.95.05"),
        (OLD_MODULE, CUDA_13, "broken", "570.86.15 is older than 580.65, which CUDA 13.0"),
        (OLD_MODULE, CUDA_12, "ok", "NVIDIA 570.86.15"),
        (OLD_MODULE, CPU, "ok", "NVIDIA 570.86.15"),
        (OLD_MODULE, None, "ok", "NVIDIA 570.86.15"),
    ],
)
def test_a_driver_is_compared_with_what_torch_was_built_for(
    tmp_path: Path, module: str, torch: Torch | None, state: str, said: str
) -> None:
    found = host.driver("auto", torch, nvidia(tmp_path, module))
    assert (found.state, said in found.detail) == (state, True), found
    assert ("TORCH_INDEX" in found.remedy) == (state == "broken")


@pytest.mark.parametrize(
    ("vendor", "kind", "remedy"),
    [
        ("0x10de", "0x030200", "NVIDIA's driver"),
        ("0x1002", "0x038000", "amdgpu"),
        ("0x8086", "0x030000", "nothing"),
        ("0x10de", "0x020700", "nothing"),  # a network adapter of the same maker
    ],
)
def test_a_gpu_without_a_driver_is_told_which(tmp_path: Path, vendor: str, kind: str, remedy: str) -> None:
    found = host.driver("auto", CUDA_13, on_the_bus(tmp_path, vendor, kind))
    assert found.state == "missing"
    assert not found.required
    assert remedy in found.remedy


def test_a_container_is_told_to_be_given_the_gpu(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.containerenv").touch()
    assert "--gpus all" in host.driver("auto", CUDA_13, on_the_bus(tmp_path, "0x10de")).remedy


def test_no_driver_is_broken_where_the_settings_ask_for_cuda(tmp_path: Path) -> None:
    found = host.driver("cuda", CUDA_13, tmp_path)
    assert found.state == "broken"
    assert found.required


def test_an_amd_driver_is_one(tmp_path: Path) -> None:
    assert host.driver("auto", ROCM, amd(tmp_path)).state == "ok"


@pytest.mark.parametrize(("torch", "state"), [(CUDA_13, "ok"), (CPU, "broken"), (ROCM, "broken")])
def test_torch_must_be_built_for_the_gpu(tmp_path: Path, torch: Torch, state: str) -> None:
    assert host.torch_fits(torch, nvidia(tmp_path)).state == state


def test_torch_for_cuda_does_not_see_an_amd_gpu(tmp_path: Path) -> None:
    assert host.torch_fits(CUDA_13, amd(tmp_path)).state == "broken"
    assert host.torch_fits(ROCM, tmp_path).state == "ok"


def test_any_torch_will_do_without_a_gpu(tmp_path: Path) -> None:
    assert [host.torch_fits(torch, tmp_path).state for torch in (CUDA_13, CPU, ROCM)] == ["ok"] * 3


def test_the_build_of_torch_is_read_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "version.py").write_text(
        "from typing import Optional\n__all__ = ['__version__']\n__version__ = '2.13.0+cu130'\n"
        "debug = False\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
    )
    monkeypatch.setattr(host, "find_spec", lambda name: _Spec(package / "__init__.py"))
    found = host.torch_build()
    assert found == Torch("2.13.0+cu130", "13.0", None)
    assert str(found) == "2.13.0+cu130, built for CUDA 13.0"


class _Spec:
    def __init__(self, path: Path) -> None:
        self.origin = str(path)


def test_the_installed_torch_is_read_as_it_says_of_itself() -> None:
    import torch

    assert host.torch_build() == Torch(torch.__version__, torch.version.cuda, torch.version.hip)


def test_devices_that_may_not_be_opened_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = amd(tmp_path, "dri/renderD128")
    monkeypatch.setattr(host.os, "access", lambda path, mode: path.name != "kfd")
    found = host.devices(root)
    assert found is not None
    assert found.state == "broken"
    assert "dev/kfd" in found.detail
    assert "renderD128" not in found.detail
    assert "render" in found.remedy


def test_an_amd_gpu_needs_its_render_devices_too(tmp_path: Path) -> None:
    found = host.devices(amd(tmp_path))
    assert found is not None
    assert (found.state, "--device /dev/dri" in found.remedy) == ("broken", True)


def test_devices_that_can_be_opened_are_counted(tmp_path: Path) -> None:
    root = nvidia(tmp_path)
    (root / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0"):
        (root / "dev" / name).touch()
    found = host.devices(root)
    assert found is not None
    assert found.detail == "3 device files can be opened"


def test_a_host_without_a_driver_has_no_devices(tmp_path: Path) -> None:
    assert host.devices(tmp_path) is None


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert [found.state for found in host.compiler() if found.name == "compiler"] == ["broken"]
    monkeypatch.setenv("CC", "cc-that-is-not-there")
    [found] = [found for found in host.compiler() if found.name == "compiler"]
    assert "cc-that-is-not-there" in found.detail


def test_missing_headers_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.sysconfig, "get_path", lambda name: str(tmp_path))
    [found] = [found for found in host.compiler() if found.name == "python-headers"]
    assert (found.state, "-dev" in found.remedy) == ("broken", True)


def test_the_cache_of_kernels_must_be_a_folder_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "new/folder"))
    assert host.triton_cache().state == "ok"
    (tmp_path / "file").touch()
    # /proc takes no folder, not even of root, which may write everywhere else.
    for unwritable in (str(tmp_path / "file"), "/proc/kernels"):
        monkeypatch.setenv("TRITON_CACHE_DIR", unwritable)
        found = host.triton_cache()
        assert (found.state, "cannot be written" in found.detail) == ("broken", True)


def test_the_cache_of_kernels_must_hold_executable_code(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mount:
        f_flag = host.os.ST_NOEXEC

    monkeypatch.setattr(host.os, "statvfs", lambda path: Mount)
    assert "noexec" in host.triton_cache().detail
