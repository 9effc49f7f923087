"""Calls that report an error: logging, `torch._check`, `sys.exit`, warnings, and helpers that raise."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Final

from catalog.scan.model import Kind, Level
from catalog.scan.source import dotted
from catalog.scan.texts import is_class

_LOGGER: Final = re.compile(r"(?:^|[._])_?(?:log|logger|logging|LOG|LOGGER)$", re.IGNORECASE)
_PARSER: Final = re.compile(r"(?:^|[._])(?:arg)?parser$", re.IGNORECASE)
_LEVELS: Final[dict[str, Level]] = {
    "critical": "critical",
    "fatal": "critical",
    "error": "error",
    "exception": "error",
    "warning": "warning",
    "warn": "warning",
    "error_once": "error",
    "warning_once": "warning",
    "warn_once": "warning",
}
_CHECKS: Final = {
    "_check": "RuntimeError",
    "_check_index": "IndexError",
    "_check_value": "ValueError",
    "_check_type": "TypeError",
    "_check_not_implemented": "NotImplementedError",
    "_check_is_size": "RuntimeError",
    "_check_tensor_all": "RuntimeError",
    "_check_tensor_all_with": "RuntimeError",
    "_assert_async": "RuntimeError",
    "_assert_scalar": "RuntimeError",
    "_assert": "AssertionError",
    "static_assert": "CompilationError",
    "device_assert": "AssertionError",
}
_RAISER: Final = re.compile(r"_{0,2}(?:re)?(?:raise|throw)(?:_(?:error|exception|from|exc)?)?")
# Only calls whose name promises it are remembered for functions that another file defines.
_MAY_RAISE: Final = re.compile(
    r"raise|error|fail|abort|check|assert|warn|throw|require|ensure|unsupported|invalid|unimplemented|panic"
    r"|expect|valid|verify|deprecat|exit|not_implemented",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Report:
    """A call that reports: the expression of its text, the arguments that fill it, the condition it needs."""

    kind: Kind
    exception: str
    level: Level
    message: ast.expr | None
    values: list[ast.expr]
    condition: ast.expr | None = None


def reported(call: ast.Call) -> Report | None:
    """What a call reports by itself; None for one that is no known way to."""
    base, _, name = dotted(call.func).rpartition(".")
    if not base and isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
        # logging.getLogger(__name__).error(…), logger.bind(…).error(…)
        made = dotted(call.func.value.func)
        base = "logger" if made.endswith(("getLogger", "get_logger")) else made.rpartition(".")[0]
    if name in _LEVELS and base and _LOGGER.search(base):
        return _logged(call, _LEVELS[name])
    if name == "log" and base and _LOGGER.search(base) and len(call.args) > 1:
        level = dotted(call.args[0]).rpartition(".")[2].lower()
        return _logged(call, _LEVELS[level], 1) if level in _LEVELS else None
    if name in _CHECKS and base.rpartition(".")[2] in ("torch", "tl", "language", "ttl"):
        message = _keyword(call, "message", "msg") or (call.args[1] if len(call.args) > 1 else None)
        condition = call.args[0] if call.args else _keyword(call, "cond", "condition")
        return Report("check", _CHECKS[name], "error", message, [], condition)
    if name == "_check_with" and len(call.args) > 2:
        exception = dotted(call.args[0]).rpartition(".")[2]
        return Report("check", exception, "error", call.args[2], [], call.args[1])
    if name == "exit" and base == "sys" and len(call.args) == 1 and not _is_number(call.args[0]):
        return Report("exit", "SystemExit", "error", call.args[0], [])
    if name == "error" and _PARSER.search(base) and len(call.args) == 1:
        return Report("exit", "SystemExit", "error", call.args[0], [])
    if name == "warn" and base == "warnings" and call.args:
        said = call.args[0]
        if isinstance(said, ast.Call) and len(said.args) == 1 and dotted(said.func).endswith("Warning"):
            return Report("warning", dotted(said.func).rpartition(".")[2], "warning", said.args[0], [])
        category = call.args[1] if len(call.args) > 1 else _keyword(call, "category")
        exception = dotted(category).rpartition(".")[2] if category is not None else ""
        return Report("warning", exception or "UserWarning", "warning", call.args[0], [])
    return None


def handed(call: ast.Call) -> ast.Call | None:
    """The exception that a call hands to a function which raises what it is given: `raise_(X(…))`."""
    name = dotted(call.func).rpartition(".")[2]
    [given] = call.args if len(call.args) == 1 else [None]
    if isinstance(given, ast.Call) and is_class(dotted(given.func)) and _RAISER.fullmatch(name):
        return given
    return None


def may_raise(call: ast.Call) -> bool:
    """Whether a call's name promises that it raises what it is given."""
    return _MAY_RAISE.search(dotted(call.func).rpartition(".")[2]) is not None


def _logged(call: ast.Call, level: Level, first: int = 0) -> Report | None:
    if len(call.args) <= first:
        return None
    return Report("log", "logging", level, call.args[first], call.args[first + 1 :])


def _keyword(call: ast.Call, *names: str) -> ast.expr | None:
    return next((item.value for item in call.keywords if item.arg in names), None)


def _is_number(node: ast.expr) -> bool:
    """Whether `sys.exit` is only given a code: a number, or a call that gives one."""
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, str)
    return isinstance(node, ast.Call | ast.Name | ast.Attribute | ast.UnaryOp)
