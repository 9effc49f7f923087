"""A checkpoint file from its first bytes: can it be opened, which format is it, what does that refuse?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from starlette.concurrency import run_in_threadpool

from app.diagnose import schemas
from app.diagnose.completing import complete
from app.diagnose.components import INDEX, NoIndex, read_index, told_of
from app.diagnose.questions import operation_named
from app.diagnose.service import Diagnoser, Question
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
    """The file whose first bytes these are; InvalidRequest where it is said to have fewer.

    Where as many bytes or more were sent as its header speaks of, they are the file.
    """
    if size is not None and size < len(data):
        detail = f"the file is said to have {size:,} bytes, and {len(data):,} of them were sent"
        raise InvalidRequest(f"size: {detail}.", faults=[Fault("/size", detail, "query")])
    start = FileStart(data, size)
    whole = size is None and start.readable and len(data) >= start.end
    return FileStart(data, len(data)) if whole else start


def files_of(body: bytes) -> dict[str, FileStart]:
    """The files of one component from `{"files": {name: {"base64", "size"?}}}`; InvalidRequest lists every
    fault.
    """
    value = load_json(body)
    twice = _named_twice(body)
    if twice:
        repeated = [Fault(f"/files/{escaped(name)}", "named more than once") for name in twice]
        raise InvalidRequest("Files are named more than once.", faults=repeated)
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


def _named_twice(body: bytes) -> list[str]:
    """Names of files that a body has more than once: a parser keeps the last of them without a word."""
    found: list[str] = []

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        counted = Counter(name for name, _ in pairs)
        found.extend(name for name, count in counted.items() if count > 1)
        return dict(pairs)

    json.loads(body, object_pairs_hook=members)
    return found


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
    # A header of megabytes is read for seconds.
    question, detail = await run_in_threadpool(
        _question, starts, None if wanted is None else _inspector(wanted)
    )
    answer = await diagnoser.diagnose(question)
    told = "; ".join(filter(None, [answer.detail, *detail]))
    return answer.model_copy(update={"detail": told or None})


def _question(given: Mapping[str, FileStart], asked: Operation | None) -> tuple[Question, list[str]]:
    """What to ask of the files, and what to say of them besides."""
    starts = {name: start for name, start in given.items() if not name.endswith(INDEX)}
    if not starts:
        raise InvalidRequest("An index alone was given.", faults=[Fault("/files", "no file but an index")])
    for name, start in starts.items():
        file = Question(CONTAINER, SafetensorsCall(start), "checks", "auto", 0, (), large=True)
        if asked is CONTAINER or CONTAINER.examine(file.call).rejected:
            which = () if len(starts) == 1 else (f"this is about {name!r}, one of {len(starts)} files",)
            return replace(file, assumed=which), _unchecked({name: start})
    files = {name: start.checkpoint() for name, start in starts.items()}
    notes = [
        note for name, start in starts.items() for note in _notes(start, name if len(starts) > 1 else "")
    ]
    told = [*_unchecked(starts), *told_of(files, _index_of(given))]
    candidates = operations().values() if asked is None else [asked]
    claimed = next(((each, name) for each in candidates for name in _claimed(each, files)), None)
    operation, chosen = (asked, next(iter(files))) if claimed is None else claimed
    if operation is None:
        one = SafetensorsCall(next(iter(starts.values())))
        file = Question(CONTAINER, one, "checks", "auto", 0, tuple(notes), large=True)
        return file, [_unclaimed(list(files.values())), *told]
    arguments, about = _arguments(operation, files, chosen)
    call, assumed = complete(operation, arguments)
    question = Question(operation, call, "checks", "auto", 0, (*notes, *about, *assumed), large=True)
    return question, told


def _index_of(given: Mapping[str, FileStart]) -> dict[str, str] | None:
    """What the index among the files says; InvalidRequest where it is none."""
    for name, start in given.items():
        if name.endswith(INDEX):
            try:
                return read_index(start.data)
            except NoIndex as error:
                raise InvalidRequest(
                    f"{name[:80]}: {error}.", faults=[Fault(f"/files/{escaped(name)}", str(error))]
                ) from None
    return None


def _unchecked(starts: Mapping[str, FileStart]) -> list[str]:
    """What could not be looked at for want of the files' sizes, in one sentence."""
    names = [name for name, start in starts.items() if start.size is None and start.readable]
    if not names:
        return []
    which = "" if len(starts) == 1 else f" of {len(names)} files"
    held = starts[names[0]]
    part = f"; of the {held.end:,} bytes that its header speaks of {len(held.data):,} were sent"
    return [
        f"the data{which} was not checked: state the file's size to learn whether it was cut short"
        + (part if len(starts) == 1 else "")
    ]


def _arguments(
    operation: Operation, files: Mapping[str, Checkpoint], chosen: str
) -> tuple[dict[str, Any], list[str]]:
    """The files as arguments of an operation, and what to say of them; one that takes a single file gets
    the chosen one.
    """
    names = [parameter.name for parameter in operation.call.arguments()]
    further = next((item.name for item in operation.call.arguments() if item.kind is Shards), "")
    if len(files) == 1 or not further:
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


def _claimed(operation: Operation, files: Mapping[str, Checkpoint]) -> Iterator[str]:
    """The first file that is of the operation's format; where only all of them together are, the first."""
    if operation.claims is None:
        return
    for name, file in files.items():
        if operation.claims(file):
            yield name
            return
    tensors = {name: header for file in files.values() for name, header in file.tensors.items()}
    if len(files) > 1 and operation.claims(Checkpoint({}, tensors)):
        yield next(iter(files))


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
