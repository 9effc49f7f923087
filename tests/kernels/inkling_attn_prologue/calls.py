"""The calls that failing configurations vary: three tokens, rows of 528 elements, one head of keys."""

from __future__ import annotations

from typing import Any

from kernels.dtypes import DType
from kernels.inkling_attn_prologue.checks import OPERATIONS
from kernels.inkling_attn_prologue.signature import PrologueCall
from kernels.registry import Operation
from kernels.spec import TensorSpec
from kernels.values import Listed

DECODE, VERIFY, EXTEND = OPERATIONS
KINDS = {operation.name.rpartition("_")[2]: operation for operation in OPERATIONS}


def base(operation: Operation, **given: Any) -> PrologueCall:
    """N 8, S 256, W 4, offsets 0, 256 and 384; one sequence in verify and extend."""
    shaped: dict[str, Any] = {
        "qkvr": TensorSpec((3, 528), DType.BF16),
        "k_cache": TensorSpec((8, 3, 128), DType.BF16),
        "k_buf": TensorSpec((256, 1, 128), DType.BF16),
        "dq": 256,
        "dkv": 128,
    }
    if operation is not DECODE:
        shaped["cache_indices"] = TensorSpec((1,), DType.I32)
    call = operation.fit(shaped | given)
    assert isinstance(call, PrologueCall)
    return call


def failed(operation: Operation, call: PrologueCall) -> list[str]:
    """Ids of the failing checks."""
    return [outcome.check.id() for outcome in operation.examine(call).failed()]


def raised(operation: Operation, call: PrologueCall) -> tuple[str, str] | None:
    """Class and text that upstream raises."""
    violation = operation.examine(call).raised
    if violation is None:
        return None
    error = violation.exception()
    return type(error).__name__, str(error)


def listed(*numbers: float, dtype: DType = DType.I64) -> TensorSpec:
    """A 1-D tensor of these elements."""
    return TensorSpec((len(numbers),), dtype, values=Listed(numbers))
