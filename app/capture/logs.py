"""Logs and dumps of SGLang's and FlashInfer's API calls as requests: the last part of the served file.

`service` puts it behind `client`, whose names it uses.
"""

from __future__ import annotations

import ast
import io
import json
import pathlib
import pickle
import re
import sys
import zipfile
from collections.abc import Iterator
from typing import Any

from app.capture.client import (
    OPERATIONS,
    _operation,
    _safely,
    _say,
    _written,
)

CALL = re.compile(r"(?:SGLang Kernel|FlashInfer) API Call: ([\w.<>]{1,300})")
SECTIONS = {"Positional input arguments:": "positional", "Keyword input arguments:": "keyword"}
ENTRY = re.compile(r"(?:arg\[([0-9]{1,3})\]|([A-Za-z_]\w{0,99}))[=:]\s*(.*)")
MEMBER = re.compile(r"(shape|dtype|device|strides?|is_contiguous)=(\([^)]{0,500}\)|[^\s,)]{1,100})")


def read_log(text: str) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """(request, notes) of every call of an operation in a log of SGLang's or FlashInfer's API calls.

    Levels 3 and above tell the arguments. They tell whether a tensor is contiguous, and not its strides or
    alignment: one that is not contiguous is written without strides, and noted.
    """
    for function, positional, keyword in _calls(text.splitlines()):
        found = _logged_call(function, positional, keyword)
        if found is not None:
            yield found


def _logged_call(
    function: str, positional: list[Any], keyword: dict[str, Any]
) -> tuple[dict[str, Any], list[str]] | None:
    """(request, notes) of a call whose values are (JSON, note); None for a function of no operation."""
    name = _operation(function.rpartition(".")[2], "", _named(function, positional, keyword))
    if name is None:
        return None
    values = {**dict(zip(OPERATIONS[name]["arguments"], positional)), **keyword}  # noqa: B905 (3.10)
    arguments: dict[str, Any] = {}
    notes: list[str] = []
    for argument, (value, told) in values.items():
        if argument not in OPERATIONS[name]["arguments"]:
            notes.append(argument + " is no argument here")
            continue
        if told:
            notes.append(argument + told)
        if value is not Ellipsis:
            arguments[argument] = value
    return {"operation": name, "arguments": arguments}, notes


def _named(function: str, positional: list[Any], keyword: dict[str, Any]) -> dict[str, Any]:
    names: dict[str, Any] = dict.fromkeys(keyword)
    if positional:
        short = function.rpartition(".")[2]
        for item in OPERATIONS.values():
            if short in item["functions"]:
                names.update(dict.fromkeys(item["arguments"][: len(positional)]))
    return names


def _calls(lines: list[str]) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """(function, positional values, keyword values) of each call; a value is (JSON, note)."""
    call: Any = None
    section = ""
    open_: Any = None
    for line in [*lines, "FlashInfer API Call: end"]:
        started = CALL.search(line)
        text = line.strip()
        ended = section and line[:1].strip() and text not in SECTIONS  # entries are indented
        if started or ended or text.startswith(("Output", "====")):
            if call and open_:
                _put(call, *open_)
            section, open_ = "", None
            if started:
                if call:
                    yield call
                call = (started.group(1), [], {})
        elif text in SECTIONS and call:
            if open_:
                _put(call, *open_)
            section, open_ = SECTIONS[text], None
        elif section and call:
            entry = ENTRY.fullmatch(text)
            deep = len(line) - len(line.lstrip()) > 3
            if entry and not deep:
                if open_:
                    _put(call, *open_)
                open_ = (section, entry.group(2), [entry.group(3)])
            elif open_:
                open_[2].append(text)


def _put(call: Any, section: str, name: str | None, lines: list[str]) -> None:
    value = _logged(" ".join(lines).strip())
    if section == "positional":
        call[1].append(value)
    elif name:
        call[2][name] = value


def _logged(text: str) -> tuple[Any, str]:
    if text.startswith("Tensor("):
        members = dict(MEMBER.findall(text))
        try:
            shape = list(ast.literal_eval(members["shape"]))
            tensor = {"shape": shape, "dtype": members["dtype"], "device": members.get("device", "cuda")}
            strides = members.get("stride", members.get("strides"))
            if strides:
                return dict(tensor, strides=list(ast.literal_eval(strides))), ""
        except (KeyError, SyntaxError, TypeError, ValueError):
            return Ellipsis, " is left out: its tensor cannot be read"
        known = members.get("is_contiguous") != "False"
        return tensor, "" if known else " is not contiguous, and the log does not have its strides"
    if text.startswith("torch.") and text[6:].isidentifier():
        return text, ""
    try:
        value = ast.literal_eval(text)
    except (MemoryError, RecursionError, SyntaxError, TypeError, ValueError):
        value = Ellipsis
    written, told = (None, "?") if value is Ellipsis else _written(value)
    return (Ellipsis, " is left out: " + text[:80]) if told else (written, "")


def read_dump(folder: pathlib.Path) -> tuple[dict[str, Any], list[str]] | None:
    """(request, notes) of a call that SGLang's or FlashInfer's level 10 dumped; None for another function's.

    FlashInfer's metadata tell the tensors; SGLang's stand in inputs.pt, of which the forms alone are read.
    Dumped tensors were copied to the CPU: strides are those of the copy, and addresses are gone.
    """
    metadata = _metadata(folder)
    if not isinstance(metadata, dict) or not isinstance(metadata.get("function_name"), str):
        raise ValueError("its metadata name no function")
    held = dict(metadata.get("input_metadata") or {})
    details = metadata.get("tensor_details")
    tensors = details if isinstance(details, dict) and details else _saved(folder / "inputs.pt")
    positional, keyword = [], {}
    for key in [*held, *(key for key in tensors if key not in held)]:
        value = _dumped(tensors[key] if key in tensors else held[key])
        if key.startswith("kwarg_"):
            keyword[key[6:]] = value
        elif re.fullmatch("arg_[0-9]{1,3}", key):
            positional.append((int(key[4:]), value))
    ordered = [value for _, value in sorted(positional, key=lambda pair: pair[0])]
    return _logged_call(metadata["function_name"], ordered, keyword)


def _metadata(folder: pathlib.Path) -> Any:
    lines = folder / "metadata.jsonl"
    if lines.exists():
        return json.loads(lines.read_text(encoding="utf-8").strip().splitlines()[-1])
    return json.loads((folder / "metadata.json").read_text(encoding="utf-8"))


def _dumped(value: Any) -> tuple[Any, str]:
    """A dumped value as (JSON, note)."""
    if isinstance(value, dict):
        if value.get("type") == "torch.dtype":
            return str(value.get("value")), ""
        if "shape" in value and "dtype" in value:
            device = str(value.get("device", "cuda"))
            tensor = {"shape": value["shape"], "dtype": value["dtype"], "device": device}
            strides = value.get("stride")
            return dict(tensor, strides=strides) if strides else tensor, ""
        return Ellipsis, " is left out: it is a " + str(value.get("type"))[:80]
    written, told = _written(value)
    return (Ellipsis, " is left out: " + told) if told else (written, "")


class _Forms(pickle.Unpickler):
    """Reads what torch.save wrote, without torch: of a tensor type, sizes and strides, and no elements."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils" and name in ("_rebuild_tensor_v2", "_rebuild_tensor_v3"):
            return _rebuilt
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if module in ("torch", "torch.storage") and name.isidentifier():
            return "torch." + name
        raise pickle.UnpicklingError("it holds a " + module + "." + name)

    def persistent_load(self, pid: Any) -> Any:
        return pid[1]


STORAGES = {
    "Half": "float16",
    "Float": "float32",
    "Double": "float64",
    "BFloat16": "bfloat16",
    "Char": "int8",
    "Byte": "uint8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Bool": "bool",
}


def _rebuilt(storage: Any, offset: Any, shape: Any, stride: Any, *rest: Any) -> dict[str, Any]:
    name = str(storage)[6:]
    dtype = STORAGES.get(name[: -len("Storage")])
    typed = [each for each in rest if isinstance(each, str) and each.startswith("torch.")]
    dtype = "torch." + dtype if dtype else (typed or ["torch.uint8"])[0]
    return {"shape": list(shape), "stride": list(stride), "dtype": dtype, "device": "cuda"}


def _saved(path: pathlib.Path) -> dict[str, Any]:
    """Key of each tensor in a file of torch.save → its form."""
    if not path.exists():
        return {}
    with zipfile.ZipFile(path) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        found = _Forms(io.BytesIO(archive.read(name))).load()
    return {str(key): value for key, value in found.items() if isinstance(value, dict)}


def main(paths: list[str]) -> int:
    """Print the calls of logs and of folders with dumps, a line of JSON each; 2 where one cannot be read."""
    if not paths:
        _say("name the logs, and the folders with dumps, of the API calls", sys.stderr)
        return 2
    status = 0
    for path in paths:
        try:
            for found in _read(pathlib.Path(path)):
                for note in found[1]:
                    _say(note, sys.stderr)
                sys.stdout.write(json.dumps(found[0]) + "\n")
        except OSError as error:
            _say(path + " cannot be read: " + (error.strerror or type(error).__name__), sys.stderr)
            status = 2
    return status


def _read(path: pathlib.Path) -> Iterator[tuple[dict[str, Any], list[str]]]:
    if not path.is_dir():
        yield from read_log(path.read_text(encoding="utf-8", errors="replace"))
        return
    folders = sorted(
        {each.parent for pattern in ("metadata.json", "metadata.jsonl") for each in path.rglob(pattern)}
    )
    for folder in folders:
        try:
            found = read_dump(folder)
        except Exception as error:  # noqa: BLE001 (a dump that breaks off costs no other)
            _say(str(folder) + " is left out: " + _safely(str, error), sys.stderr)
            continue
        if found is not None:
            yield found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
