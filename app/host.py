"""What `doctor` finds of the host: driver, devices, torch's build, compiler, caches. torch is not imported.

Each function takes the file system's root, so that tests describe a host as a folder.
"""

from __future__ import annotations

import ast
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

ROOT = Path("/")

LEAST_DRIVER = {11: (450, 80), 12: (525, 60), 13: (580, 65)}
"""The oldest driver that runs each major version of CUDA, whatever its minor one (CUDA's release notes, minor
version compatibility).
"""

DISPLAY_CLASS = "0x03"
"""PCI class of display controllers, which GPUs without a display are too."""

VENDORS: dict[str, Literal["NVIDIA", "AMD"]] = {"0x10de": "NVIDIA", "0x1002": "AMD"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about the host; `remedy` says how to get what is missing."""

    name: str
    state: Literal["ok", "missing", "broken"]
    detail: str
    remedy: str = ""
    required: bool = True


@dataclass(frozen=True, slots=True)
class Torch:
    """The torch that is installed, as its own version file states it."""

    version: str
    cuda: str | None
    hip: str | None

    def __str__(self) -> str:
        if self.cuda:
            return f"{self.version}, built for CUDA {self.cuda}"
        return f"{self.version}, built for ROCm {self.hip}" if self.hip else f"{self.version}, built for CPUs"


def torch_build() -> Torch | None:
    """Read torch/version.py as text: importing torch takes seconds, and it may be what is broken."""
    try:
        found = find_spec("torch")
    except (ImportError, ValueError):
        return None
    if found is None or found.origin is None:
        return None
    stated: dict[str, str | None] = {}
    try:
        tree = ast.parse((Path(found.origin).parent / "version.py").read_bytes())
    except (OSError, SyntaxError):
        return None
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            stated[target.id] = value.value if isinstance(value.value, str) else None
    return Torch(stated.get("__version__") or "unknown", stated.get("cuda"), stated.get("hip"))


def vendor(root: Path = ROOT) -> Literal["NVIDIA", "AMD"] | None:
    """Whose driver is loaded."""
    if (root / "proc/driver/nvidia/version").exists() or (root / "dev/dxg").exists():
        return "NVIDIA"
    return "AMD" if (root / "dev/kfd").exists() else None


def driver(device: str, torch: Torch | None, root: Path = ROOT) -> Finding:
    """Whether there is a driver, and one that is new enough for the installed torch."""
    loaded = vendor(root)
    if loaded is None:
        return _no_driver(device, root)
    if loaded == "AMD":
        return Finding("driver", "ok", "amdgpu")
    try:
        # NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 …
        first = (root / "proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return Finding("driver", "ok", "NVIDIA, of the Windows host")
    words = first.split("Module", 1)[-1].replace("for x86_64", "").replace("for aarch64", "").split()
    version = next((word for word in words if word[:1].isdigit()), "")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    cuda = torch.cuda if torch is not None else None
    least = LEAST_DRIVER.get(int(cuda.split(".")[0])) if cuda else None
    if numbers and least is not None and numbers < least:
        needed = ".".join(map(str, least))
        return Finding(
            "driver",
            "broken",
            f"NVIDIA {version} is older than {needed}, which CUDA {cuda} of the installed torch needs",
            f"update the driver to {needed} or newer, or take a torch for an older CUDA (TORCH_INDEX)",
        )
    return Finding("driver", "ok", f"NVIDIA {version or first}")


def _no_driver(device: str, root: Path) -> Finding:
    present = _on_the_bus(root)
    if _in_container(root):
        remedy = "give the container the GPU: --gpus all, or --device /dev/kfd --device /dev/dri"
    elif present == "AMD":
        remedy = "install AMD's amdgpu driver with ROCm's kernel module, and load it: modprobe amdgpu"
    elif present == "NVIDIA":
        remedy = "install NVIDIA's driver (nouveau does not run CUDA), and load it: modprobe nvidia"
    else:
        remedy = "nothing, unless there should be a GPU: then install its driver"
    what = f"none, though an {present} GPU is on the bus" if present else "none, and no GPU on the bus"
    if device == "cuda":
        return Finding("driver", "broken", f"{what}; FAULTBOOK_DEVICE is cuda, so runs are refused", remedy)
    detail = f"{what}: operations run in Triton's interpreter on the CPU"
    return Finding("driver", "missing", detail, remedy, required=False)


def _on_the_bus(root: Path) -> Literal["NVIDIA", "AMD"] | None:
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        try:
            kind, maker = (device / "class").read_text(), (device / "vendor").read_text().strip()
        except OSError:
            continue
        if kind.startswith(DISPLAY_CLASS) and maker in VENDORS:
            return VENDORS[maker]
    return None


def _in_container(root: Path) -> bool:
    return (root / ".dockerenv").exists() or (root / "run/.containerenv").exists()


def devices(root: Path = ROOT) -> Finding | None:
    """Whether this user may open the GPU's device files; None where no driver is loaded or it has none."""
    loaded = vendor(root)
    names = {
        "NVIDIA": ("nvidiactl", "nvidia-uvm", "nvidia[0-9]*"),
        "AMD": ("kfd", "dri/renderD*"),
        None: (),
    }[loaded]
    files = [file for name in names for file in sorted((root / "dev").glob(name))]
    closed = [str(file) for file in files if not os.access(file, os.R_OK | os.W_OK)]
    if loaded == "AMD" and not any(file.name.startswith("renderD") for file in files):
        remedy = "give the container the devices: --device /dev/dri"
        return Finding("devices", "broken", "/dev/kfd without /dev/dri", remedy)
    if closed:
        remedy = (
            "add the user to the devices' group, mostly render and video (docker: --group-add)"
            if loaded == "AMD"
            else "let the user read and write them; the driver's option NVreg_DeviceFileMode sets it"
        )
        return Finding("devices", "broken", f"no permission for {', '.join(closed)}", remedy)
    if not files:
        return None
    return Finding("devices", "ok", f"{len(files)} device files can be opened")


def torch_fits(torch: Torch, root: Path = ROOT) -> Finding:
    """Whether the installed torch is one for this host's GPU."""
    loaded = vendor(root)
    if (loaded == "NVIDIA" and torch.cuda is None) or (loaded == "AMD" and torch.hip is None):
        wanted = "CUDA" if loaded == "NVIDIA" else "ROCm"
        return Finding(
            "torch",
            "broken",
            f"{torch}: it does not see this host's {loaded} GPU",
            f"make distclean setup TORCH_INDEX=<an index of torch's {wanted} builds>",
        )
    return Finding("torch", "ok", str(torch))


def compiler() -> Iterator[Finding]:
    """What Triton compiles its launchers with the first time a kernel runs on a GPU."""
    found = os.environ.get("CC") or next(filter(None, map(shutil.which, ("gcc", "clang", "cc"))), None)
    if found is None or shutil.which(found) is None:
        named = f"CC is {found}, which is not there" if found else "no C compiler"
        remedy = "apt-get install gcc libc6-dev: Triton compiles its launchers with it"
        yield Finding("compiler", "broken", named, remedy)
    else:
        yield Finding("compiler", "ok", found)
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        remedy = f"apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-dev"
        yield Finding("python-headers", "broken", f"no {header}", remedy)


def triton_cache() -> Finding:
    """Whether compiled kernels can be kept, and be run from where they are kept."""
    stated = os.environ.get("TRITON_CACHE_DIR")
    folder = Path(stated) if stated else Path.home() / ".triton" / "cache"
    existing = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    remedy = "set TRITON_CACHE_DIR to a folder that can be written and may hold executable code"
    try:
        flags = os.statvfs(existing).f_flag
    except OSError as error:
        return Finding("triton-cache", "broken", f"{folder}: {error.strerror}", remedy)
    try:
        # Tried, not asked: root passes every permission, and still cannot write a read-only file system.
        TemporaryDirectory(dir=existing).cleanup()
    except OSError as error:
        return Finding("triton-cache", "broken", f"{folder}: cannot be written: {error.strerror}", remedy)
    if flags & getattr(os, "ST_NOEXEC", 0):
        return Finding("triton-cache", "broken", f"{folder}: its file system is mounted noexec", remedy)
    return Finding("triton-cache", "ok", str(folder))
