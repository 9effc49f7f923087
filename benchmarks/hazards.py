"""What upstream does with calls that pass its own checks and fail ours: it writes outside, computes something
else, or crashes.

    python -m benchmarks.hazards --python UPSTREAM_PYTHON [--launchers FOLDER] [OPERATION …]

Each example of a check of our own is really run, on a GPU, between guard bytes and against the reference. A
call that breaks the GPU's context ends its process, which is started again.
"""

from __future__ import annotations

import argparse
import base64
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from app.upstream.forms import job
from app.upstream.oracle import Answer, Oracle
from benchmarks.agreement import LIMIT, MEMORY, MODULES, opened
from kernels.call import Call
from kernels.checking import Origin
from kernels.registry import Operation, folder_of, operations
from kernels.running import Runner, compare, materialise
from kernels.target import Target
from kernels.values import seeded

LARGEST = 1 << 30


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", required=True)
    parser.add_argument("--launchers", default="")
    parser.add_argument("operations", nargs="*")
    args = parser.parse_args(arguments)
    oracle = Oracle(args.python, MODULES, limit=LIMIT, memory=MEMORY, before=opened(args.launchers))
    print(
        "| operation | check of ours | severity | upstream | what happened |\n| --- | --- | --- | --- | --- |"
    )
    for name in args.operations or [name for name, each in operations().items() if not each.needs]:
        operation = operations()[name]
        for check in operation.checks:
            example = check.example()
            if example is None or check.origin() is not Origin.BEYOND:
                continue
            if sum(getattr(value, "storage_bytes", 0) for _, value in example.stated()) > LARGEST:
                continue
            call = example if example.target is not None else example.replace(target=Target("sm90"))
            answer = oracle.ask({**job(operation, call), "keep": True})
            told = _told(operation, call, answer)
            severity = check.severity.value
            print(f"| {name} | {check.id()} | {severity} | {answer.ending} | {told} |", flush=True)
    oracle.close()
    return 0


def _told(operation: Operation, call: Call, answer: Answer) -> str:
    if answer.ending == "raised":
        return f"{answer.error_class}: {answer.message}".partition("\n")[0][:160]
    if answer.ending != "returned":
        return answer.detail[:160]
    return "; ".join([*answer.outside, *_differences(operation, call, answer)]) or "agrees with the reference"


def _differences(operation: Operation, call: Call, answer: Answer) -> list[str]:
    """A sentence for each output that is outside its tolerance of the reference."""
    runner: Runner = import_module(f"kernels.{folder_of(operation)}.op").RUNNERS[operation.name]
    fill = seeded(operation.fill(call), 0)
    try:
        expected = runner.reference((runner.build or materialise)(call, fill, "cpu"))
        given = (runner.build or materialise)(call, fill, "cpu")
        for name, written in answer.kept["written"].items():
            given[name] = _tensor(written)
        actual = runner.outputs(given, _tensor(answer.kept["returned"]))
        told = []
        for name, tensor in actual.items():
            found = compare(name, tensor, expected[name], runner.tolerance(name, call))
            if not found.within:
                told.append(f"{name}: {found.mismatches:,} of {found.elements:,} elements are wrong")
            zeros = int((tensor.float() == 0).sum()) if tensor.is_floating_point() and tensor.numel() else 0
            if zeros == tensor.numel() and tensor.numel():
                told.append(f"{name} is all zeros")
        return told
    except Exception as error:  # noqa: BLE001 (the reference is not made for every faulty call)
        return [f"no reference: {type(error).__name__}: {error}".partition("\n")[0][:100]]


def _tensor(kept: Any) -> Any:
    if isinstance(kept, list):
        return tuple(_tensor(each) for each in kept)
    if kept is None:
        return None
    data = torch.frombuffer(bytearray(base64.b64decode(kept["data"]) or b"\0"), dtype=torch.uint8)
    count = 1
    for size in kept["shape"]:
        count *= size
    dtype = getattr(torch, kept["dtype"])
    return data[: count * dtype.itemsize].view(dtype).reshape(kept["shape"])


if __name__ == "__main__":
    sys.exit(main())
