"""The hazards themselves; those of a GPU are kernels in PTX, launched in torch's own context."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from kernels.running import Runner, Tolerance

PTX = rb"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry illegal(.param .u64 p) {
  .reg .u64 %a; .reg .u32 %v;
  mov.u64 %a, 4096;
  mov.u32 %v, 1;
  st.global.u32 [%a], %v;
  ret;
}
.visible .entry misaligned(.param .u64 p) {
  .reg .u64 %a; .reg .u32 %v<1>;
  ld.param.u64 %a, [p];
  add.u64 %a, %a, 4;
  ld.volatile.global.u32 %v0, [%a];
  st.volatile.global.v4.u32 [%a], {%v0, %v0, %v0, %v0};
  ret;
}
.visible .entry endless(.param .u64 p) {
  .reg .u64 %a; .reg .u32 %v; .reg .pred %q;
  ld.param.u64 %a, [p];
AGAIN:
  ld.volatile.global.u32 %v, [%a];
  setp.ne.u32 %q, %v, 123456789;
  @%q bra AGAIN;
  ret;
}
"""


def _launch(name: str) -> Callable[[torch.Tensor], None]:
    def launch(x: torch.Tensor) -> None:
        driver = ctypes.CDLL("libcuda.so.1")
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        address = ctypes.c_uint64(x.data_ptr())
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(address))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        for status in (
            driver.cuModuleLoadData(ctypes.byref(module), PTX),
            driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()),
            driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, pointers, None),
        ):
            if status:
                raise RuntimeError(f"the kernel {name} was not launched: {status}")

    return launch


def _exhaust(x: torch.Tensor) -> None:
    held = []
    while True:
        held.append(torch.empty(1 << 28, dtype=torch.float32, device=x.device))


def _spin(_: torch.Tensor) -> None:
    while True:
        pass


def _orphan(_: torch.Tensor) -> None:
    """Leave a child behind and die: the child's time stamps show whether it is ended too."""
    path = os.environ["HAZARD_ORPHAN"]
    beat = f"pathlib.Path({path!r}).write_text(str(time.time()))"
    code = f"import time, pathlib\nwhile True: {beat}; time.sleep(0.05)"
    subprocess.Popen([sys.executable, "-S", "-c", code])
    time.sleep(1)
    os.abort()


def _stubborn(_: torch.Tensor) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _spin(_)


HAZARDS: dict[str, Callable[[torch.Tensor], object]] = {
    "none": lambda x: None,
    "abort": lambda x: os.abort(),
    "exit": lambda x: os._exit(3),
    "kill": lambda x: os.kill(os.getpid(), signal.SIGKILL),
    "orphan": _orphan,
    "segfault": lambda x: ctypes.string_at(8),
    "slow": lambda x: time.sleep(2),
    "spin": _spin,
    "stubborn": _stubborn,
    "exhaust": _exhaust,
    "gulp": lambda x: torch.empty(1 << 42, device=x.device),
    "illegal": _launch("illegal"),
    "misaligned": _launch("misaligned"),
    "endless": _launch("endless"),
}


def hazard(x: torch.Tensor, kind: str) -> torch.Tensor:
    HAZARDS[kind](x)
    return x * 2


def _outputs(_: dict[str, Any], returned: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"y": returned}


def _reference(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {"y": arguments["x"] + arguments["x"]}


def _tolerance(name: str, call: Any) -> Tolerance:
    return Tolerance()


RUNNERS = {"hazard": Runner(function=hazard, outputs=_outputs, reference=_reference, tolerance=_tolerance)}
