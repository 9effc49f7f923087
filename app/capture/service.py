"""The file that is served: the client's source, with the service's address and operations written in."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pprint import pformat
from typing import Any

from kernels.dtypes import DType
from kernels.registry import operations
from kernels.spec import TensorSpec

FIRST_IMPORT = "import ast\n"
"""Where the part of the second file begins that follows the first in the file that is served."""

OWN_IMPORT = re.compile(r"from app\.capture\.client import \([^)]*\)\n")


def client(base_url: str) -> str:
    """The client for users of the service at `base_url`."""
    return _source().replace('SERVICE = ""\n', f"SERVICE = {base_url!r}\n", 1)


@cache
def _source() -> str:
    folder = files(__package__)
    first, logs = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("client.py", "logs.py"))
    source = f"{first}\n\n{OWN_IMPORT.sub('', logs[logs.index(FIRST_IMPORT) :])}"
    listed = pformat(described(), width=110, sort_dicts=False)
    return source.replace("OPERATIONS: dict[str, Any] = {}\n", f"OPERATIONS: dict[str, Any] = {listed}\n", 1)


def described() -> dict[str, dict[str, Any]]:
    """Operations whose arguments are tensors: their functions, file and arguments in signature order.

    Those that inspect files run no kernel that could fail in a frame.
    """
    plain = (TensorSpec, DType, bool, int, float, str)
    return {
        operation.name: {
            "functions": sorted({operation.name, operation.function or operation.name}),
            "file": operation.source.path.rpartition("python/")[2],
            "arguments": [parameter.name for parameter in operation.call.arguments()],
        }
        for operation in operations().values()
        if all(parameter.kind in plain for parameter in operation.call.arguments())
    }
