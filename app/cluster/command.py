"""`faultbook worker`: this host joins the broker's cluster with each of its GPUs, or with its CPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from types import FrameType
from typing import Annotated

import typer

from app.terminal import Exit, complain, usage

AGAIN = 5.0
"""Seconds after which a GPU's process that ended by itself is started again."""

_MODULE = ("-m", "app.cluster.node")


def worker(
    gpus: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="GPUs to work with, from the first; default: all that are visible."),
    ] = None,
) -> None:
    """Join a cluster: run what services put into the broker's queue for this host's architecture."""
    from app.environment import ForeignKernels, refuse_foreign_kernels
    from app.settings import SettingsError, load

    try:
        refuse_foreign_kernels()
        settings = load()
    except (ForeignKernels, SettingsError) as error:
        usage(str(error))
    if not settings.broker_url:
        usage("FAULTBOOK_BROKER_URL is not set: it names the Redis that this host is to join")
    if find_spec("celery") is None or find_spec("redis") is None:
        complain("celery and redis are not installed: pip install 'faultbook[cluster]'")
        raise typer.Exit(Exit.UNSUPPORTED)
    places = _places(settings.device)[:gpus]
    if len(places) > 1:
        raise typer.Exit(_supervise(places))
    if places:
        os.environ["CUDA_VISIBLE_DEVICES"] = places[0]
    # In place: signals reach it, and its end is the command's.
    os.execv(sys.executable, [sys.executable, *_MODULE])


def _places(device: str) -> list[str]:
    """The GPUs of this host as CUDA_VISIBLE_DEVICES names them; none where the CPU works."""
    if device == "cpu":
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    # torch is asked in another process: what it opens of a driver stays out of this one.
    code = "import torch; print(torch.cuda.device_count())"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    count = asked.stdout.strip()
    return [str(index) for index in range(int(count))] if count.isdigit() else []


def _supervise(places: Sequence[str]) -> int:
    """One process for each GPU until a signal ends them; one that ends by itself is started again, one that
    cannot work is left out. The exit code of the last to go.
    """
    leaving = False

    def leave(_number: int, _frame: FrameType | None) -> None:
        nonlocal leaving
        leaving = True
        for child in running.values():
            child.terminate()

    running = {place: _start(place) for place in places}
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    code = Exit.OK
    while running:
        time.sleep(0.2)
        for place, child in list(running.items()):
            status = child.poll()
            if status is None:
                continue
            del running[place]
            if status == Exit.UNSUPPORTED:
                code = Exit.UNSUPPORTED
            elif not leaving:
                complain(f"the process of GPU {place} ended with {status} and is started again")
                time.sleep(AGAIN)
                if not leaving:
                    running[place] = _start(place)
    return Exit.OK if leaving else code


def _start(place: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": place}
    return subprocess.Popen([sys.executable, *_MODULE], env=environment)
