"""Answers calls of upstream's functions, a line of JSON for a line of JSON, in upstream's interpreter.

The first line sets it up; its answer says who this process is. Every further one is a call: a function of an
allowed module, and arguments in their JSON form. No code comes with a call.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import os
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from . import stated, tensors

CONTEXT_LOST = 86
"""Exit status after an error on the device, which every later call of this process would meet too."""

MOST_TOLD = 20_000
"""Characters of a message that are told: a compiler's output has more."""

FRAMES = 8
"""Innermost frames of an exception that are told."""

BUILD_FAILED = "Failed to build JIT module"
COMPILER_ERROR = re.compile(r"\([0-9]+\): (?:catastrophic )?error")
"""The compiler refuses the code itself; any other failed build is for want of a tool or a library."""

UNLAUNCHED = (": CUDA error: ", "0 active drivers")
"""In the words of compiled launchers and of Triton: all that is left is to launch, and nothing can be."""

NO_DRIVER = (
    "Torch not compiled with CUDA enabled",
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
    "no CUDA-capable device is detected",
    "CUDA driver version is insufficient",
    "CUDA error: initialization error",
    "0 active drivers",
    "libcuda.so",
    "PyTorch is not linked with support for",
    "module 'torch._C' has no attribute '_cuda",
    "nvcc not found",
    "Could not find nvcc",
    "Could not find CUDA installation",
    "invalid device ordinal",
)
"""In the words of torch, Triton and tvm-ffi: there is no GPU, driver or compiler here."""


class Refused(Exception):
    """A request that is not for this process."""


def main() -> None:
    """Serve standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what upstream prints must not come between the answers
    sys.stdout = sys.stderr
    guest = Guest(json.loads(sys.stdin.readline()))
    print(json.dumps(guest.hello()), file=answers)
    for line in sys.stdin:
        answer = guest.answer(json.loads(line))
        print(json.dumps(answer), file=answers)
        if answer.get("lost"):
            os._exit(CONTEXT_LOST)


class Guest:
    """One process of upstream's interpreter.

    modules    prefixes of the modules that may be called
    memory     bytes that a call may take: of the GPU, or of address space where there is none
    launches   false: no GPU is used though there is one, and tensors are stated
    """

    def __init__(self, setup: dict[str, Any]) -> None:
        self.modules: list[str] = setup["modules"]
        self.launches = bool(setup["launches"]) and torch.cuda.is_available()
        if self.launches:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, setup["memory"] / total))
        else:
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (setup["address_space"], hard))
            torch.set_num_threads(1)
            stated.allow_devices()
            stated.watch_libraries()
            stated.open_launchers()

    def hello(self) -> dict[str, Any]:
        """Versions, and the device that calls run on."""
        from importlib.metadata import PackageNotFoundError, version

        packages = {}
        for prefix in self.modules:
            with contextlib.suppress(PackageNotFoundError):
                packages[prefix.partition(".")[0]] = version(prefix.partition(".")[0])
        return {
            "python": sys.version.partition(" ")[0],
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "device": torch.cuda.get_device_name() if self.launches else None,
            "packages": packages,
        }

    def answer(self, job: dict[str, Any]) -> dict[str, Any]:
        """What became of a call."""
        folder = Path.cwd()
        own = tempfile.mkdtemp(prefix="faultbook-")
        os.chdir(own)
        try:
            return self._answer(job)
        except Refused as error:
            return {"ending": "unavailable", "detail": str(error)}
        except tensors.Unbuildable as error:
            return {"ending": "unavailable", "detail": str(error)}
        except MemoryError as error:
            return {"ending": "out-of-memory", "detail": str(error)[:500]}
        finally:
            stated.forget()
            os.chdir(folder)
            shutil.rmtree(own, ignore_errors=True)

    def _answer(self, job: dict[str, Any]) -> dict[str, Any]:
        function = self._function(job["module"], job["function"])
        arena = tensors.Arena(job["written"])
        tensor = arena.build if self.launches else stated.stated
        try:
            args = [tensors.build(str(place), form, tensor) for place, form in enumerate(job["args"])]
            kwargs = {name: tensors.build(name, form, tensor) for name, form in job["kwargs"].items()}
        except (RuntimeError, ValueError, AssertionError, torch.OutOfMemoryError) as error:
            if "memory" in str(error).lower():
                return {"ending": "out-of-memory", "detail": str(error)[:500]}
            return {"ending": "unavailable", "detail": f"an argument cannot be built: {_line(error)}"}
        started = time.perf_counter()
        try:
            given = any(isinstance(each, stated.Stated) for each in (*args, *kwargs.values()))
            if self.launches or not (given or job.get("states")):
                returned = function(*args, **kwargs)
                if self.launches:
                    torch.cuda.synchronize()
            else:
                with _stating(job["target"]):
                    returned = function(*args, **kwargs)
        except torch.OutOfMemoryError as error:
            return {"ending": "out-of-memory", "detail": str(error)[:500]}
        except Exception as error:  # noqa: BLE001 (whatever upstream raises is the answer)
            return self._failed(error)
        milliseconds = (time.perf_counter() - started) * 1e3
        if not self.launches and any(isinstance(each, stated.Stated) for each in stated._tensors(returned)):
            return {"ending": "unlaunched", "detail": "it returned; no kernel ran, for there is no GPU"}
        kept = {}
        if job.get("keep"):
            written = {name: kwargs[name] for name in job["written"] if name in kwargs}
            kept = {
                "returned": _kept(returned),
                "written": {name: _kept(each) for name, each in written.items()},
            }
        return {
            "ending": "returned",
            **kept,
            "outside": arena.breaches(),
            "milliseconds": milliseconds,
            "outputs": [
                _summary(each) for each in stated._tensors(returned) if isinstance(each, torch.Tensor)
            ],
        }

    def _function(self, module: str, name: str) -> Any:
        if not any(module == prefix or module.startswith(prefix + ".") for prefix in self.modules):
            raise Refused(f"{module} is none of the modules that may be called")
        try:
            return getattr(importlib.import_module(module), name)
        except Exception as error:
            raise Refused(f"{module}.{name} cannot be imported here: {_line(error)}") from error

    def _failed(self, error: Exception) -> dict[str, Any]:
        text = str(error)
        if isinstance(error, ImportError):
            return {"ending": "unavailable", "detail": f"a package is missing here: {_line(error)}"}
        if not self.launches and any(sentence in text for sentence in UNLAUNCHED):
            return {"ending": "unlaunched", "detail": "its checks pass; no kernel ran, for there is no GPU"}
        unbuilt = BUILD_FAILED in text and COMPILER_ERROR.search(text) is None
        if unbuilt or any(sentence in text for sentence in NO_DRIVER):
            return {"ending": "unavailable", "detail": _line(error)}
        told = {
            "ending": "raised",
            "class": _name(type(error)),
            "message": text[:MOST_TOLD],
            "frames": [[frame.filename, frame.lineno, frame.name] for frame in _frames(error)],
        }
        if self.launches:
            try:
                torch.cuda.synchronize()
            except RuntimeError as lost:
                return {"ending": "crashed", "lost": True, "detail": _line(lost)}
        return told


@contextlib.contextmanager
def _stating(capability: list[int]) -> Iterator[None]:
    """State tensors and a GPU of this architecture; sglang's compiled launchers are those for it."""
    stated.state_gpu(capability)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError):
            from sglang.kernels.jit.utils import override_jit_cuda_arch  # type: ignore[import-not-found]

            stack.enter_context(override_jit_cuda_arch(*capability))
        stack.enter_context(stated.Stating())  # type: ignore[no-untyped-call]
        yield


def _summary(tensor: torch.Tensor) -> dict[str, Any]:
    """Form of a returned tensor, and how many of its elements are no numbers, or zero."""
    values = tensor.view(torch.uint8) if tensor.dtype is torch.float8_e8m0fnu else tensor
    wide = values.detach().to(torch.float32)
    return {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype)[6:],
        "nonFinite": int((~wide.isfinite()).sum()),
        "zeros": int((wide == 0).sum()),
    }


def _kept(value: Any) -> Any:
    """What was returned, with every tensor's elements as bytes in base64."""
    if isinstance(value, torch.Tensor):
        dense = torch.empty(value.shape, dtype=value.dtype)
        data = dense.copy_(value).reshape(-1).view(torch.uint8).numpy().tobytes()
        encoded = base64.b64encode(data).decode()
        return {"shape": list(value.shape), "dtype": str(value.dtype)[6:], "data": encoded}
    return [_kept(each) for each in value] if isinstance(value, (tuple, list)) else None


def _frames(error: BaseException) -> list[Any]:
    return list(traceback.extract_tb(error.__traceback__))[-FRAMES:]


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _line(error: BaseException) -> str:
    """Class and first line."""
    return f"{type(error).__name__}: {error}".partition("\n")[0][:500]
