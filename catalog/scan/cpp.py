"""Checks and throws of a C++ or CUDA file, with their texts, by a real parser."""

from __future__ import annotations

import codecs
import re
from functools import cache
from typing import Final

import tree_sitter_cpp
from tree_sitter import Language, Node, Parser, Query, QueryCursor

from catalog.scan import defines as macro_text
from catalog.scan.around import Surroundings, text_of
from catalog.scan.defines import Define, defines
from catalog.scan.macros import PROMISING, THROWN, Macro, Macros
from catalog.scan.model import Argument, Builder, Found, Kind, Level, Parts, Scanned
from catalog.scan.printed import given, operator, part, printed
from catalog.scan.source import shown, snippet

_QUERY: Final = """
(call_expression function: (_) @callee arguments: (argument_list) @arguments) @call
(throw_statement) @throw
(static_assert_declaration condition: (_) @condition message: (_) @message) @static
"""
_INCLUDE: Final = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^">\n]{1,200})[">]', re.MULTILINE)
KERNELS: Final = (".cu", ".cuh", ".hip")
_PROMISING: Final = re.compile(PROMISING)


@cache
def _tools() -> tuple[Parser, Query]:
    language = Language(tree_sitter_cpp.language())
    return Parser(language), Query(language, _QUERY)


def scan(path: str, data: bytes, macros: Macros) -> Scanned:
    """All sites of a file; what the parser does not understand is passed over."""
    data = _utf8(data)
    includes = tuple(found[1].decode("utf-8", "replace") for found in _INCLUDE.finditer(data))
    kernels = path.endswith(KERNELS)
    if macros.mentioned.search(data) is None and not (kernels and b"static_assert" in data):
        return Scanned(path, language="cpp", includes=includes)
    sites, calls = _read(data, macros, kernels=kernels)
    made: list[Builder] = []
    for define in defines(data, macros.mentioned):
        own, more = _defined(define, macros, made)
        made += own
        sites += more
    sites.sort(key=lambda site: site.line)
    lines = data.removesuffix(b"\n").split(b"\n")
    snippets = tuple(snippet(len(lines), site.line, site.end_line) for site in (*sites, *calls))
    return Scanned(
        path,
        tuple(sites),
        helpers=tuple(made),
        calls=tuple(calls),
        snippets=snippets,
        code=shown(lines, snippets),
        language="cpp",
        includes=includes,
    )


def _utf8(data: bytes) -> bytes:
    """A source in the parser's encoding: of Visual Studio's in their own, of the others byte by byte."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace").encode()
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1").encode()
    return data


def _read(data: bytes, macros: Macros, *, kernels: bool = False) -> tuple[list[Found], list[Found]]:
    """The sites of a source, and the calls that may be of a macro of the package's own.

    Of `kernels`, which are compiled where they are used, what the compiler says when a static assertion
    fails; libraries of templates have thousands that only their authors meet.
    """
    parser, query = _tools()
    sites: list[Found] = []
    calls: list[Found] = []
    where = Surroundings()
    for _, captured in QueryCursor(query).matches(parser.parse(data).root_node):
        if "throw" in captured:
            found = _throw(captured["throw"][0], where)
            sites += [found] if found is not None else []
            continue
        if "static" in captured:
            if not kernels:
                continue
            failing = text_of(captured["condition"][0])
            parts = part(captured["message"][0])
            sites.append(_found(captured["static"][0], where, "RuntimeError", parts, (f"not ({failing})",)))
            continue
        call, arguments = captured["call"][0], captured["arguments"][0]
        name = _called_name(captured["callee"][0])
        macro = macros.by_name.get(name)
        if macro is not None:
            found = _check(call, arguments, macro, where)
            sites += [found] if found is not None else []
        elif _PROMISING.fullmatch(name) is not None:
            calls.append(_used(call, arguments, name, where))
    return sites, calls


def _defined(define: Define, macros: Macros, made: list[Builder]) -> tuple[list[Builder], list[Found]]:
    """What a macro of the package makes of its parameters, and the sites in it that need none of them."""
    if define.name in macros.by_name:
        return [], []
    sites, calls = _read(define.body, macros)
    builders = [macro_text.builder(define, site) for site in sites[: macro_text.MOST] if site.parts]
    builders += list(macro_text.nested(made, define, calls))[: macro_text.MOST]
    fixed = []
    for site in sites:
        parts = macro_text.spelled(site.parts or ())
        if macro_text.says(parts):
            fixed.append(_at(site, define, parts))
    return [builder for builder in builders if macro_text.depends(builder)], fixed


def _at(site: Found, define: Define, parts: Parts) -> Found:
    """A site in a macro's body, at the place where the macro is defined."""
    return Found(
        site.kind,
        site.exception,
        site.level,
        parts,
        site.expression,
        define.line,
        define.end_line,
        define.name,
        None,
        site.conditions,
    )


def _called_name(callee: Node) -> str:
    name = text_of(callee).split("<")[0].rpartition("::")[2].rpartition(".")[2].rpartition(">")[2]
    return name.strip()


def _used(call: Node, arguments: Node, name: str, where: Surroundings) -> Found:
    values = tuple(Argument(None, part(node), text_of(node)) for node in given(arguments))
    return _found(call, where, name, None, (), arguments=values)


def _check(call: Node, arguments: Node, macro: Macro, where: Surroundings) -> Found | None:
    items = given(arguments)
    if macro.name == "LOG" and (not items or text_of(items[0]) != "FATAL"):
        return None
    exception = macro.exception
    if macro.names_class:
        if not items:
            return None
        named = text_of(items[0]).rpartition("::")[2].removeprefix("PyExc_")
        exception = THROWN.get(named, named if named.endswith("Error") else "RuntimeError")
        items = items[1:]
    condition = items[: macro.condition]
    parts = printed(items[macro.condition :], formatted=macro.formatted)
    whole = call
    while (parent := whole.parent) is not None:
        if parent.type == "binary_expression" and _is_first(parent, whole) and operator(parent) == "<<":
            right = parent.child_by_field_name("right")
            parts += part(right) if right is not None else ()
        elif not (
            macro.textless
            and parent.type in ("field_expression", "call_expression")
            and _is_first(parent, whole)
        ):
            break
        whole = parent
    failing = f" {macro.comparison} ".join(map(text_of, condition)) if macro.comparison else None
    if failing is None and condition:
        failing = text_of(condition[0])
    told = failing and failing not in ("false", "0") and macro.name != "LOG" and not macro.textless
    said = None if macro.textless or not any(isinstance(item, str) for item in parts) else parts
    more = (f"not ({failing})",) if told else ()
    return _found(whole, where, exception, said, more, kind=macro.kind, level=macro.level)


def _throw(node: Node, where: Surroundings) -> Found | None:
    raised = next((child for child in node.named_children if child.type != "comment"), None)
    if raised is None or raised.type not in ("call_expression", "compound_literal_expression"):
        return None
    callee = raised.child_by_field_name("function") or raised.child_by_field_name("type")
    arguments = raised.child_by_field_name("arguments") or raised.child_by_field_name("value")
    if callee is None or arguments is None:
        return None
    name = text_of(callee).split("<")[0].rpartition("::")[2]
    parts = printed(given(arguments))
    said = parts if any(isinstance(item, str) for item in parts) else None
    return _found(node, where, THROWN.get(name, "RuntimeError"), said, ())


def _found(
    node: Node,
    where: Surroundings,
    exception: str,
    parts: Parts | None,
    more: tuple[str, ...],
    *,
    kind: Kind = "check",
    level: Level = "error",
    arguments: tuple[Argument, ...] = (),
) -> Found:
    function, owner, conditions = where.of(node)
    return Found(
        kind,
        exception,
        level,
        parts,
        text_of(node).removesuffix(";"),
        node.start_point.row + 1,
        node.end_point.row + 1,
        function,
        owner,
        (*conditions, *more),
        arguments,
    )


def _is_first(parent: Node, child: Node) -> bool:
    return bool(parent.children) and parent.children[0] == child
