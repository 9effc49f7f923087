"""Calls as Python that a user of torch would write: what builds the tensors, then the call.

An argument that is no tensor and no plain value brings `to_python(name)`: the lines that define that name.
One that callers have as a file brings `to_revision` and `to_contrast` too: the lines that change it.
A call whose function takes its arguments in another form brings `to_call(function)`: the call's own text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import isfinite
from typing import Any, Protocol, TypeGuard

from kernels.call import Call
from kernels.dtypes import DType
from kernels.registry import Operation
from kernels.spec import Shape, TensorSpec, row_major
from kernels.values import Arange, Full, Listed, Ones, Randint, Randn, Text, Values, Zeros

WIDTH = 100
"""Columns of a call's lines."""

DRAWN = (DType.BF16, DType.F16, DType.F32, DType.F64)
"""Types in which torch draws normal values; the others are converted to."""


class Scripted(Protocol):
    """An argument that knows the lines which define it, such as a checkpoint file to write."""

    def to_python(self, name: str, /) -> str:
        """Python lines, imports included, after which `name` holds the argument."""


class Revisable(Protocol):
    """An argument that its caller has already and a fix changes, such as a checkpoint file."""

    def to_revision(self, name: str, revised: Any, /) -> str:
        """Lines that make the revised one of the caller's own, after which `name` holds it."""

    def to_contrast(self, name: str, other: Any, /, *, afresh: bool) -> str:
        """Lines that make this one of the other's parts, stated afresh or turned; nothing for equal ones."""


class Invoked(Protocol):
    """A call that knows how upstream's function is called with its arguments."""

    def to_call(self, function: str, /) -> str:
        """The call as an expression of the names that the arguments were defined under."""


def is_scripted(value: object) -> TypeGuard[Scripted]:
    """Whether the argument is `Scripted`; by its method, for checking a protocol's members takes 50 µs."""
    return hasattr(value, "to_python")


def is_revisable(value: object) -> TypeGuard[Revisable]:
    """Whether the argument is `Revisable`."""
    return hasattr(value, "to_revision")


def is_invoked(call: object) -> TypeGuard[Invoked]:
    """Whether the call is `Invoked`."""
    return hasattr(call, "to_call")


def python_call(
    function: str, call: Call, *, device: str = "cuda", fill: Mapping[str, Values] | None = None
) -> str:
    """Lines that build the call's arguments and call `function`; `device` stands for the caller's GPU."""
    lines = _definitions(call, device, fill or {})
    return "\n".join([*lines.values(), invocation(function, call)])


def fix_code(operation: Operation, call: Call, fixed: Call) -> str:
    """Lines that make the fix: those that change the caller's own file, else the passing call."""
    revisions = [
        (name, value.to_revision(name, getattr(fixed, name)))
        for name, value in call.stated()
        if is_revisable(value) and is_revisable(getattr(fixed, name))
    ]
    if not revisions:
        return _fixed_call(operation, call, fixed)
    function = operation.function or operation.name
    kept = {name for name, _ in revisions}
    changed = {edit.argument for edit in call.edits_to(fixed)} - kept
    lines = [revision for _, revision in revisions]
    definitions = _definitions(fixed, "cuda", operation.fill(fixed))
    lines += [line for name, line in definitions.items() if name in changed]
    called = invocation(function, fixed)
    if called != invocation(function, call):
        lines = [f"from {operation.module} import {function}", "", *lines, called]
    return _with_torch("\n".join(lines))


def _fixed_call(operation: Operation, call: Call, fixed: Call) -> str:
    """Lines that build the passing call's arguments and make it; each that a fix changes says what was."""
    before = {edit.argument: _before(getattr(call, edit.argument)) for edit in call.edits_to(fixed)}
    lines = _definitions(fixed, "cuda", operation.fill(fixed))
    told = [f"{line}  # {before.pop(name)}" if name in before else line for name, line in lines.items()]
    told += [f"# {name}: {was}" for name, was in before.items()]
    return _with_torch("\n".join([*told, invocation(operation.name, fixed)]))


def _before(value: Any) -> str:
    if value is None:
        return "was not passed"
    return f"was {value if isinstance(value, TensorSpec) else literal(value)}"


def _with_torch(script: str) -> str:
    """The script with torch imported where it is used and is not yet."""
    imported = not re.search(r"\btorch\.", script) or re.search("^import torch$", script, re.MULTILINE)
    return script if imported else f"import torch\n\n{script}"


def before_after(operation: Operation, example: Call, fixed: Call, *, show: Collection[str] = ()) -> str:
    """The failing and the passing call, reduced to the arguments that differ and those in `show`.

    Of a file only the lines that make it fail are shown, on the `tensors` and `metadata` of one that passes,
    then those that mend it.
    """
    changed = {edit.argument for edit in example.edits_to(fixed)}
    sections = []
    for title, call, other in (("before", example, fixed), ("after", fixed, example)):
        elsewhere = _definitions(other, "cuda", {})
        lines = []
        for name, line in _definitions(call, "cuda", {}).items():
            value, counterpart = getattr(call, name), getattr(other, name)
            if is_revisable(value) and is_revisable(counterpart):
                lines.append(value.to_contrast(name, counterpart, afresh=call is example))
            elif name in show or line != elsewhere.get(name):
                lines.append(line)
        called = _shown_call(operation, call, changed | set(show))
        sections.append("\n".join([f"# {title}", *filter(None, lines), called]))
    return "\n".join(sections)


def _shown_call(operation: Operation, call: Call, matter: Collection[str]) -> str:
    """The call of upstream's function, without options that do not matter where it has a form of its own; of
    our own function where upstream's does not take what matters.
    """
    function = operation.function or operation.name
    options = {parameter.name for parameter in call.arguments() if not parameter.required}
    reduced = call.without(*(options - set(matter)))
    if not is_invoked(call):
        return invocation(function, call)
    called = invocation(function, reduced)
    told = {name for name, value in reduced.stated() if isinstance(value, TensorSpec)}
    return called if told <= set(re.findall(r"\w+", called)) else _named(operation.name, reduced)


def reproduction(operation: Operation, call: Call) -> str:
    """A script that makes this call on upstream's function: run it where the package is installed."""
    function = operation.function or operation.name
    called = invocation(function, call)
    passed = set(re.findall(r"\w+", called))
    definitions = _definitions(call, "cuda", operation.fill(call)).items()
    lines = "\n".join(line for name, line in definitions if name in passed)
    imports = f"from {operation.module} import {function}\n"
    if not re.search("^import torch$", lines, re.MULTILINE):
        imports = f"import torch\n\n{imports}"
    return f"{imports}\n{lines}\n{called}\n"


def invocation(function: str, call: Call) -> str:
    """The call itself, defaults left out: leading tensors by position, whatever follows by name."""
    return call.to_call(function) if is_invoked(call) else _named(function, call)


def _named(function: str, call: Call) -> str:
    arguments, unbroken = [], True
    for index, (name, value) in enumerate(call.stated()):
        named = isinstance(value, TensorSpec) or is_scripted(value)
        unbroken = unbroken and named and index < call.positional and call.arguments()[index].name == name
        written = name if named else literal(value)
        arguments.append(written if unbroken else f"{name}={written}")
    line = f"{function}({', '.join(arguments)})"
    return line if len(line) <= WIDTH else "\n".join([f"{function}(", *_filled(arguments), ")"])


def _filled(arguments: Iterable[str]) -> Iterator[str]:
    """Indented lines, each as full as WIDTH allows."""
    line = "   "
    for argument in arguments:
        if len(line) + len(argument) + 2 > WIDTH and line.strip():
            yield line
            line = "   "
        line += f" {argument},"
    yield line


def literal(value: Any) -> str:
    """A plain value as Python source."""
    if isinstance(value, DType):
        return f"torch.{value.torch_name}"
    if isinstance(value, float) and not isfinite(value):
        return f'float("{value}")'
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(dict(value) if isinstance(value, Mapping) else value)


def tensor(spec: TensorSpec, values: Values | None = None, device: str = "cuda") -> str:
    """An expression that builds the tensor; without values its elements are left uninitialised.

    A view is written as the slice it most likely is: of wider rows, of a buffer's tail, of an expanded row.
    """
    values = spec.values or values
    where = f'dtype=torch.{spec.dtype}, device="{_placed(spec.device, device)}"'
    if spec.is_default:
        return _dense(spec.shape, spec.dtype, values, where)
    if values is None:
        return _view(spec, None, where)
    if isinstance(values, (Zeros, Ones, Full)):
        return _view(spec, values, where)
    dense = _dense(spec.shape, spec.dtype, values, where)
    return f"{_view(spec, None, where)}.copy_({dense})"


def _definitions(call: Call, device: str, fill: Mapping[str, Values]) -> dict[str, str]:
    """Argument → the statement that defines it, for those that are not written in the call itself."""
    lines = {}
    for name, value in call.stated():
        if isinstance(value, TensorSpec):
            lines[name] = f"{name} = {tensor(value, fill.get(name), device)}"
        elif is_scripted(value):
            lines[name] = value.to_python(name)
    return lines


def _placed(own: str, device: str) -> str:
    """The device to write: `device` in place of the caller's GPU, its index kept where it is a GPU too."""
    kind, _, index = own.partition(":")
    if kind != "cuda" or device == "cuda":
        return own
    return device if not index or not device.startswith("cuda") else f"cuda:{index}"


def _sizes(shape: Shape) -> str:
    return ", ".join(map(str, shape)) if shape else "()"


def _dense(shape: Shape, dtype: DType, values: Values | None, where: str) -> str:
    device = where.rpartition(", ")[2]
    cast = "" if dtype is DType.F32 else f".to(torch.{dtype})"
    viewed = "" if len(shape) == 1 else f".view({_sizes(shape)})"
    match values:
        case None:
            return f"torch.empty({_sizes(shape)}, {where})"
        case Zeros():
            return f"torch.zeros({_sizes(shape)}, {where})"
        case Ones():
            return f"torch.ones({_sizes(shape)}, {where})"
        case Full(value=value):
            return f"torch.full({shape}, {literal(value)}, {where})"
        case Arange(start=start, step=step):
            ramp = f"torch.arange({_count(shape)}, {device})"
            scaled = ramp if step == 1 else f"{ramp} * {literal(step)}"
            moved = scaled if start == 0 else f"{scaled} + {literal(start)}"
            return f"({moved}){viewed}.to(torch.{dtype})"
        case Randint(low=low, high=high):
            drawn = f"torch.randint({low}, {max(high, low + 1)}, {shape}, {device})"
            return drawn if dtype is DType.I64 else f"{drawn}.to(torch.{dtype})"
        case Randn(mean=mean, std=std):
            plain = (mean, std) == (0, 1)
            drawn = f"torch.randn({_sizes(shape)}, {where if plain and dtype in DRAWN else device})"
            if plain:
                return drawn if dtype in DRAWN else drawn + cast
            moved = f"{drawn} * {literal(std)}" + (f" + {literal(mean)}" if mean else "")
            return f"({moved}){cast}"
        case Listed():
            elements = list(values.flat()) or [0]
            repeats = max(1, -(-_count(shape) // len(elements)))
            repeated = f".repeat({repeats})" if repeats > 1 else ""
            cut = f"[:{_count(shape)}]" if repeats * len(elements) != _count(shape) else ""
            return f"torch.tensor({elements}, {where}){repeated}{cut}{viewed}"
        case Text():
            data = values.encoded()[: _count(shape)]
            written = values.text if data == values.encoded() else data.decode("utf-8", "replace")
            zeros = _count(shape) - len(data)
            padding = f" + [0] * {zeros}" if zeros else ""
            return f"torch.tensor(list({literal(written)}.encode()){padding}, {where}){viewed}"


def _view(spec: TensorSpec, values: Zeros | Ones | Full | None, where: str) -> str:
    """A tensor of this layout: a slice of a dense buffer where that gives it, else by its strides."""

    def buffer(*shape: int) -> str:
        return _dense(shape, spec.dtype, values, where)

    shape, strides, offset = spec.shape, spec.strides, spec.offset
    if len(shape) >= 2 and strides[-1] == 1 and shape[-1] <= strides[-2] - offset and shape[-1] < strides[-2]:
        wider = (*shape[:-1], strides[-2])
        if strides == row_major(wider):
            return f"{buffer(*wider)}[..., {offset or ''}:{offset + shape[-1]}]"
    if strides == row_major(shape):
        viewed = "" if len(shape) == 1 else f".view({_sizes(shape)})"
        return f"{buffer(offset + spec.numel)}[{offset}:]{viewed}"
    narrow = tuple(1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True))
    if (
        offset == 0
        and 0 in strides
        and all(
            wanted == stride or stride == 0 for wanted, stride in zip(row_major(narrow), strides, strict=True)
        )
    ):
        return f"{buffer(*narrow)}.expand({_sizes(shape)})"
    if values is None and offset == 0:
        return f"torch.empty_strided({shape}, {strides}, {where})"
    return f"{buffer(offset + spec.extent)}.as_strided({shape}, {strides}, {offset})"


def _count(shape: Shape) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
