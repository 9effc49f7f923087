"""What this installation has and lacks: facts for `doctor`, and the one condition that stops a start."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from app.settings import Settings, is_loopback, run_allowed
from kernels.target import Target

FOREIGN = "kernels"
"""A distribution of this name installs a top-level package `kernels`, the same as ours."""

OLDEST_TRITON = (3, 6)


class ForeignKernels(Exception):
    """Another distribution's `kernels` package is installed beside ours; one has overwritten the other."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about the host; `remedy` says how to get what is missing."""

    name: str
    state: Literal["ok", "missing", "broken"]
    detail: str
    remedy: str = ""
    required: bool = True


def refuse_foreign_kernels() -> None:
    """Raise ForeignKernels where our kernels package may have been overwritten."""
    found = _installed(FOREIGN)
    if found is not None:
        raise ForeignKernels(
            f"the distribution kernels {found} is installed in this environment and shares our package name "
            "`kernels`: give Faultbook an environment of its own"
        )


def findings(settings: Settings) -> Iterator[Finding]:
    """Everything `doctor` reports, in the order in which it matters."""
    yield Finding("python", "ok", platform.python_version())
    yield _own_environment()
    yield _catalog()
    yield _data_folder(settings.data)
    yield _snapshots(settings.data)
    yield address(settings)
    yield _torch()
    yield _triton()
    yield from _gpu(settings.device)
    yield _runs(settings)


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _own_environment() -> Finding:
    try:
        refuse_foreign_kernels()
    except ForeignKernels as error:
        return Finding(
            "environment", "broken", str(error), "python -m venv .venv, and install faultbook there"
        )
    return Finding("environment", "ok", f"faultbook {importlib.metadata.version('faultbook')}")


def _catalog() -> Finding:
    from catalog.store import load_catalog

    try:
        catalog = load_catalog()
    except Exception as error:  # noqa: BLE001 (a broken installation is what doctor is asked about)
        return Finding("catalog", "broken", str(error), "reinstall faultbook")
    return Finding("catalog", "ok", f"{len(catalog.records)} records, dataset {catalog.dataset_version}")


def _snapshots(folder: Path) -> Finding:
    from catalog.snapshots.shelf import Shelf
    from catalog.snapshots.snapshot import SnapshotError

    shelf = Shelf(folder)
    try:
        held = shelf.held()
    except SnapshotError as error:
        return Finding("snapshots", "broken", str(error), "faultbook index PACKAGE…", required=False)
    wrong = [problem for item in held if (problem := shelf.verify(item)) is not None]
    if wrong:
        return Finding("snapshots", "broken", "; ".join(wrong), "faultbook index PACKAGE…", required=False)
    if not held:
        detail = "none: only the curated records are known"
        return Finding("snapshots", "missing", detail, "faultbook index PACKAGE…", required=False)
    names = ", ".join(f"{item.package} {item.version}" for item in held)
    return Finding("snapshots", "ok", f"{sum(item.records for item in held)} records: {names}")


def _data_folder(folder: Path) -> Finding:
    existing = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        remedy = "set FAULTBOOK_DATA to a folder that can be written"
        return Finding("data", "broken", f"{folder}: {error.strerror}", remedy)
    return Finding("data", "ok", str(folder))


def address(settings: Settings) -> Finding:
    """Whether the service can listen where its settings say."""
    place = f"{settings.host}:{settings.port}"
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host.strip("[]"), settings.port))
        except OSError as error:
            if is_loopback(settings.host) and _faultbook_answers(settings.host, settings.port):
                detail = f"{place}: a Faultbook already serves there"
            else:
                detail = f"{place}: {error.strerror}"
            remedy = "stop what listens there, or choose another with FAULTBOOK_PORT or --port"
            return Finding("address", "missing", detail, remedy, required=False)
    return Finding("address", "ok", f"{place} is free")


def _faultbook_answers(host: str, port: int) -> bool:
    connection = HTTPConnection(host.strip("[]"), port, timeout=2)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().read(200) == b'{"status":"alive"}'
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _torch() -> Finding:
    version = _installed("torch")
    if version is None:
        remedy = "pip install 'faultbook[worker]'; without it only level checks is served"
        return Finding("torch", "missing", "not installed", remedy, required=False)
    return Finding("torch", "ok", version)


def _triton() -> Finding:
    version = _installed("triton")
    if version is None:
        remedy = "pip install 'faultbook[worker]'; without it only level checks is served"
        return Finding("triton", "missing", "not installed", remedy, required=False)
    known = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if known < OLDEST_TRITON:
        return Finding(
            "triton", "broken", f"{version} is older than 3.6", "pip install 'triton>=3.6'", required=False
        )
    return Finding("triton", "ok", version)


def _gpu(device: str) -> Iterator[Finding]:
    """The driver's own files say whether there is a GPU; torch is not imported for it."""
    if not Path("/proc/driver/nvidia/version").exists() and not Path("/dev/kfd").exists():
        remedy = "install the GPU's driver; in a container, give it the GPU (docker run --gpus all)"
        if device == "cuda":
            yield Finding(
                "gpu", "broken", "none visible, and FAULTBOOK_DEVICE is cuda: runs are refused", remedy
            )
        else:
            detail = "none visible: operations run in Triton's interpreter on the CPU"
            yield Finding("gpu", "missing", detail, remedy, required=False)
        return
    yield Finding("gpu", "ok", _devices() or "a driver is loaded")
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        remedy = "install gcc: Triton compiles its launchers with it"
        yield Finding("compiler", "missing", "no C compiler", remedy, required=False)
    else:
        yield Finding("compiler", "ok", compiler)


def _devices() -> str:
    """The GPUs and their architectures, as the driver's own tool lists them; empty where it does not."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    query = [tool, "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return _architectures(listed)


def _architectures(listed: str) -> str:
    """Lines of "name, capability" as one sentence part: what a run's checks take for their target."""
    devices = [line.rpartition(", ") for line in listed.splitlines() if ", " in line]
    shown = [f"{name} (target {Target.of_capability(capability)})" for name, _, capability in devices]
    return ", ".join(shown)


def _runs(settings: Settings) -> Finding:
    if settings.workers == 0:
        return Finding("runs", "missing", "FAULTBOOK_WORKERS is 0", "set it to 1 or more", required=False)
    if not run_allowed(settings):
        detail = f"off: {settings.host} can be reached from other hosts"
        return Finding("runs", "missing", detail, "set FAULTBOOK_OPEN=true if that is meant", required=False)
    if find_spec("torch") is None or find_spec("triton") is None:
        return Finding("runs", "missing", "no worker without torch and triton", "see above", required=False)
    reach = "loopback only" if is_loopback(settings.host) else "open"
    return Finding("runs", "ok", f"{settings.workers} worker(s), {reach}")
