"""A checkpoint file from its first bytes: can it be opened, which format is it, what does that refuse?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from starlette.concurrency import run_in_threadpool

from app.diagnose import schemas
from app.diagnose.questions import operation_named
from app.diagnose.service import Diagnoser, Question, complete
from app.errors import Fault, InvalidRequest
from app.http.bodies import load_json
from kernels.checkpoint import Checkpoint, FaultyMembers, escaped
from kernels.registry import Operation, operations
from kernels.safetensors_file.checks import OPERATIONS
from kernels.safetensors_file.file_start import FileStart
from kernels.safetensors_file.signature import SafetensorsCall
from kernels.shards import MAX_FILES, Shards

[CONTAINER] = OPERATIONS
"""The operation that opens any safetensors file, whatever it holds."""


def file_of(data: bytes, size: int | None) -> FileStart:
    """The file whose first bytes these are; InvalidRequest where it is said to have fewer."""
    if size is not None and size < len(data):
        detail = f"the file is said to have {size:,} bytes, and {len(data):,} of them were sent"
        raise InvalidRequest(f"size: {detail}.", faults=[Fault("/size", detail, "query")])
    return FileStart(data, size)


def files_of(body: bytes) -> dict[str, FileStart]:
    """The files of one component from `{"files": {name: {"base64", "size"?}}}`; InvalidRequest lists every
    fault.
    """
    value = load_json(body)
    listed = value.get("files") if isinstance(value, dict) and set(value) == {"files"} else None
    if not isinstance(listed, dict) or not 0 < len(listed) <= MAX_FILES:
        detail = f"expected files: an object of 1 to {MAX_FILES:,} files, name → base64 and size"
        raise InvalidRequest(f"{detail}.", faults=[Fault("/files", detail)])
    starts: dict[str, FileStart] = {}
    faults: list[Fault] = []
    for name, item in listed.items():
        try:
            starts[name] = FileStart.from_json(item)
        except FaultyMembers as error:
            at = f"/files/{escaped(name)}"
            faults += [Fault(at + where, what) for where, what in error.faults]
    if faults:
        raise InvalidRequest("The files cannot be read.", faults=faults)
    return starts


def files_schema() -> dict[str, Any]:
    """JSON Schema of what `files_of` takes."""
    files = {"type": "object", "minProperties": 1, "maxProperties": MAX_FILES}
    listed = {**files, "additionalProperties": FileStart.json_schema()}
    return {
        "type": "object",
        "required": ["files"],
        "additionalProperties": False,
        "properties": {"files": listed},
    }


async def diagnose_files(
    diagnoser: Diagnoser, starts: Mapping[str, FileStart], wanted: str | None
) -> schemas.DiagnosisModel:
    """The diagnosis of the first file that cannot be opened, else that of the format that claims the files;
    where none does, that of the first file as a container.

    `starts` are the files of one component by name, in the order in which they are read. `wanted` names the
    operation to ask. At level checks: a run would need the weights, which were not given.
    """
    asked = None if wanted is None else _inspector(wanted)
    for name, start in starts.items():
        file = Question(CONTAINER, SafetensorsCall(start), "checks", "auto", 0, (), large=True)
        # A header of megabytes is read for seconds, once: what was read stays with `start`.
        examination = await run_in_threadpool(CONTAINER.examine, file.call)
        if examination.rejected or asked is CONTAINER:
            which = () if len(starts) == 1 else (f"this is about {name!r}, one of {len(starts)} files",)
            return await diagnoser.diagnose(replace(file, assumed=which))
    files = {name: start.checkpoint() for name, start in starts.items()}
    notes = [
        note for name, start in starts.items() for note in _notes(start, name if len(starts) > 1 else "")
    ]
    operation = asked or next((found for found in operations().values() if _claims(found, files)), None)
    if operation is None:
        one = SafetensorsCall(next(iter(starts.values())))
        file = Question(CONTAINER, one, "checks", "auto", 0, tuple(notes), large=True)
        answer = await diagnoser.diagnose(file)
        return answer.model_copy(update={"detail": _unclaimed(list(files.values()))})
    given, told = _arguments(operation, files)
    call, assumed = complete(operation, given)
    question = Question(operation, call, "checks", "auto", 0, (*notes, *told, *assumed), large=True)
    return await diagnoser.diagnose(question)


def _arguments(operation: Operation, files: Mapping[str, Checkpoint]) -> tuple[dict[str, Any], list[str]]:
    """The files as arguments of an operation, and what to say of them; one that takes a single file gets
    that which it claims.
    """
    names = [parameter.name for parameter in operation.call.arguments()]
    further = next((item.name for item in operation.call.arguments() if item.kind is Shards), "")
    if len(files) == 1 or not further:
        chosen = next(
            (name for name, file in files.items() if _claims(operation, {name: file})), next(iter(files))
        )
        told = f"{operation.name} inspects one file, as upstream does: this is about {chosen!r}"
        return {_argument(operation): files[chosen]}, [told] if len(files) > 1 else []
    first, *others = files
    arguments = {_argument(operation): files[first], further: Shards({name: files[name] for name in others})}
    return arguments | ({"path": first} if "path" in names else {}), []


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


def _claims(operation: Operation, files: Mapping[str, Checkpoint]) -> bool:
    """Whether one of the files is of the operation's format, or all of them are together."""
    if operation.claims is None:
        return False
    if any(operation.claims(file) for file in files.values()):
        return True
    tensors = {name: header for file in files.values() for name, header in file.tensors.items()}
    return len(files) > 1 and operation.claims(Checkpoint({}, tensors))


def _notes(start: FileStart, name: str) -> Iterator[str]:
    """What the answer rests on besides the header; `name` tells the file where there are several."""
    which = f"{name}: " if name else ""
    if start.size is None:
        yield (
            f"{which}size was not given, so whether the data is all there was not looked at: "
            f"by its header the file has {start.end:,} bytes"
        )
    if start.repeated:
        yield f"{which}the header names {start.repeated[0]!r} more than once; the last entry counts"


def _unclaimed(files: list[Checkpoint]) -> str:
    """What follows from headers that declare nothing."""
    tensors = sum(len(file.tensors) for file in files)
    counted = "one tensor" if tensors == 1 else f"{tensors:,} tensors"
    types = Counter(header.dtype for file in files for header in file.tensors.values())
    shown = f" ({', '.join(f'{count:,} {dtype}' for dtype, count in types.most_common())})" if types else ""
    known = ", ".join(name for name, operation in operations().items() if operation.claims is not None)
    which = "The file" if len(files) == 1 else f"Each of {len(files)} files"
    return (
        f"{which} can be opened: {counted}{shown}. It declares no quantisation that an operation here "
        f"inspects ({known}), so a loader takes every tensor as it stands, under its own name and type. "
        "With operation= one of them is asked all the same."
    )
