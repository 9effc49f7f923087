"""A described checkpoint as Python: what writes the file, and what turns a file into another.

A revision states the difference alone, as statements on `tensors` and `metadata`, so that it applies to the
caller's own file and its numbers.
"""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from kernels.dtypes import DType, Kind
from kernels.expressions import literal, sizes, tensor
from kernels.rendering import WIDTH
from kernels.spec import TensorSpec
from kernels.values import Ones, Values, Zeros
from kernels.wording import deeper

if TYPE_CHECKING:
    from kernels.checkpoint import Checkpoint, Header

T = TypeVar("T")

SHOWN = 2048
"""Characters of metadata up to which a script says what they hold."""

NESTING = 4
"""Levels of JSON that a script writes member by member; deeper ones are written as one value."""

CANDIDATES = 8
"""Names tried as the one that the first lost name became."""

HERE = "\0"
"""Stands in a statement for the member that it is about."""

PLACEHOLDER = "  # a placeholder: the numbers must come from the export"


def writing(name: str, file: Checkpoint) -> str:
    """Lines that write such a file, after which `name` holds its path."""
    entries = [
        f"        {_text(key)}: {built(header)},{_stand_in(header)}" for key, header in file.tensors.items()
    ]
    notes = [f"        {_text(key)}: {_text(value)},{_remark(value)}" for key, value in file.metadata.items()]
    metadata = ["    metadata={", *notes, "    },"] if notes else []
    return "\n".join(
        [
            "import torch",
            "from safetensors.torch import save_file",
            "",
            f'{name} = "{name}.safetensors"',
            "save_file(",
            *(["    {", *entries, "    },"] if entries else ["    {},"]),
            f"    {name},",
            *metadata,
            ")",
        ]
    )


def revising(name: str, before: Checkpoint, after: Checkpoint) -> str:
    """Lines that read the caller's file and write a new one with what differs; `name` then holds its path.

    Two equal files leave the path of the caller's alone.
    """
    path = f'{name} = "{name}.safetensors"  # your file'
    changes = list(statements(before, after))
    if not changes:
        return path
    saved = f'{name} = "{name}-fixed.safetensors"\nsave_file(tensors, {name}, metadata)'
    return "\n".join(
        [
            *_imports(changes),
            "from safetensors import safe_open",
            "from safetensors.torch import save_file",
            "",
            path,
            f'with safe_open({name}, framework="pt") as file:',
            "    metadata = file.metadata() or {}",
            "    tensors = {key: file.get_tensor(key) for key in file.keys()}",
            "",
            *changes,
            "",
            saved,
        ]
    )


def contrasting(name: str, other: Checkpoint, file: Checkpoint, *, afresh: bool) -> str:
    """Lines on the `tensors` and `metadata` of `other` that save `file`; nothing for two equal files.

    afresh   members are stated as they are, not by what turns them from one into the other
    """
    changes = list(statements(other, file, afresh=afresh))
    return "\n".join([*changes, f"save_file(tensors, {name}, metadata)"]) if changes else ""


def statements(before: Checkpoint, after: Checkpoint, *, afresh: bool = False) -> Iterator[str]:
    """Statements that turn `tensors` and `metadata` of one file into those of another."""

    if afresh:
        yield from _revised("tensors", before.tensors, after.tensors, None, _built_afresh)
        yield from _revised("metadata", before.metadata, after.metadata, None, _told_exactly)
    else:
        yield from _revised("tensors", before.tensors, after.tensors, _turned, _made)
        yield from _revised("metadata", before.metadata, after.metadata, _retold, _told)


def built(header: Header) -> str:
    """Python that builds a tensor: its values, else zeros, or ones where they are floating point."""
    dtype = DType.parse(header.dtype)
    default: Values = Ones() if dtype.kind is Kind.FLOAT else Zeros()
    return _expression(header, header.values or default)


def _expression(header: Header, values: Values) -> str:
    dtype = DType.parse(header.dtype)
    if not dtype.in_torch:
        return _expression_of(TensorSpec((header.nbytes,), DType.U8, device="cpu"), Zeros())
    return _expression_of(TensorSpec(header.shape, dtype, device="cpu"), values)


def _stand_in(header: Header) -> str:
    """A comment where `built` gives bytes in place of the tensor."""
    if DType.parse(header.dtype).in_torch:
        return ""
    return f"  # stands for {header}, which torch has no tensors of"


def _expression_of(spec: TensorSpec, values: Values) -> str:
    return tensor(spec, values).replace(', device="cpu"', "")  # torch's own default


def _revised(
    container: str,
    before: Mapping[str, T],
    after: Mapping[str, T],
    turned: Callable[[T, T], str] | None,
    made: Callable[[T], str],
) -> Iterator[str]:
    """Statements on a container's members: renamed, removed, added or changed; alike ones in one loop.

    turned   (before, after) → a statement that changes one into the other; `made` where there is none
    made     a statement that states one
    """
    lost = [name for name in before if name not in after]
    new = [name for name in after if name not in before]
    renamed = _renamed(before, after, lost, new)
    if renamed:
        yield _moved(container, renamed)
    else:
        yield from _each(container, lost, f"del {HERE}")
    alike: dict[str, list[str]] = defaultdict(list)
    for name, item in after.items():
        if name in before and before[name] != item:
            alike[turned(before[name], item) if turned else made(item)].append(name)
        elif name not in before and not renamed:
            alike[made(item)].append(name)
    for statement, names in alike.items():
        yield from _each(container, names, statement)


def _renamed(
    before: Mapping[str, T], after: Mapping[str, T], lost: list[str], new: list[str]
) -> dict[str, str]:
    """Lost names → new ones, where all got or lost the same leading part and hold the same; else nothing."""
    if not lost or len(lost) != len(new):
        return {}
    first = lost[0]
    alike = (name for name in new if name.endswith(first) or first.endswith(name))
    for name in islice(alike, CANDIDATES):
        added, taken = name.removesuffix(first), first.removesuffix(name)
        if name.endswith(first):
            pairs = {old: added + old for old in lost}
        else:
            pairs = {old: old.removeprefix(taken) for old in lost}
        if set(pairs.values()) == set(new) and all(before[old] == after[pairs[old]] for old in lost):
            return pairs
    return {}


def _moved(container: str, renamed: Mapping[str, str]) -> str:
    if len(renamed) == 1:
        [(old, new)] = renamed.items()
        return f"{container}[{_text(new)}] = {container}.pop({_text(old)})"
    pairs = "".join(f"    {_text(old)}: {_text(new)},\n" for old, new in renamed.items())
    return f"for old, new in {{\n{pairs}}}.items():\n    {container}[new] = {container}.pop(old)"


def _each(container: str, names: Collection[str], statement: str) -> Iterator[str]:
    """The statement for one member, or a loop over several."""
    if len(names) == 1:
        [name] = names
        yield statement.replace(HERE, f"{container}[{_text(name)}]")
    elif names:
        listed = ", ".join(map(_text, names))
        if len(listed) > WIDTH:
            listed = "\n" + "".join(f"    {_text(name)},\n" for name in names)
        body = statement.replace(HERE, f"{container}[key]").replace("\n", "\n    ")
        yield f"for key in ({listed}):\n    {body}"


def _built_afresh(header: Header) -> str:
    """States a tensor by its values, or by those that stand for them."""
    return f"{HERE} = {built(header)}{_stand_in(header)}"


def _made(header: Header) -> str:
    """States a tensor; numbers that nobody described are NaN, so that they cannot pass for real ones."""
    dtype = DType.parse(header.dtype)
    if header.values is not None or not dtype.in_torch:
        return _built_afresh(header)
    if dtype.kind is Kind.FLOAT:
        return f'{HERE} = torch.full({header.shape}, float("nan"), dtype=torch.{dtype}){PLACEHOLDER}'
    return f"{HERE} = {built(header)}{PLACEHOLDER}"


def _turned(old: Header, new: Header) -> str:
    """Turns one tensor into another by its own numbers, where those are what the other holds."""
    before, after = DType.parse(old.dtype), DType.parse(new.dtype)
    told = new.values is not None and (new.values != old.values or before is not after)
    forgotten = new.values is None and old.values is not None
    if told or forgotten or not (before.in_torch and after.in_torch) or old.numel not in (1, new.numel):
        return _made(new)
    steps, doubt = _converted(before, after)
    if old.numel != new.numel:
        steps += f"{'.reshape(())' * bool(old.shape)}.expand({sizes(new.shape)}).contiguous()"
    elif old.shape != new.shape:
        steps += f".reshape({sizes(new.shape)})"
    return f"{HERE} = {HERE}{steps}{doubt}"


def _converted(before: DType, after: DType) -> tuple[str, str]:
    """The step between two types, and a comment where it cannot know what the numbers stand for.

    Codes of eight bits keep their bytes: E8M0 exponents in a tensor of U8, or packed pairs in one of I8.
    """
    if before is after:
        return "", ""
    kinds = {before.kind, after.kind}
    if before.bits == after.bits == 8 and kinds != {Kind.FLOAT} and Kind.BOOL not in kinds:
        doubt = f"  # the same bytes: right only if they are {after.safetensors} codes already"
        return f".view(torch.{after})", doubt
    doubt = f"  # right only if {before.safetensors} numbers mean what {after.safetensors} ones do"
    return f".to(torch.{after})", "" if kinds == {Kind.FLOAT} else doubt


def _told_exactly(text: str) -> str:
    """States metadata as `_told` does where that gives this very text."""
    held, wrapped = _held(text)
    plain = json.dumps(held)
    same = text == (base64.b64encode(plain.encode()).decode() if wrapped else plain)
    return _told(text) if same else f"{HERE} = {_text(text)}{_remark(text)}"


def _told(text: str) -> str:
    """States metadata: JSON in base64, or bare, as the object that it is; any other text as it stands."""
    held, wrapped = _held(text)
    if held is None or deeper(held, NESTING):
        return f"{HERE} = {_text(text)}{_remark(text)}"
    return f"{HERE} = {_encoded(_value(held), wrapped)}"


def _retold(old: str, new: str) -> str:
    """Turns one metadata text into another: JSON by its members, white space by taking it out."""
    if "".join(old.split()) == new:
        return f'{HERE} = "".join({HERE}.split())'
    (before, was_wrapped), (after, wrapped) = _held(old), _held(new)
    if before is None or after is None or deeper(before, NESTING) or deeper(after, NESTING):
        return _told(new)
    changes = "\n".join(_members("held", before, after))
    whole = _told(new)
    if len(changes) > len(whole):
        return whole
    source = f"base64.b64decode({HERE})" if was_wrapped else HERE
    lines = (f"held = json.loads({source})", changes, f"{HERE} = {_encoded('held', wrapped)}")
    return "\n".join(filter(None, lines))


def _members(container: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Statements on an object's members; where objects among them differ, each in its own way, on theirs."""
    changed = [name for name in after if name in before and before[name] != after[name]]
    objects = all(isinstance(side[name], dict) for name in changed for side in (before, after))
    distinct = len({repr(after[name]) for name in changed}) == len(changed)
    if changed and before.keys() == after.keys() and objects and distinct:
        for name in changed:
            yield from _members(f"{container}[{_text(name)}]", before[name], after[name])
    else:
        yield from _revised(container, before, after, None, lambda item: f"{HERE} = {_value(item)}")


def _held(text: str) -> tuple[dict[str, Any] | None, bool]:
    """The object that metadata holds as JSON, and whether in base64; None where there is none."""
    for wrapped in (True, False):
        try:
            plain = base64.b64decode(text, validate=True).decode("utf-8") if wrapped else text
            value = json.loads(plain)
            if isinstance(value, dict):
                return value, wrapped
        except (ValueError, RecursionError):
            continue
    return None, False


def _encoded(value: str, wrapped: bool) -> str:
    return f"base64.b64encode(json.dumps({value}).encode()).decode()" if wrapped else f"json.dumps({value})"


def _value(value: Any) -> str:
    """A JSON value as Python, the members of an object with many on lines of their own."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        members = [f"{_text(name)}: {_value(item)}" for name, item in value.items()]
        line = f"{{{', '.join(members)}}}"
        if len(line) <= WIDTH - 20:
            return line
        inner = "".join(f"    {member},\n".replace("\n", "\n    ")[:-4] for member in members)
        return f"{{\n{inner}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return literal(value)


def _text(value: str) -> str:
    """A text as Python; half a surrogate pair, which JSON can spell, is escaped."""
    half = any("\ud800" <= character <= "\udfff" for character in value)
    return repr(value) if half else literal(value)


def _remark(value: str) -> str:
    """A comment with the JSON that a short base64 text holds; nothing for any other text."""
    try:
        text = base64.b64decode(value[:SHOWN], validate=True).decode("utf-8")
    except ValueError:
        return ""
    return f"  # {text}" if text[:1] in ("{", "[") and text.isprintable() and len(value) < SHOWN else ""


def _imports(lines: Collection[str]) -> Iterator[str]:
    text = "\n".join(lines)
    found = [f"import {name}" for name in ("base64", "json") if re.search(rf"\b{name}\.", text)]
    yield from found
    if found:
        yield ""
    if "torch." in text:
        yield "import torch"
