"""What this installation has and lacks: facts for `doctor`, and the one condition that stops a start."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path

from app import host
from app.host import Finding
from app.jobs import file_store
from app.neighbours import broker, upstream
from app.settings import Settings, SettingsError, is_loopback, run_allowed, variable
from app.worker.safety import nvml_card, refusal
from kernels.target import Target

FOREIGN = "kernels"
"""A distribution of this name installs a top-level package `kernels`, the same as ours."""

OLDEST_TRITON = (3, 6)

LEAST_SPACE = 1 << 30
"""Bytes of the data folder's disk below which snapshots and results soon have no place."""


class ForeignKernels(Exception):
    """Another distribution's `kernels` package is installed beside ours; one has overwritten the other."""


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
    yield from _jobs(settings.data)
    yield _snapshots(settings.data)
    yield address(settings)
    yield _keys(settings)
    if settings.broker_url:
        yield from broker(settings.broker_url)
    yield from _worker(settings)
    if settings.upstream_python:
        yield upstream(settings.upstream_python, settings.upstream_modules)
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
    version = _installed("faultbook")
    return Finding("environment", "ok", f"faultbook {version}" if version else "run from its own folder")


def _catalog() -> Finding:
    from catalog.store import load_catalog

    try:
        catalog = load_catalog()
    except Exception as error:  # noqa: BLE001 (a broken installation is what doctor is asked about)
        return Finding("catalog", "broken", str(error), "reinstall faultbook")
    return Finding("catalog", "ok", f"{len(catalog.records)} records, dataset {catalog.dataset_version}")


def _jobs(folder: Path) -> Iterator[Finding]:
    """Whether the file of jobs and results, where there is one, can be read by this version."""
    path = folder / file_store.FILE
    if not path.exists():
        return
    if not os.access(path, os.W_OK):
        detail = f"{path} cannot be written: jobs and results would be kept in memory only"
        yield Finding("jobs", "broken", detail, f"give it to the service's user: chown, or chmod u+w {path}")
        return
    remedy = "restore a backup, or move the file away: the service begins a new one"
    try:
        with closing(sqlite3.connect(path, timeout=5)) as base:
            (version,) = base.execute("PRAGMA user_version").fetchone()
            wrong = base.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        yield Finding("jobs", "broken", f"{path}: {error}", remedy)
        return
    if wrong != "ok":
        yield Finding("jobs", "broken", f"{path}: {wrong}", remedy)
    elif version > file_store.VERSION:
        detail = f"{path} was written by a newer Faultbook"
        yield Finding("jobs", "broken", detail, "go back to that version, or restore the backup before it")
    else:
        yield Finding("jobs", "ok", f"{path}, {path.stat().st_size >> 20} MiB")


def _snapshots(folder: Path) -> Finding:
    from catalog.snapshots.manifest import SnapshotError
    from catalog.snapshots.shelf import Shelf

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
        free = shutil.disk_usage(existing).free
    except OSError as error:
        remedy = "set FAULTBOOK_DATA to a folder that can be written"
        return Finding("data", "broken", f"{folder}: {error.strerror}", remedy)
    if free < LEAST_SPACE:
        remedy = "make room, or set FAULTBOOK_DATA to a folder on another disk"
        return Finding("data", "missing", f"{folder}: {free >> 20} MiB are free", remedy, required=False)
    return Finding("data", "ok", f"{folder}, {free >> 30} GiB free")


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


def _keys(settings: Settings) -> Finding:
    """Who may ask: nobody needs a key on loopback, and beyond it without keys nobody may run anything."""
    if settings.has_keys:
        try:
            count = len(settings.keyring())
        except SettingsError as error:
            return Finding("keys", "broken", str(error), "faultbook keys NAME --scope diagnose makes one")
        if count == 0:
            detail = f"{settings.api_keys_file} holds none: nobody is let in"
            return Finding("keys", "broken", detail, "faultbook keys NAME --scope diagnose makes one")
        return Finding("keys", "ok", f"{count}")
    if is_loopback(settings.host):
        return Finding("keys", "ok", f"none needed: {settings.host} is reached from this host alone")
    remedy = "faultbook keys NAME --scope diagnose makes one"
    if settings.open:
        detail = f"none, and {variable('open')}: whoever reaches {settings.host} may run kernels"
        return Finding("keys", "missing", detail, remedy, required=False)
    return Finding("keys", "missing", f"none: {settings.host} is open to other hosts", remedy, required=False)


def _worker(settings: Settings) -> Iterator[Finding]:
    """What level `run` needs on this host."""
    torch = host.torch_build()
    if torch is None:
        remedy = "pip install 'faultbook[worker]'; without it only level checks is served"
        yield Finding("torch", "missing", "not installed", remedy, required=False)
    else:
        yield host.torch_fits(torch)
    yield _triton()
    if settings.device == "cpu":
        yield Finding("gpu", "ok", f"not asked for: {variable('device')} is cpu")
        return
    driver = host.driver(settings.device, torch)
    yield driver
    if driver.state == "missing" or host.vendor() is None:
        return
    found = host.devices()
    if found is not None:
        yield found
    yield _gpu(settings)
    yield from host.compiler()
    yield host.triton_cache()


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


def _gpu(settings: Settings) -> Finding:
    """Which GPUs there are, and whether a run may use one just now, as a worker asks before each run."""
    names = _devices() or "a driver is loaded"
    reason = refusal(nvml_card(), int(settings.gpu_memory_reserve))
    if reason:
        remedy = "until then runs are answered as unsupported; lookups and checks go on"
        return Finding("gpu", "missing", f"{names}; {reason}", remedy, required=settings.device == "cuda")
    return Finding("gpu", "ok", names)


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
    if settings.broker_url and run_allowed(settings):
        return Finding("runs", "ok", "by the hosts that joined the broker")
    if settings.workers == 0:
        return Finding("runs", "missing", "FAULTBOOK_WORKERS is 0", "set it to 1 or more", required=False)
    if not run_allowed(settings):
        detail = f"off: {settings.host} can be reached from other hosts, and there are no keys"
        remedy = f"make keys, or set {variable('open')}=true if anybody may run kernels"
        return Finding("runs", "missing", detail, remedy, required=False)
    if find_spec("torch") is None or find_spec("triton") is None:
        return Finding("runs", "missing", "no worker without torch and triton", "see above", required=False)
    reach = "loopback only" if is_loopback(settings.host) else "by key" if settings.has_keys else "open"
    return Finding("runs", "ok", f"{settings.workers} worker(s), {reach}")
