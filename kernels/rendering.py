"""Calls as Python that a user of torch would write: what builds the tensors, then the call.

An argument that is no tensor and no plain value brings `to_python(name)`: the lines that define that name.
One that callers have as a file brings `to_revision` and `to_contrast` too: the lines that change it.
A call whose function takes its arguments in another form brings `to_call(function)`: the call's own text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeGuard

from kernels.call import Call
from kernels.converting import converted
from kernels.expressions import literal, tensor
from kernels.registry import Operation
from kernels.spec import TensorSpec
from kernels.values import Values

WIDTH = 100
"""Columns of a call's lines."""


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
    """Lines that make the fix: those that change the caller's own file, else those that change the call."""
    revisions = [
        (name, value.to_revision(name, getattr(fixed, name)))
        for name, value in call.stated()
        if is_revisable(value) and is_revisable(getattr(fixed, name))
    ]
    if not revisions:
        return _fixed_call(operation, call, fixed)
    function = _function(operation)
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
    """The call as it was described, then what a fix changes of it, each with what was, then the passing call.

    An input of another layout is converted; what the operation writes, and what no conversion gives, is
    made anew.
    """
    before = {edit.argument: _before(getattr(call, edit.argument)) for edit in call.edits_to(fixed)}
    made = _definitions(fixed, "cuda", operation.fill(fixed))
    own = operation.fill(call) if before.keys() & made.keys() else {}
    kept, changed = [], []
    for name, line in made.items():
        if name not in before:
            kept.append(line)
            continue
        conversion = _conversion(name, getattr(call, name), getattr(fixed, name))
        if conversion is not None and name not in operation.outputs:
            kept.append(f"{name} = {tensor(getattr(call, name), own.get(name))}")
            changed.append(f"{name} = {conversion}  # {before.pop(name)}")
        else:
            changed.append(f"{line}  # {before.pop(name)}")
    changed += [f"# {name}: {was}" for name, was in before.items()]
    return _script(operation, [*kept, "", *changed, invocation(_function(operation), fixed)])


def _conversion(name: str, before: Any, after: Any) -> str | None:
    tensors = isinstance(before, TensorSpec) and isinstance(after, TensorSpec)
    return converted(name, before, after) if tensors else None


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
    function = _function(operation)
    options = {parameter.name for parameter in call.arguments() if not parameter.required}
    reduced = call.without(*(options - set(matter)))
    if not is_invoked(call):
        return invocation(function, call)
    called = invocation(function, reduced)
    told = {name for name, value in reduced.stated() if isinstance(value, TensorSpec)}
    return called if told <= set(re.findall(r"\w+", called)) else _named(operation.name, reduced)


def reproduction(operation: Operation, call: Call) -> str:
    """A script that makes this call on upstream's function: run it where the package is installed."""
    called = invocation(_function(operation), call)
    passed = set(re.findall(r"\w+", called))
    definitions = _definitions(call, "cuda", operation.fill(call)).items()
    return _script(operation, [*(line for name, line in definitions if name in passed), called]) + "\n"


def _script(operation: Operation, lines: Iterable[str]) -> str:
    """The lines behind the import of upstream's function, and of torch where they need it."""
    imported = f"from {operation.module} import {_function(operation)}"
    return _with_torch("\n".join([imported, "", *lines]))


def _function(operation: Operation) -> str:
    """Upstream's name of the function."""
    return operation.function or operation.name


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


def _definitions(call: Call, device: str, fill: Mapping[str, Values]) -> dict[str, str]:
    """Argument → the statement that defines it, for those that are not written in the call itself."""
    lines = {}
    for name, value in call.stated():
        if isinstance(value, TensorSpec):
            lines[name] = f"{name} = {tensor(value, fill.get(name), device)}"
        elif is_scripted(value):
            lines[name] = value.to_python(name)
    return lines
