"""Writes down the kernel call that failed in a running program, as a request that Faultbook diagnoses.

    import capture; capture.install()          # from now on, for exceptions that nobody catches
    with capture.capturing(): ...              # or for one block
    python capture.py engine.log               # or from logs of SGLang's or FlashInfer's API calls

Of a tensor it reads shape, type, strides, device and the alignment of its address, never an element. It needs
Python 3.8 and nothing else, imports no torch, and whatever goes wrong in it never reaches the program. A
function's variables are written down as they are when it fails: one that it has replaced is seen replaced.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import pathlib
import re
import sys
import threading
import traceback
import urllib.request
from collections.abc import Iterator
from typing import Any, TextIO

SERVICE = ""
OPERATIONS: dict[str, Any] = {}

ALIGNMENT = 512  # bytes: how CUDA's caching allocator aligns a tensor's storage
MAX_TEXT = 500
MAX_FRAMES = 64


def install(post: bool | str = False, stream: TextIO | None = None) -> None:
    """Report exceptions that nobody catches, in threads too, after whoever reports them already.

    post     also send the call to the service that this file came from, or to that of this address, and print
             what it says
    stream   where to print; sys.stderr if None
    """
    before, before_thread = sys.excepthook, threading.excepthook

    def hook(kind: Any, error: Any, trace: Any) -> None:
        before(kind, error, trace)
        report(error, trace, post, stream)

    def thread_hook(args: Any) -> None:
        before_thread(args)
        report(args.exc_value, args.exc_traceback, post, stream)

    sys.excepthook = hook
    threading.excepthook = thread_hook


@contextlib.contextmanager
def capturing(post: bool | str = False, stream: TextIO | None = None) -> Iterator[None]:
    """Report an exception that leaves the block; it goes on as it came."""
    try:
        yield
    except Exception as error:
        report(error, error.__traceback__, post, stream)
        raise


def report(error: Any, trace: Any = None, post: bool | str = False, stream: TextIO | None = None) -> None:
    """Print the failing call as one line of JSON, or the tensors of the failing frames; never raises."""
    with contextlib.suppress(Exception):
        out = stream or sys.stderr
        try:
            _report(error, trace, post, out)
        except Exception as mistake:  # noqa: BLE001 (the program has a failure of its own to tell)
            _say("nothing was written down: " + repr(mistake)[:MAX_TEXT], out)


def _report(error: Any, trace: Any, post: bool | str, out: TextIO) -> None:
    notes: list[str] = []
    found = spec_of(error, trace, notes)
    if found is None:
        _say("no operation that can be diagnosed failed here; its frames:", out)
        out.write(json.dumps(frames_of(error, trace)) + "\n")
        return
    for note in notes:
        _say(note, out)
    out.write(json.dumps(found) + "\n")
    service = post if isinstance(post, str) else SERVICE
    if post and not service.startswith(("http://", "https://")):
        _say('not sent: say where to, as in post="http://127.0.0.1:8000"', out)
    elif post:
        _say(_told(_posted(found, service)), out)


def _say(text: str, out: TextIO) -> None:
    out.write("faultbook: " + text + "\n")


def spec_of(error: Any, trace: Any = None, notes: list[str] | None = None) -> dict[str, Any] | None:
    """The request for the innermost frame that is an operation's; None where there is none."""
    for frame, _ in reversed(_walk(error, trace)):
        name = _operation(frame.f_code.co_name, frame.f_code.co_filename, frame.f_locals)
        if name is not None:
            return _spec(name, frame.f_locals, [] if notes is None else notes)
    return None


def frames_of(error: Any, trace: Any = None) -> list[dict[str, Any]]:
    """Every frame that holds tensors, outermost first: where it is, and its tensors."""
    found = []
    for frame, line in _walk(error, trace):
        tensors = {name: _tensor(value) for name, value in frame.f_locals.items() if is_tensor(value)}
        if tensors:
            code = frame.f_code
            place = {"function": code.co_name, "file": code.co_filename, "line": line}
            found.append(dict(place, tensors={name: item for name, item in tensors.items() if item}))
    return found


def _walk(error: Any, trace: Any) -> list[tuple[Any, int]]:
    steps = traceback.walk_tb(trace if trace is not None else error.__traceback__)
    return list(steps)[-MAX_FRAMES:]


def _operation(function: str, path: str, values: Any) -> str | None:
    """The operation of this function: of several of one name that whose file it is, then whose arguments."""
    named = [name for name, item in OPERATIONS.items() if function in item["functions"]]
    path = path.replace("\\", "/")
    named.sort(
        key=lambda name: (
            path.endswith(OPERATIONS[name]["file"]),
            sum(argument in values for argument in OPERATIONS[name]["arguments"]),
        )
    )
    if not named or not any(argument in values for argument in OPERATIONS[named[-1]]["arguments"]):
        return None
    return named[-1]


def _spec(name: str, values: Any, notes: list[str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for argument in OPERATIONS[name]["arguments"]:
        if argument in values:
            written, told = _written(values[argument])
            if told:
                notes.append(argument + " is left out: " + told)
            else:
                arguments[argument] = written
    spec = {"operation": name, "arguments": arguments}
    target = _target()
    return dict(spec, target=target) if target else spec


def _written(value: Any) -> tuple[Any, str]:
    """A value as the API takes it, or why it cannot be written."""
    if is_tensor(value):
        found = _tensor(value)
        return found, "" if found else "it is no strided tensor"
    kind = type(value)
    if kind.__module__ == "torch" and kind.__name__ == "dtype":
        return str(value), ""
    if value is None or kind in (bool, int):
        return value, ""
    if kind is float:
        return value, "" if math.isfinite(value) else "it is no finite number"
    if kind is str:
        return value, "" if len(value) <= MAX_TEXT else "it is a long text"
    return None, "it is a " + kind.__name__


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch.Tensor or of a class derived from it."""
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(value).__mro__)


def _tensor(value: Any) -> dict[str, Any] | None:
    """A tensor as the API takes it; None where it is not strided, as a sparse one."""
    found: dict[str, Any] = {}
    if str(getattr(value, "layout", "torch.strided")) != "torch.strided":
        return None
    with contextlib.suppress(Exception):
        shape, strides = [int(size) for size in value.shape], [int(step) for step in value.stride()]
        found = {"shape": shape, "dtype": str(value.dtype), "strides": strides, "device": str(value.device)}
        with contextlib.suppress(Exception):  # one without memory has no address
            offset = value.data_ptr() % ALIGNMENT // value.element_size()
            if offset:
                found["offset"] = offset
    return found or None


def _target() -> str | None:
    """The architecture of the current GPU, where the program has used one."""
    with contextlib.suppress(Exception):
        torch = sys.modules["torch"]
        if torch.cuda.is_initialized() and not torch.version.hip:
            return "sm{}{}".format(*torch.cuda.get_device_capability())
    return None


def _posted(spec: dict[str, Any], service: str) -> Any:
    body = json.dumps(dict(spec, level="checks")).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(service.rstrip("/") + "/api/diagnose", data=body, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.loads(response.read().decode())


def _told(answer: Any) -> str:
    failed = [check for check in answer["checks"] if check["status"] == "failed"]
    lines = ["  {}: {}".format(check["id"], check["reason"]) for check in failed]
    fixes = ["  fix: " + fix["title"] for fix in answer["fixes"][:1]]
    return "\n".join([answer["verdict"], *lines, *fixes])


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
        name = _operation(function.rpartition(".")[2], "", _named(function, positional, keyword))
        if name is None:
            continue
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
        yield {"operation": name, "arguments": arguments}, notes


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
        if started or text.startswith(("Output", "====")):
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


def main(paths: list[str]) -> None:
    """Print the calls of logs, one line of JSON each."""
    for path in paths:
        for spec, notes in read_log(pathlib.Path(path).read_text(encoding="utf-8", errors="replace")):
            for note in notes:
                _say(note, sys.stderr)
            sys.stdout.write(json.dumps(spec) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
