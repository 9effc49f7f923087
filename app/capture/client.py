"""Writes down the kernel call that failed in a running program, as a request that Faultbook diagnoses.

    import capture; capture.install()          # from now on, for exceptions that nobody catches
    with capture.capturing(): ...              # or for one block
    python capture.py engine.log dumps/        # or from logs and dumps of SGLang's or FlashInfer's API calls

Of a tensor it reads shape, type, strides, device and the alignment of its address, never an element. It needs
Python 3.8 and nothing else, imports no torch, and whatever goes wrong in it never reaches the program, nor
does it hold it up for longer than PATIENCE. A function's variables are written down as they are when it
fails: one that it has replaced is seen replaced. Causes and groups of exceptions are looked through too.
"""

from __future__ import annotations

import contextlib
import json
import math
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
MAX_ERRORS = 32
MAX_DIMENSIONS = 64  # torch's own limit
MAX_VALUES = 100  # tensors of one frame that are listed
MAX_OUTPUT = 1 << 20  # characters
PATIENCE = 10.0  # seconds


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
    """Print the failing call as one line of JSON, or the tensors of the failing frames; never raises.

    A thread of its own reads them, so that what a property of some class does there, wait for ever or exit,
    is done to that thread.
    """
    out = stream or sys.stderr

    def run() -> None:
        with contextlib.suppress(BaseException):
            try:
                _report(error, trace, post, out)
            except BaseException as mistake:  # noqa: BLE001 (the program has a failure of its own to tell)
                _say("nothing was written down: " + _safely(repr, mistake), out)

    with contextlib.suppress(Exception):
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        if thread.is_alive():
            _say(f"nothing was written down within {PATIENCE:g} s", out)


def _safely(function: Any, value: Any) -> str:
    try:
        return str(function(value))[:MAX_TEXT]
    except BaseException as error:  # noqa: BLE001
        return type(error).__name__


def _report(error: Any, trace: Any, post: bool | str, out: TextIO) -> None:
    notes: list[str] = []
    found = spec_of(error, trace, notes)
    if found is None:
        _say("no operation that can be diagnosed failed here; its frames:", out)
        out.write(_bounded(frames_of(error, trace)) + "\n")
        return
    for note in notes:
        _say(note, out)
    out.write(_bounded(found) + "\n")
    service = post if isinstance(post, str) else SERVICE
    if post and not service.startswith(("http://", "https://")):
        _say('not sent: say where to, as in post="http://127.0.0.1:8000"', out)
    elif post:
        _say(_told(_posted(found, service)), out)


def _bounded(value: Any) -> str:
    """JSON, of a list as many members as fit into MAX_OUTPUT."""
    if not isinstance(value, list):
        return json.dumps(value)
    parts, size = [], 0
    for item in value:
        parts.append(json.dumps(item))
        size += len(parts[-1])
        if size > MAX_OUTPUT:
            parts.pop()
            break
    return "[" + ", ".join(parts) + "]"


def _say(text: str, out: TextIO) -> None:
    out.write("faultbook: " + text + "\n")


def spec_of(error: Any, trace: Any = None, notes: list[str] | None = None) -> dict[str, Any] | None:
    """The request for the innermost frame that is an operation's; None where there is none.

    Of several errors, those that it was raised from or holds, the first one that has such a frame.
    """
    for each, own in _errors(error, trace):
        for frame, _ in reversed(_walk(each, own)):
            name = _operation(frame.f_code.co_name, frame.f_code.co_filename, frame.f_locals)
            if name is not None:
                return _spec(name, frame.f_locals, [] if notes is None else notes)
    return None


def frames_of(error: Any, trace: Any = None) -> list[dict[str, Any]]:
    """Every frame that holds tensors, outermost first, error by error: where it is, and its tensors."""
    found = []
    for each, own in _errors(error, trace):
        for frame, line in _walk(each, own):
            tensors: dict[str, Any] = {}
            for name, value in list(frame.f_locals.items())[: 100 * MAX_VALUES]:
                written = _tensor(value) if len(tensors) < MAX_VALUES and is_tensor(value) else None
                if written:
                    tensors[name] = written
            if tensors:
                code = frame.f_code
                place = {"function": code.co_name, "file": code.co_filename, "line": line}
                found.append(dict(place, tensors=tensors))
    return found


def _errors(error: Any, trace: Any) -> list[tuple[Any, Any]]:
    """The error with its trace, then those that it holds or was raised from, nearest first."""
    found: list[tuple[Any, Any]] = []
    waiting, seen = [(error, trace)], set()
    while waiting and len(found) < MAX_ERRORS:
        each, own = waiting.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        found.append((each, own))
        held = getattr(each, "exceptions", ())
        group = held if isinstance(held, tuple) else ()
        others = (*group[:MAX_ERRORS], each.__cause__, each.__context__)
        waiting += [(other, None) for other in others if isinstance(other, BaseException)]
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
    try:
        return _form(value)
    except BaseException as error:  # noqa: BLE001 (one argument that cannot be read costs no other)
        return None, "reading it failed (" + type(error).__name__ + ")"


def _form(value: Any) -> tuple[Any, str]:
    if is_tensor(value):
        found = _tensor(value)
        return found, "" if found else "it is no strided tensor"
    kind = type(value)
    if kind.__module__ == "torch" and kind.__name__ == "dtype":
        return str(value), ""
    if value is None or kind is bool:
        return value, ""
    if kind is int:
        return value, "" if value.bit_length() < MAX_TEXT else "it is a long number"
    if kind is float:
        return value, "" if math.isfinite(value) else "it is no finite number"
    if kind is str:
        return value, "" if len(value) <= MAX_TEXT else "it is a long text"
    return None, "it is a " + kind.__name__


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch.Tensor or of a class derived from it."""
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(value).__mro__)


def _tensor(value: Any) -> dict[str, Any] | None:
    """A tensor as the API takes it; None where it is not strided, as a sparse one.

    Read with torch's own functions, past what a class derived from its tensor makes of them.
    """
    torch = sys.modules.get("torch")
    base = getattr(torch, "Tensor", None)
    plain = getattr(getattr(torch, "_C", None), "DisableTorchFunctionSubclass", None)
    own = isinstance(base, type) and isinstance(value, base) and plain is not None

    def read(name: str) -> Any:
        return getattr(base, name).__get__(value) if own else getattr(value, name)

    with plain() if own and plain is not None else contextlib.nullcontext():
        with contextlib.suppress(Exception):
            if str(read("layout")) != "torch.strided":
                return None
        try:
            shape, strides = [int(size) for size in read("shape")], [int(step) for step in read("stride")()]
            if len(shape) > MAX_DIMENSIONS or max([0, *shape, *strides]).bit_length() > 64:
                return None
            found = {"shape": shape, "dtype": str(read("dtype"))[:MAX_TEXT], "strides": strides}
            found["device"] = str(read("device"))[:MAX_TEXT]
        except Exception:  # noqa: BLE001
            return None
        with contextlib.suppress(Exception):  # one without memory has no address
            offset = read("data_ptr")() % ALIGNMENT // read("element_size")()
            if offset:
                found["offset"] = offset
    return found


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
