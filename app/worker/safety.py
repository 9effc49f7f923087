"""Whether a GPU may be used just now: beside an inference server, a fault of ours must stay ours."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from app.worker.nvml import COMPUTE_MODES, Nvml, NvmlError

MPS_FOLDER: Final = "/tmp/nvidia-mps"
"""Where MPS keeps its pipes unless CUDA_MPS_PIPE_DIRECTORY says otherwise."""

MPS_PROCESSES: Final = ("nvidia-cuda-mps", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
"""Names of its processes; the kernel keeps the first 15 characters."""

_CUDA_COMPUTE_MODE: Final = 20
"""CU_DEVICE_ATTRIBUTE_COMPUTE_MODE of cuda.h."""

GIB: Final = 1 << 30


class Card(Protocol):
    """What is asked of a GPU before each run."""

    def compute_mode(self) -> str:
        """One of nvml.COMPUTE_MODES."""

    def memory(self) -> tuple[int, int]:
        """(free, total) in bytes."""

    def mps_clients(self) -> int:
        """Processes that use it through MPS."""


def refusal(card: Card | None, reserve: int, proc: Path = Path("/proc")) -> str:
    """Why nothing may be run on this GPU now; empty where it may. `card` None: only MPS can be told.

    reserve  bytes that stay free for others
    """
    if mps_control(proc):
        return (
            "the GPU is shared through MPS, where a fault of one client ends all others: "
            "stop MPS, or give Faultbook a GPU without it"
        )
    if card is None:
        return ""
    with suppress(NvmlError):  # a slice of a GPU has no such list
        if card.mps_clients():
            return "the GPU has MPS clients, all of which a fault of a run would end"
    mode = "default"
    with suppress(NvmlError):
        mode = card.compute_mode()
    if mode != "default":
        return f"the GPU is in compute mode {mode}: a run would fail, or keep its owner from starting"
    free, total = card.memory()
    if free < reserve:
        return (
            f"{free / GIB:.1f} of {total / GIB:.1f} GiB of the GPU are free and {reserve / GIB:.1f} stay "
            "reserved for others (FAULTBOOK_GPU_MEMORY_RESERVE)"
        )
    return ""


def mps_control(proc: Path = Path("/proc")) -> bool:
    """Whether a CUDA program started now would become a client of MPS: its control pipe is there and, where
    processes of the host can be seen, something serves it.
    """
    folder = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or MPS_FOLDER)
    try:
        if not (folder / "control").exists():
            return False
    except OSError:
        return False
    # In a container the daemon cannot be seen: a pipe that was mounted into it is meant to be used.
    return _contained(proc) or _runs(proc, MPS_PROCESSES)


def _contained(proc: Path) -> bool:
    try:
        return (proc / "1" / "comm").read_text().strip() != "systemd"
    except OSError:
        return True


def _runs(proc: Path, names: tuple[str, ...]) -> bool:
    short = {name[:15] for name in names}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if (folder / "comm").read_text().strip() in short:
                    return True
    return False


class ByDriver:
    """A GPU without NVML, as in some containers: the CUDA driver tells its compute mode, torch its memory.

    `memory` creates a CUDA context, so a worker asks for the mode first.
    """

    def __init__(self, index: int, memory: Callable[[], tuple[int, int]]) -> None:
        self._index = index
        self._memory = memory

    def compute_mode(self) -> str:
        """One of nvml.COMPUTE_MODES; NvmlError where the driver does not tell."""
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise NvmlError(str(error)) from None
        device, mode = ctypes.c_int(), ctypes.c_int()
        if (
            driver.cuInit(0)
            or driver.cuDeviceGet(ctypes.byref(device), self._index)
            or driver.cuDeviceGetAttribute(ctypes.byref(mode), _CUDA_COMPUTE_MODE, device)
        ):
            raise NvmlError("the driver does not tell the compute mode")
        return COMPUTE_MODES[mode.value]

    def memory(self) -> tuple[int, int]:
        """(free, total) in bytes."""
        return self._memory()

    def mps_clients(self) -> int:
        """Not told by the driver."""
        return 0


def choose(place: int) -> None:
    """Make one GPU the only one that CUDA shows to this process: of those it may see, the one whose turn it
    is for worker number `place`. Call it before CUDA is used.
    """
    # CUDA would number the fastest first; NVML, and whoever reads nvidia-smi, go by PCI address.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    seen = _visible()
    if seen:
        os.environ["CUDA_VISIBLE_DEVICES"] = seen[place % len(seen)]


def places() -> int:
    """GPUs that workers of this host can have to themselves: where nobody can say which there are, all use
    the first.
    """
    return max(len(_visible()), 1)


def _visible() -> list[str]:
    """The GPUs that this process may see, as CUDA_VISIBLE_DEVICES names them; none where nobody can say."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [part.strip() for part in given.split(",") if part.strip()]
    try:
        return [str(number) for number in range(len(Nvml().gpus()))]
    except NvmlError:
        return []


def nvml_card() -> Card | None:
    """The GPU that CUDA will show to this process first, by NVML; None without NVML or without a GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    try:
        library = Nvml()
        return library.gpus()[int(visible)] if visible.isdigit() else library.by_uuid(visible)
    except (NvmlError, IndexError):
        return None
