"""Inside a worker process: choose the device once, then run jobs one after another."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from app.worker import groups, safety
from app.worker.gpu import WorkerGpu
from app.worker.messages import Device, Environment, Job, Outcome, Raised, Worker, written_out
from kernels.call import Call
from kernels.checking import Severity
from kernels.registry import Operation, folder_of, operations

CONTEXT_LOST = 86
"""Exit status of a worker whose CUDA context a job has broken; everything after it would fail."""

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent ends."""

_state: dict[str, Any] = {}


class Unprepared(RuntimeError):
    """This process cannot run operations; the message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker works.

    choice   auto, cpu or cuda
    number   of the worker: which of several GPUs is its own
    memory   address space of a CPU worker, bytes
    reserve  memory of a GPU that stays free for others, bytes
    groups   folder in which workers say who they are; see `groups`
    """

    choice: str
    number: int
    memory: int
    reserve: int
    groups: str = ""


def initialise(place: Place) -> None:
    """Prepare this process. A failure is kept and told by `hello`: raised here it would break the pool
    without a word.
    """
    # A run that overruns sits in native code: only the default action ends it at once.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _end_with_parent()
    try:
        groups.lead(place.groups)
        _state["device"] = _prepare(place)
    except Exception as error:  # noqa: BLE001 (whatever it is, `hello` reports it)
        _state["failure"] = str(error) or type(error).__name__


def _end_with_parent() -> None:
    """Have the kernel kill this process when the fork server goes, and that go when the service is killed.

    The fork server waits for the last process that could ask it for another, and each of its own could: a
    run without end would keep it, and itself, beyond a service that was killed.
    """
    server: Any = vars(forkserver)["_forkserver"]
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def hello() -> Worker:
    """Who this worker is; raises Unprepared where it cannot work."""
    if "failure" in _state:
        raise Unprepared(_state["failure"])
    return Worker(_device(None), _environment())


def _prepare(place: Place) -> str:
    """Choose the device and import every operation; on a CPU Triton's interpreter is corrected and must pass
    its self-test.
    """
    if place.choice != "cpu":
        safety.choose(place.number)
        gpu = WorkerGpu(place.reserve)
        if gpu.there():
            _state["gpu"] = gpu
            _import_operations()
            if not gpu.refusal():
                gpu.warm()
            return "cuda"
    if place.choice == "cuda":
        raise Unprepared("FAULTBOOK_DEVICE is cuda and torch sees no CUDA device")
    _prepare_cpu()
    resource.setrlimit(resource.RLIMIT_AS, (place.memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
    return "cpu"


def preload_cpu() -> None:
    """Prepare the fork server of CPU workers, whose processes then start prepared. A failure is told by the
    worker, which fails in the same way.
    """
    with suppress(Exception):
        _prepare_cpu()


@cache
def _prepare_cpu() -> None:
    """Correct Triton's interpreter, test it, and import every operation; once, in this process or before it
    was forked.
    """
    import torch

    from kernels import interpreter

    # Workers share the host with the service: one thread each keeps it responsive. A thread of torch's would
    # not outlive the fork either.
    torch.set_num_threads(1)
    interpreter.prepare()
    interpreter.self_test()
    _import_operations()


def _import_operations() -> None:
    for operation in operations().values():
        import_module(f"kernels.{folder_of(operation)}.op")


def run(job: Job) -> Outcome:
    """Run one job: the guarded function on fresh tensors, then the reference on equal ones."""
    if "failure" in _state:
        raise Unprepared(_state["failure"])
    gpu: WorkerGpu | None = _state.get("gpu")
    refused = gpu.refusal() if gpu is not None else ""
    if refused:
        return Outcome(
            "unsupported", device=_device(job.call), environment=_environment(), detail=f"not run: {refused}"
        )
    operation = operations()[job.operation]
    runner = import_module(f"kernels.{folder_of(operation)}.op").RUNNERS[job.operation]
    common = {
        "device": _device(job.call),
        "implementation": runner.implementation,
        "environment": _environment(),
    }
    try:
        with gpu.turn() if gpu is not None else nullcontext():
            outcome = _run(operation, runner, job, common)
    except MemoryError as error:
        outcome = Outcome("out-of-memory", detail=str(error)[:500], **common)
    except Exception as error:  # noqa: BLE001 (as a result it needs no torch to be read)
        outcome = _raised(error, common)
    if gpu is not None:
        _leave_if_context_lost(gpu)
    return outcome


def _run(operation: Operation, runner: Any, job: Job, common: dict[str, Any]) -> Outcome:
    import torch

    from app.worker.measuring import measure

    common["drawn"], refused = _told_by_draws(operation, job)
    if refused and not job.faulting:
        return Outcome("unsupported", detail=f"not run: {refused}", **common)
    try:
        found = measure(
            operation,
            runner,
            job.call,
            lambda: _build(operation, runner, job),
            lambda arguments: _emulated(job.call, arguments),
            cuda=_state["device"] == "cuda",
        )
    except torch.OutOfMemoryError as error:
        return Outcome("out-of-memory", detail=str(error)[:500], **common)
    except RuntimeError as error:
        if "can't allocate memory" in str(error) or "not enough memory" in str(error):
            return Outcome("out-of-memory", detail=str(error)[:500], **common)
        return _raised(error, common)
    except Exception as error:  # noqa: BLE001 (whatever the operation raises is the result)
        return _raised(error, common)
    return Outcome(
        "returned",
        milliseconds=found.milliseconds,
        outputs=found.outputs,
        breaches=found.breaches,
        detail="; ".join((*found.breaches, *found.remarks)),
        **common,
    )


def _told_by_draws(operation: Operation, job: Job) -> tuple[dict[str, tuple[float | int | bool, ...]], str]:
    """Elements that are drawn, where the checks say more with them than without, and why a call with them
    must not be run.
    """
    from kernels.drawing import drawn

    call = seeded_call(job.call, job.seed)
    elements = drawn(call)
    if not elements:
        return {}, ""
    before, after = operation.examine(call), operation.examine(written_out(call, elements))
    known = {outcome.check for outcome in before.failed()}
    if {outcome.check for outcome in after.failed()} == known:
        return {}, ""
    if before.rejected or not after.rejected or after.raised is not None:
        return elements, ""
    failed = next(each.check.id() for each in after.failed() if each.check.severity is Severity.ERROR)
    return elements, f"what is drawn fails a check of ours that upstream does not make, {failed}"


def _raised(error: Exception, common: dict[str, Any]) -> Outcome:
    violation = getattr(error, "violation", None)
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    text = str(error)
    if violation is None:
        # torch appends its own C++ frames, which say nothing to the caller.
        text = text.partition("\nException raised from ")[0][:2000]
    raised = Raised(name, text, None if violation is None else type(violation).id())
    return Outcome("raised", raised=raised, **common)


def _build(operation: Operation, runner: Any, job: Job) -> dict[str, Any]:
    from kernels.running import materialise
    from kernels.values import seeded

    fill = seeded(operation.fill(job.call), job.seed)
    call = seeded_call(job.call, job.seed)
    build = runner.build or materialise
    arguments: dict[str, Any] = build(call, fill, _state["device"])
    return arguments


def seeded_call(call: Call, seed: int) -> Call:
    """The call with `seed` given to described values that name none."""
    from dataclasses import replace

    from kernels.values import seeded

    described = {name: tensor.values for name, tensor in call.tensors() if tensor.values is not None}
    return call.replace(
        **{
            name: replace(getattr(call, name), values=values)
            for name, values in seeded(described, seed).items()
        }
    )


def _emulated(call: Call, arguments: dict[str, Any]) -> Any:
    """State the devices and the target of the call; every tensor is really on this worker's device."""
    from kernels.live import stated_devices

    devices = {id(arguments[name]): tensor.device_index for name, tensor in call.tensors()}
    return stated_devices(devices, call.target)


def _device(call: Call | None) -> Device:
    stated = {tensor.device_type for _, tensor in call.tensors()} if call else set()
    emulated = bool(stated - {_state["device"]})
    if "gpu" in _state:
        name, capability = _state["gpu"].described()
        return Device(name, capability, emulated)
    return Device("cpu", None, emulated)


def _environment() -> Environment:
    import torch
    import triton

    # torch's version is of a class of its own, which whoever reads the answer would import torch for.
    return Environment(str(torch.__version__), triton.__version__, torch.version.cuda, _driver())


def _driver() -> str | None:
    """The NVIDIA driver's version, from the kernel module's own file."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").partition("\n")[0].split()
    except OSError:
        return None
    return next((word for word in words if word.count(".") >= 1 and word.replace(".", "").isdigit()), None)


def _synchronise() -> None:
    if _state["device"] == "cuda":
        import torch

        torch.cuda.synchronize()


def _leave_if_context_lost(gpu: WorkerGpu) -> None:
    """Asked after every run, whatever its outcome: an error of a kernel may show only now, and stays."""
    try:
        gpu.release()
    except RuntimeError as error:
        sys.stderr.write(f"worker: {error}\n")
        sys.stderr.flush()
        os._exit(CONTEXT_LOST)
