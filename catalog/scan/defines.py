"""Macros that a package makes of known checks: `#define CHECK_CUDA(x) CHECK(x.is_cuda()) << #x " must be …"`.

Their text is complete where they are used, with the arguments' own spelling in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from catalog.scan.model import Argument, Builder, Found, Parts, literal_length
from kernels.message import Hole

MOST: Final = 8
"""Checks of one macro that are followed: one that dispatches has hundreds."""
LEAST_SAID: Final = 12
"""Literal characters that make the text of a macro one of its own, whatever it is given."""
_STRING: Final = "FAULTBOOK_TEXT_OF_"
_DEFINE: Final = re.compile(
    rb"^[ \t]*#[ \t]*define[ \t]+(\w+)\(([^)\n]*)\)((?:[^\n]*\\\r?\n)*[^\n]*)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Define:
    """A function-like macro: `body` is a function's source with it inside, stringified parameters named."""

    name: str
    parameters: tuple[str, ...]
    body: bytes
    line: int
    end_line: int


def defines(data: bytes, mentioned: re.Pattern[bytes]) -> Iterator[Define]:
    """The macros of a file whose body mentions what reports an error."""
    for found in _DEFINE.finditer(data):
        body = found[3]
        if mentioned.search(body) is None:
            continue
        names = [name.strip().decode("utf-8", "replace") for name in found[2].replace(b"\\", b"").split(b",")]
        parameters = tuple("__VA_ARGS__" if name == "..." else name for name in names if name)
        text = re.sub(rb"\\\r?\n", b"\n", body).replace(b"##__VA_ARGS__", b"__VA_ARGS__")
        for name in parameters:
            text = re.sub(
                rb"(?<!#)#\s*" + re.escape(name.encode()) + rb"\b",
                b" %b%b " % (_STRING.encode(), name.encode()),
                text,
            )
        line = data.count(b"\n", 0, found.start()) + 1
        yield Define(
            found[1].decode(), parameters, b"void f() {\n%b\n;}\n" % text, line, line + body.count(b"\n")
        )


def spelled(parts: Parts) -> Parts:
    """The parts of a text in a macro's body, stringified parameters as `#name`."""
    return tuple(
        Hole(f"#{part.expr.removeprefix(_STRING)}")
        if isinstance(part, Hole) and part.expr.startswith(_STRING)
        else part
        for part in parts
    )


def builder(define: Define, site: Found) -> Builder:
    """What a macro makes of its parameters by one of the checks in it."""
    return Builder(
        define.name,
        define.parameters,
        spelled(site.parts or ()),
        site.exception,
        site.level,
        condition=" and ".join(site.conditions).replace(_STRING, "#"),
        kind=site.kind,
    )


def depends(made: Builder) -> bool:
    """Whether a builder's text has anything of its parameters in it."""
    return any(isinstance(part, Hole) and _named(part.expr, made.parameters) for part in made.parts)


def nested(made: Sequence[Builder], define: Define, calls: Iterable[Found]) -> Iterator[Builder]:
    """What a macro makes of its parameters by the package's own macros that it uses."""
    for call in calls:
        for inner in made:
            if inner.name == call.exception and inner.name != define.name:
                parts, condition = expanded(inner, call.arguments, define.parameters)
                yield replace(
                    inner,
                    name=define.name,
                    parameters=define.parameters,
                    parts=spelled(parts),
                    condition=condition,
                )


def expanded(
    made: Builder, arguments: Sequence[Argument], handed_on: Sequence[str] = ()
) -> tuple[Parts, str]:
    """The text and the condition of a macro that is given these arguments.

    `handed_on` are parameters of another macro, which an argument may be: that spells them where it is used.
    """
    values = dict(zip(made.parameters, arguments, strict=False))
    rest = arguments[len(made.parameters) - 1 :] if made.parameters[-1:] == ("__VA_ARGS__",) else ()
    parts: list[str | Hole] = []
    for part in made.parts:
        if not isinstance(part, Hole):
            parts.append(part)
        elif part.expr == "__VA_ARGS__":
            parts += [item for argument in rest for item in argument.parts]
        elif part.expr.startswith("#") and part.expr[1:] in values:
            text = values[part.expr[1:]].text
            parts.append(Hole(f"#{text}") if text in handed_on else text)
        elif part.expr in values:
            parts += values[part.expr].parts
        else:
            parts.append(Hole(_filled(part.expr, values), part.conversion, part.format_spec))
    return tuple(parts), _filled(made.condition, values)


def says(parts: Parts) -> bool:
    """Whether a text has words enough to be known by."""
    return literal_length(parts) >= LEAST_SAID


def _filled(text: str, values: dict[str, Argument]) -> str:
    if not values or "__VA_ARGS__" in text:
        return text
    names = "|".join(map(re.escape, values))
    return re.sub(rf"#?\b(?:{names})\b", lambda found: values[found[0].lstrip("#")].text, text)


def _named(expr: str, parameters: Sequence[str]) -> bool:
    return any(word in parameters for word in re.findall(r"\w+", expr))
