"""A checkpoint file from its first bytes: can it be opened, which format is it, what does that refuse?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from starlette.concurrency import run_in_threadpool

from app.diagnose import schemas
from app.diagnose.questions import operation_named
from app.diagnose.service import Diagnoser, Question, complete
from app.errors import Fault, InvalidRequest
from kernels.checkpoint import Checkpoint
from kernels.registry import Operation, operations
from kernels.safetensors_file.checks import OPERATIONS
from kernels.safetensors_file.file_start import FileStart
from kernels.safetensors_file.signature import SafetensorsCall

[CONTAINER] = OPERATIONS
"""The operation that opens any safetensors file, whatever it holds."""


def file_of(data: bytes, size: int | None) -> FileStart:
    """The file whose first bytes these are; InvalidRequest where it is said to have fewer."""
    if size is not None and size < len(data):
        detail = f"the file is said to have {size:,} bytes, and {len(data):,} of them were sent"
        raise InvalidRequest(f"size: {detail}.", faults=[Fault("/size", detail, "query")])
    return FileStart(data, size)


async def diagnose_file(diagnoser: Diagnoser, start: FileStart, wanted: str | None) -> schemas.DiagnosisModel:
    """The diagnosis of the file where it cannot be opened or no operation claims it, else that of its format.

    `wanted` names the operation to ask. At level checks: a run would need the weights, which were not given.
    """
    asked = None if wanted is None else _inspector(wanted)
    file = Question(CONTAINER, SafetensorsCall(start), "checks", "auto", 0, (), large=True)
    # A header of megabytes is read for seconds, once: what was read stays with `start`.
    examination = await run_in_threadpool(CONTAINER.examine, file.call)
    if examination.rejected or asked is CONTAINER:
        return await diagnoser.diagnose(file)
    checkpoint = start.checkpoint()
    notes = tuple(_notes(start))
    claiming = [operation for operation in operations().values() if _claims(operation, checkpoint)]
    operation = asked or next(iter(claiming), None)
    if operation is None:
        answer = await diagnoser.diagnose(replace(file, assumed=notes))
        return answer.model_copy(update={"detail": _unclaimed(checkpoint)})
    call, assumed = complete(operation, {_argument(operation): checkpoint})
    return await diagnoser.diagnose(
        Question(operation, call, "checks", "auto", 0, (*notes, *assumed), large=True)
    )


def inspectors() -> list[str]:
    """Names of the operations that take a checkpoint file."""
    return [
        name for name, operation in operations().items() if operation is CONTAINER or _argument(operation)
    ]


def _inspector(name: str) -> Operation:
    operation = operation_named(name)
    if name not in inspectors():
        detail = f"{name} takes no checkpoint file; {', '.join(inspectors())} do"
        raise InvalidRequest(f"operation: {detail}.", faults=[Fault("/operation", detail, "query")])
    return operation


def _argument(operation: Operation) -> str:
    """The argument that a checkpoint is, empty where there is none."""
    kinds = {parameter.name: parameter.kind for parameter in operation.call.arguments()}
    return next((name for name, kind in kinds.items() if kind is Checkpoint), "")


def _claims(operation: Operation, checkpoint: Checkpoint) -> bool:
    return operation.claims is not None and operation.claims(checkpoint)


def _notes(start: FileStart) -> Iterator[str]:
    """What the answer rests on besides the header."""
    if start.size is None:
        yield (
            f"size was not given, so whether the data is all there was not looked at: "
            f"by its header the file has {start.end:,} bytes"
        )
    if start.repeated:
        yield f"the header names {start.repeated[0]!r} more than once; the last entry counts"


def _unclaimed(checkpoint: Checkpoint) -> str:
    """What follows from a header that declares nothing."""
    tensors = len(checkpoint.tensors)
    counted = "one tensor" if tensors == 1 else f"{tensors:,} tensors"
    types = Counter(header.dtype for header in checkpoint.tensors.values())
    shown = f" ({', '.join(f'{count:,} {dtype}' for dtype, count in types.most_common())})" if types else ""
    known = ", ".join(name for name, operation in operations().items() if operation.claims is not None)
    return (
        f"The file can be opened: {counted}{shown}. It declares no quantisation that an operation here "
        f"inspects ({known}), so a loader takes every tensor as it stands, under its own name and type. "
        "With operation= one of them is asked all the same."
    )
