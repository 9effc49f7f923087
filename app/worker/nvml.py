"""What NVIDIA's management library says of a GPU, read without a CUDA context: beside a server that owns the
GPU exclusively, or under MPS, even creating one does harm.

The library comes with the driver; it is called through ctypes, by its C header `nvml.h`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

LIBRARY = "libnvidia-ml.so.1"

COMPUTE_MODES = ("default", "exclusive-thread", "prohibited", "exclusive-process")
"""nvmlComputeMode_t by its values."""

XID_EVENT = 0x8
"""nvmlEventTypeXidCriticalError."""

_TIMED_OUT = 10
_INSUFFICIENT_SIZE = 7
_NAME_BYTES = 96
_PCI_BYTES = 32


class NvmlError(OSError):
    """The library is not there, or a call failed; the message names the call and its status."""


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Pci(ctypes.Structure):
    """nvmlPciInfo_t."""

    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * _PCI_BYTES),
    )


class _Event(ctypes.Structure):
    """nvmlEventData_t."""

    _fields_ = (
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one slice of one, by its handle."""

    library: Nvml = field(repr=False)
    handle: ctypes.c_void_p = field(repr=False)

    @cached_property
    def name(self) -> str:
        """Such as "NVIDIA H200"."""
        text = ctypes.create_string_buffer(_NAME_BYTES)
        self.library.call("nvmlDeviceGetName", self.handle, text, ctypes.c_uint(_NAME_BYTES))
        return text.value.decode("utf-8", "replace")

    @cached_property
    def capability(self) -> str:
        """Compute capability, such as "9.0"."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.call(
            "nvmlDeviceGetCudaComputeCapability", self.handle, ctypes.byref(major), ctypes.byref(minor)
        )
        return f"{major.value}.{minor.value}"

    @cached_property
    def bus_id(self) -> str:
        """Its PCI address as the driver's messages write it, such as "0000:0f:00"."""
        info = _Pci()
        self.library.call("nvmlDeviceGetPciInfo_v3", self.handle, ctypes.byref(info))
        return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}"

    def compute_mode(self) -> str:
        """One of COMPUTE_MODES."""
        mode = ctypes.c_int()
        self.library.call("nvmlDeviceGetComputeMode", self.handle, ctypes.byref(mode))
        return COMPUTE_MODES[mode.value]

    def memory(self) -> tuple[int, int]:
        """(free, total) in bytes."""
        found = _Memory()
        self.library.call("nvmlDeviceGetMemoryInfo", self.handle, ctypes.byref(found))
        return found.free, found.total

    def mps_clients(self) -> int:
        """Processes that use the GPU through an MPS server."""
        count = ctypes.c_uint(0)
        status = self.library.status(
            "nvmlDeviceGetMPSComputeRunningProcesses_v3", self.handle, ctypes.byref(count), None
        )
        if status not in (0, _INSUFFICIENT_SIZE):
            raise NvmlError(f"nvmlDeviceGetMPSComputeRunningProcesses_v3: {status}")
        return count.value


class Nvml:
    """The library, initialised; NvmlError where there is none."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise NvmlError(f"{LIBRARY}: {error}") from None
        self.call("nvmlInit_v2")

    def status(self, function: str, *arguments: Any) -> int:
        """Call a function; its status, 0 for success."""
        try:
            found: int = getattr(self._library, function)(*arguments)
        except AttributeError:
            raise NvmlError(f"this driver has no {function}") from None
        return found

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function that must succeed."""
        status = self.status(function, *arguments)
        if status:
            raise NvmlError(f"{function}: {status}")

    def gpus(self) -> list[Gpu]:
        """All GPUs, in the order of their PCI addresses."""
        count = ctypes.c_uint()
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [self._gpu("nvmlDeviceGetHandleByIndex_v2", number) for number in range(count.value)]

    def by_uuid(self, uuid: str) -> Gpu:
        """The GPU, or slice of one, that CUDA_VISIBLE_DEVICES names by "GPU-…" or "MIG-…"."""
        return self._gpu("nvmlDeviceGetHandleByUUID", uuid.encode())

    def _gpu(self, function: str, argument: int | bytes) -> Gpu:
        handle = ctypes.c_void_p()
        self.call(function, argument, ctypes.byref(handle))
        return Gpu(self, handle)

    @contextmanager
    def xids(self, gpus: list[Gpu]) -> Iterator[Iterator[tuple[str, int] | None]]:
        """(PCI address, Xid) of each error the driver reports from now on; None each second without one."""
        events = ctypes.c_void_p()
        self.call("nvmlEventSetCreate", ctypes.byref(events))
        addresses = {gpu.handle.value: gpu.bus_id for gpu in gpus}
        try:
            for gpu in gpus:
                self.call("nvmlDeviceRegisterEvents", gpu.handle, ctypes.c_ulonglong(XID_EVENT), events)
            yield self._events(events, addresses)
        finally:
            self.call("nvmlEventSetFree", events)

    def _events(
        self, events: ctypes.c_void_p, addresses: dict[int | None, str]
    ) -> Iterator[tuple[str, int] | None]:
        while True:
            event = _Event()
            status = self.status("nvmlEventSetWait_v2", events, ctypes.byref(event), ctypes.c_uint(1000))
            if status == _TIMED_OUT:
                yield None
            elif status:
                raise NvmlError(f"nvmlEventSetWait_v2: {status}")
            else:
                yield addresses.get(event.device, "unknown"), int(event.data)
