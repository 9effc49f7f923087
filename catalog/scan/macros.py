"""Which calls of C++ and CUDA sources report an error, and how they take their text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from catalog.scan.model import Kind, Level


@dataclass(frozen=True, slots=True)
class Macro:
    """A macro or function that reports.

    condition   arguments before the text that are compared: the check passes when they hold
    comparison  the operator between two of them, for `CHECK_EQ(a, b)`
    exception   the class that Python sees; with `names_class` the first argument is it
    formatted   whether the text is a printf format
    textless    whether its arguments are no text at all
    kind        check, or how it is told that goes on after it was said
    """

    name: str
    condition: int = 1
    comparison: str = ""
    exception: str = "RuntimeError"
    names_class: bool = False
    formatted: bool = False
    textless: bool = False
    kind: Kind = "check"
    level: Level = "error"


_COMPARED: Final = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}


def _family(prefix: str, exception: str = "RuntimeError") -> Iterable[Macro]:
    for suffix, operator in _COMPARED.items():
        yield Macro(f"{prefix}_{suffix}", 2, operator, exception)


def _said(
    *names: str, exception: str = "logging", formatted: bool = False, level: Level = "warning"
) -> Iterable[Macro]:
    kind: Kind = "warning" if exception == "UserWarning" else "log"
    for name in names:
        yield Macro(name, 0, "", exception, formatted=formatted, kind=kind, level=level)


MACROS: Final = (
    Macro("TORCH_CHECK"),
    Macro("STD_TORCH_CHECK"),
    Macro("TORCH_CHECK_WITH", 1, names_class=True),
    Macro("TORCH_CHECK_VALUE", exception="ValueError"),
    Macro("TORCH_CHECK_INDEX", exception="IndexError"),
    Macro("TORCH_CHECK_TYPE", exception="TypeError"),
    Macro("TORCH_CHECK_NOT_IMPLEMENTED", exception="NotImplementedError"),
    Macro("TORCH_CHECK_LINALG", exception="LinAlgError"),
    Macro("TORCH_INTERNAL_ASSERT"),
    Macro("TORCH_INTERNAL_ASSERT_DEBUG_ONLY"),
    *_family("TORCH_CHECK"),
    Macro("AT_ERROR", 0),
    Macro("AT_ASSERT"),
    Macro("AT_ASSERTM"),
    Macro("RuntimeCheck"),
    Macro("RuntimeDeviceCheck"),
    Macro("CHECK_HOST"),
    Macro("Panic", 0),
    Macro("TensorMatcher", 1, textless=True),
    Macro("TVM_FFI_ICHECK"),
    Macro("TVM_FFI_CHECK", 2),
    *_family("TVM_FFI_ICHECK"),
    *_family("TVM_FFI_CHECK"),
    Macro("TVM_FFI_THROW", 0, names_class=True),
    Macro("CHECK"),
    Macro("ICHECK"),
    *_family("CHECK"),
    *_family("ICHECK"),
    Macro("LOG", 1),
    Macro("TVM_FFI_LOG_AND_THROW", 0, names_class=True),
    Macro("C10_THROW_ERROR", 0, names_class=True),
    Macro("DG_HOST_ASSERT"),
    Macro("DG_DEVICE_ASSERT"),
    Macro("DG_STATIC_ASSERT"),
    Macro("DG_HOST_UNREACHABLE", 0),
    Macro("CUTLASS_ASSERT"),
    *_said("TORCH_WARN", "TORCH_WARN_ONCE", "FLASHINFER_WARN", exception="UserWarning"),
    *_said("TLLM_LOG_WARNING", "FLASHINFER_LOG_WARN", formatted=True),
    *_said("TLLM_LOG_ERROR", "FLASHINFER_LOG_ERROR", formatted=True, level="error"),
    Macro("FLASHINFER_CHECK"),
    Macro("FLASHINFER_ERROR", 0),
    Macro("TLLM_CHECK"),
    Macro("TLLM_CHECK_WITH_INFO", formatted=True),
    Macro("TLLM_THROW", 0, formatted=True),
    Macro("KU_ASSERT"),
    Macro("PyErr_SetString", 0, names_class=True),
    Macro("PyErr_Format", 0, names_class=True, formatted=True),
    Macro("report_fatal_error", 0),
    Macro("emitOpError", 0),
    Macro("emitError", 0),
)
"""Those known without being told; `faultbook index --macro NAME[:CONDITIONS]` adds to them."""

THROWN: Final = {
    "invalid_argument": "ValueError",
    "domain_error": "ValueError",
    "length_error": "ValueError",
    "value_error": "ValueError",
    "ValueError": "ValueError",
    "out_of_range": "IndexError",
    "index_error": "IndexError",
    "IndexError": "IndexError",
    "overflow_error": "OverflowError",
    "bad_alloc": "MemoryError",
    "key_error": "KeyError",
    "type_error": "TypeError",
    "TypeError": "TypeError",
    "import_error": "ImportError",
    "NotImplementedError": "NotImplementedError",
}
"""What Python makes of a C++ exception; RuntimeError of all others."""


PROMISING: Final = (
    r"[A-Z][A-Z0-9_]*(?:CHECK|ASSERT|ENFORCE|REQUIRE|EXPECT|VERIFY)\w*|(?:CHECK|ASSERT|DISPATCH)_\w+"
)
"""Names of macros that a package may have made of those above: where one is defined is seen later."""


@dataclass(frozen=True)
class Macros:
    """The macros of one scan, by name."""

    listed: tuple[Macro, ...] = MACROS

    @cached_property
    def by_name(self) -> dict[str, Macro]:
        return {macro.name: macro for macro in self.listed}

    @cached_property
    def mentioned(self) -> re.Pattern[bytes]:
        """Finds a file that has any of them, so that the others need no parsing."""
        names = "|".join(sorted((macro.name for macro in self.listed), key=len, reverse=True))
        return re.compile(rf"\b(?:(?:{names}|{PROMISING})\s*[(<{{]|throw\b)".encode())


def parse_macro(text: str) -> Macro:
    """`NAME` or `NAME:CONDITIONS` of the command line; ValueError for anything else."""
    name, colon, count = text.partition(":")
    if not re.fullmatch(r"[A-Za-z_]\w*", name) or (colon and not count.isdigit()):
        raise ValueError(f"{text!r} is not NAME or NAME:CONDITIONS")
    return Macro(name, int(count) if colon else 1)
